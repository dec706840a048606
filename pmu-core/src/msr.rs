//! Access to the model-specific registers of the processor that executes the call.
//!
//! Read first: Intel SDM vol. 2, RDMSR, WRMSR and RDPMC; AMD APM vol. 3, the same instructions.

pub(crate) mod address;
pub(crate) mod backend;
#[cfg(all(feature = "native", any(target_arch = "x86", target_arch = "x86_64")))]
pub(crate) mod native;

pub use address::{MsrAddress, MsrUpdate, PmcIndex, RegisterBits};
pub use backend::{MsrAccess, MsrBackend, MsrError, MsrErrorKind, MsrFault, MsrOperation};
#[cfg(all(feature = "native", any(target_arch = "x86", target_arch = "x86_64")))]
pub use native::NativeMsr;
#[cfg(all(feature = "native", target_arch = "x86_64"))]
pub use native::{FaultFixup, FixupMsr};
