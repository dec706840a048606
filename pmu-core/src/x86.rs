//! Parts of x86 processors that others lack: CPUID, from which counters are detected, the instructions that access
//! model-specific registers, and the clocks beside the counters.
//!
//! Read first: Intel SDM vol. 2, CPUID, RDMSR, WRMSR and RDPMC; AMD APM vol. 3, the same instructions.

pub mod clocks;
pub mod dump;
#[cfg(all(feature = "native", any(target_arch = "x86", target_arch = "x86_64")))]
mod native;
pub(crate) mod snapshot;

#[cfg(all(feature = "native", any(target_arch = "x86", target_arch = "x86_64")))]
pub use native::NativeMsr;
#[cfg(all(feature = "native", target_arch = "x86_64"))]
pub use native::{FaultFixup, FixupMsr};
pub use raw_cpuid;
pub use snapshot::Snapshot;
