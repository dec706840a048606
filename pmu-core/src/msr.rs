//! Access to the model-specific registers of the processor that executes the call.
//!
//! Read first: Intel SDM vol. 2, RDMSR, WRMSR and RDPMC; AMD APM vol. 3, the same instructions.

pub(crate) mod access;
pub(crate) mod address;
pub(crate) mod backend;
pub(crate) mod fault;
#[cfg(all(feature = "native", any(target_arch = "x86", target_arch = "x86_64")))]
pub(crate) mod native;
pub(crate) mod optional;
pub(crate) mod register_bits;
pub(crate) mod update;

pub use access::MsrAccess;
pub use address::{MsrAddress, PmcIndex};
pub use backend::MsrBackend;
pub use fault::{MsrError, MsrErrorKind, MsrFault, MsrOperation};
#[cfg(all(feature = "native", any(target_arch = "x86", target_arch = "x86_64")))]
pub use native::NativeMsr;
#[cfg(all(feature = "native", target_arch = "x86_64"))]
pub use native::{FaultFixup, FixupMsr};
pub use register_bits::RegisterBits;
pub use update::MsrUpdate;
