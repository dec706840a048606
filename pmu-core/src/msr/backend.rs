//! Access to the model-specific registers of the processor that executes the call.

use crate::msr::address::{MsrAddress, PmcIndex};
use crate::msr::fault::MsrError;
use crate::msr::update::MsrUpdate;

/// Access to the model-specific registers of the logical processor that executes the call.
///
/// The caller stays on the processor during a sequence of accesses. Every method may be called in task, interrupt and
/// NMI context. An implementation takes no lock that the interrupted code may hold, does not allocate and does not
/// panic.
///
/// # For authors of a backend
/// - `read` and `write` access exactly the given register, once, in program order.
/// - If an access raises #GP, the method returns an `Err` whose [kind](MsrError::kind) is
///   [`MsrErrorKind::GeneralProtection`](crate::msr::MsrErrorKind::GeneralProtection), and the #GP has no other effect.
///   A backend that cannot catch a #GP says so in its documentation.
/// - `read_pmc` executes RDPMC with `index` in ECX, unchanged.
/// - `update` executes RDMSR, then WRMSR of the value that [`MsrUpdate::apply`] returns, as in the example below.
///   `update` must not be built from `read` and `write`, because these methods need an [`MsrAddress`]. A backend must
///   not create an `MsrAddress` for a register such as `IA32_DEBUGCTL`.
///
/// # Examples
/// This kernel executes the instructions itself, and does not catch #GP:
///
/// ```
/// use core::convert::Infallible;
/// use pmu_core::msr::{MsrAddress, MsrBackend, MsrUpdate, PmcIndex};
/// # unsafe fn rdmsr(_: u32) -> u64 { 0 }
/// # unsafe fn wrmsr(_: u32, _: u64) {}
/// # unsafe fn rdpmc(_: u32) -> u64 { 0 }
///
/// struct Msr;
///
/// impl MsrBackend for Msr {
///     type Error = Infallible;
///
///     fn read(&self, address: MsrAddress) -> Result<u64, Infallible> {
///         // SAFETY: the kernel runs at privilege level 0; reading changes nothing.
///         Ok(unsafe { rdmsr(address.get()) })
///     }
///
///     fn write(&self, address: MsrAddress, value: u64) -> Result<(), Infallible> {
///         // SAFETY: no value of this register breaks memory safety, by the promise of `MsrAddress::new`.
///         Ok(unsafe { wrmsr(address.get(), value) })
///     }
///
///     fn read_pmc(&self, index: PmcIndex) -> Result<u64, Infallible> {
///         // SAFETY: the kernel runs at privilege level 0; reading changes nothing.
///         Ok(unsafe { rdpmc(index.get()) })
///     }
///
///     fn update(&self, update: MsrUpdate) -> Result<u64, Infallible> {
///         // SAFETY: the kernel runs at privilege level 0; reading changes nothing.
///         let found = unsafe { rdmsr(update.register()) };
///         if let Some(value) = update.apply(found) {
///             // SAFETY: the change does not break memory safety, by the promise of `MsrUpdate::new`.
///             unsafe { wrmsr(update.register(), value) };
///         }
///         Ok(found)
///     }
/// }
/// # assert_eq!(Msr.update(MsrUpdate::read(0x1D9)), Ok(0));
/// ```
pub trait MsrBackend {
    /// Error of a register access.
    type Error: MsrError;

    /// Executes RDMSR.
    fn read(&self, address: MsrAddress) -> Result<u64, Self::Error>;

    /// Executes WRMSR.
    fn write(&self, address: MsrAddress, value: u64) -> Result<(), Self::Error>;

    /// Executes RDPMC.
    fn read_pmc(&self, index: PmcIndex) -> Result<u64, Self::Error>;

    /// Changes bits of a register, and returns the register's previous value.
    fn update(&self, update: MsrUpdate) -> Result<u64, Self::Error>;
}

impl<B: MsrBackend + ?Sized> MsrBackend for &B {
    type Error = B::Error;

    #[inline]
    fn read(&self, address: MsrAddress) -> Result<u64, Self::Error> {
        (**self).read(address)
    }

    #[inline]
    fn write(&self, address: MsrAddress, value: u64) -> Result<(), Self::Error> {
        (**self).write(address, value)
    }

    #[inline]
    fn read_pmc(&self, index: PmcIndex) -> Result<u64, Self::Error> {
        (**self).read_pmc(index)
    }

    #[inline]
    fn update(&self, update: MsrUpdate) -> Result<u64, Self::Error> {
        (**self).update(update)
    }
}
