//! The branch trace store (BTS): the processor itself writes each taken branch to memory.
//!
//! Read first: Intel SDM vol. 3B, "Branch Trace Store (BTS)" and "BTS and DS Save Area".

pub(crate) mod memory;
pub(crate) mod record;
pub(crate) mod settle;
pub(crate) mod trace;

pub use memory::BranchTraceMemory;
pub use record::TracedBranches;
pub use trace::{BranchTrace, BranchTraceUnit};
