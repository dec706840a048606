//! Instruction-based sampling (IBS) of a virtual AMD processor, as a facility beside the PMU. The embedder feeds the
//! fetches and the ops to [`VirtualIbs`].
//!
//! Read first: AMD APM vol. 2, "Instruction-Based Sampling".

pub(crate) mod sample;
pub(crate) mod virtual_ibs;

pub use sample::{FedFetch, FedOp};
pub use virtual_ibs::{IbsConfiguration, NextSample, VirtualIbs};
