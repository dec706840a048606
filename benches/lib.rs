//! The benchmarks are in `benches/`, a file a crate.
//!
//! ```text
//! cargo install gungraun-runner --version 0.20.0 --locked
//! cargo bench --manifest-path benches/Cargo.toml
//! ```
