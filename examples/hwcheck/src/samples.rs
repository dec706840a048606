//! Sampled ops: of code whose ops are known by hand, and of loads that miss.
//!
//! Uses the [machine](crate::machine), and what is below.

pub(crate) mod ops;

pub use ops::{registers, samples};
