//! Instruction-based sampling (IBS) of a virtual AMD processor, as a facility beside the PMU. The embedder feeds the
//! fetches and the ops to [`VirtualIbs`].
//!
//! Read first: AMD APM vol. 2, "Instruction-Based Sampling".

pub(crate) mod configuration;
pub(crate) mod fed;
pub(crate) mod msr;
pub(crate) mod next_sample;
pub(crate) mod registers;
pub(crate) mod sample;
pub(crate) mod virtual_ibs;

pub use configuration::IbsConfiguration;
pub use fed::{FedFetch, FedOp};
pub use next_sample::NextSample;
pub use virtual_ibs::VirtualIbs;
