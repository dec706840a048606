//! Parts of x86 processors that others lack: CPUID, from which counters are detected, and the clocks beside the
//! counters.

pub mod clocks;
pub mod dump;
pub(crate) mod snapshot;

pub use raw_cpuid;
pub use snapshot::Snapshot;
