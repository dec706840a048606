//! See `tests/frames.rs`.
