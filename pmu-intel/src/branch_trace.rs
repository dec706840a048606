//! The branch trace store (BTS): the processor itself writes each taken branch to memory.
//!
//! Read first: Intel SDM vol. 3B, "Branch Trace Store (BTS)" and "BTS and DS Save Area".

pub(crate) mod error;
pub(crate) mod interrupt;
pub(crate) mod lend;
pub(crate) mod memory;
pub(crate) mod record;
pub(crate) mod tracer;

pub use error::BranchTraceError;
pub use interrupt::BranchTrace;
pub use lend::LentBranchTrace;
pub use memory::BranchTraceMemory;
pub use record::TracedBranches;
pub use tracer::BranchTracer;
