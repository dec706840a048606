//! The benchmarks are in `benches/`, one file per crate or subject.
//!
//! ```text
//! cargo install gungraun-runner --version 0.20.0 --locked
//! cargo bench --manifest-path benches/Cargo.toml
//! ```
