//! Intel's precise records of one virtual processor: PEBS in the Debug Store, architectural PEBS, and the branch trace
//! store. The embedder feeds the instructions and the branches to [`VirtualPrecise`], and provides access to the
//! guest's memory.
//!
//! Read first: SDM vol. 3B, "Processor Event Based Sampling (PEBS)" and "Branch Trace Store (BTS)".

pub(crate) mod architectural;
pub(crate) mod configuration;
pub(crate) mod memory;
pub(crate) mod record;
pub(crate) mod virtual_precise;

pub use configuration::{
    ArchitecturalRecords, DebugStoreRecords, PreciseConfiguration, PreciseRecords,
};
pub use memory::{GuestFault, GuestMemory};
pub use record::{FedRecord, FedRegisters, FedVectors, Recorded};
pub use virtual_precise::VirtualPrecise;
