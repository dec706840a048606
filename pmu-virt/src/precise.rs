//! Intel's precise records of one virtual processor: PEBS in the Debug Store, architectural PEBS, and the branch trace
//! store. The embedder feeds the instructions and the branches, and provides access to the guest's memory.
//!
//! Uses [`branches`](crate::branches), [`pmu`](crate::pmu) and the modules that these use.
//!
//! Read first: SDM vol. 3B, "Processor Event Based Sampling (PEBS)" and "Branch Trace Store (BTS)".

pub(crate) mod adaptive;
pub(crate) mod architectural;
pub(crate) mod area;
pub(crate) mod configuration;
pub(crate) mod cpuid;
pub(crate) mod error;
pub(crate) mod fed;
pub(crate) mod fixed;
pub(crate) mod memory;
pub(crate) mod msr;
pub(crate) mod record;
pub(crate) mod registers;
pub(crate) mod store;
pub(crate) mod trace;
pub(crate) mod virtual_precise;
