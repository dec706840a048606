//! Access to the model-specific registers of the processor that executes the call.

use core::fmt;

use crate::msr::address::{MsrAddress, MsrUpdate, PmcIndex};

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
/// - A backend that passes accesses to another one also forwards [`user_index`](Self::user_index).
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

    /// Returns the index by which user mode reads the counter that [`read_pmc`](Self::read_pmc) reads by `index`. The
    /// default, for x86, returns `index`: user mode executes RDPMC, too.
    fn user_index(&self, index: PmcIndex) -> PmcIndex {
        index
    }
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

    #[inline]
    fn user_index(&self, index: PmcIndex) -> PmcIndex {
        (**self).user_index(index)
    }
}

/// Error of a [backend](crate::msr::MsrBackend). The error reports the kind of failure.
///
/// ```
/// use pmu_core::msr::{MsrError, MsrErrorKind};
///
/// /// Error of a hypervisor that accesses its guest's registers by a call.
/// #[derive(Debug)]
/// enum CallError {
///     NoSuchProcessor,
///     Fault,
/// }
///
/// impl MsrError for CallError {
///     fn kind(&self) -> MsrErrorKind {
///         match self {
///             Self::NoSuchProcessor => MsrErrorKind::Unreachable,
///             Self::Fault => MsrErrorKind::GeneralProtection,
///         }
///     }
/// }
/// # assert_eq!(CallError::Fault.kind(), MsrErrorKind::GeneralProtection);
/// # assert_eq!(CallError::NoSuchProcessor.kind(), MsrErrorKind::Unreachable);
/// ```
pub trait MsrError: fmt::Debug {
    /// Returns the kind of failure.
    fn kind(&self) -> MsrErrorKind;
}

impl MsrError for core::convert::Infallible {
    fn kind(&self) -> MsrErrorKind {
        match *self {}
    }
}

/// Kinds of failure of an MSR access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum MsrErrorKind {
    /// The processor raised #GP(0): the register does not exist, a reserved bit was written, or the privilege is too
    /// low.
    GeneralProtection,
    /// The backend cannot reach the register at all: the processor does not exist, or permission is missing.
    Unreachable,
    /// Another failure, particular to the backend.
    Other,
}

impl MsrError for MsrErrorKind {
    fn kind(&self) -> MsrErrorKind {
        *self
    }
}

impl fmt::Display for MsrErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GeneralProtection => "general protection fault",
            Self::Unreachable => "register unreachable",
            Self::Other => "backend failure",
        })
    }
}

/// Instruction by which a register is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum MsrOperation {
    /// RDMSR.
    Read,
    /// WRMSR.
    Write,
    /// RDPMC. In an [`MsrFault`], `register` is then RDPMC's index in ECX.
    ReadPmc,
    /// RDMSR and then WRMSR, for an [`MsrUpdate`](crate::msr::MsrUpdate). One of the two instructions failed.
    Update,
}

/// A failed access: its instruction, its register, and the reason for the failure.
///
/// ```
/// use pmu_core::msr::{MsrErrorKind, MsrFault, MsrOperation};
/// let (operation, kind) = (MsrOperation::Write, MsrErrorKind::GeneralProtection);
/// let fault = MsrFault { operation, register: 0x38F, kind };
/// assert_eq!(fault.to_string(), "WRMSR 0x38F: general protection fault");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct MsrFault {
    /// The instruction.
    pub operation: MsrOperation,
    /// The register's number (ECX).
    pub register: u32,
    /// The kind of failure.
    pub kind: MsrErrorKind,
}

impl fmt::Display for MsrFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instruction = match self.operation {
            MsrOperation::Read => "RDMSR",
            MsrOperation::Write => "WRMSR",
            MsrOperation::ReadPmc => "RDPMC",
            MsrOperation::Update => "RDMSR or WRMSR",
        };
        write!(f, "{instruction} {:#X}: {}", self.register, self.kind)
    }
}

impl core::error::Error for MsrFault {}

/// Register accesses that are tried once more after a failure. If the second attempt also fails, the error names the
/// register. Because of the retry, a transient fault does not prevent a driver from stopping a counter, servicing an
/// interrupt, or undoing a change.
///
/// Every backend implements this trait through a blanket implementation; no other implementation is possible.
///
/// ```
/// use pmu_core::msr::{MsrAccess, MsrAddress, MsrBackend, MsrFault};
/// /// Returns whether a counter has overflowed.
/// fn has_overflowed(msr: &impl MsrBackend, status: MsrAddress) -> Result<bool, MsrFault> {
///     Ok(msr.rdmsr_retrying(status)? != 0)
/// }
/// ```
pub trait MsrAccess: MsrBackend {
    /// Executes RDMSR, with one retry.
    ///
    /// # Errors
    /// Both attempts failed.
    #[inline]
    fn rdmsr_retrying(&self, address: MsrAddress) -> Result<u64, MsrFault> {
        retry_once(MsrOperation::Read, address.get(), || self.read(address))
    }

    /// Executes WRMSR, with one retry.
    ///
    /// # Errors
    /// Both attempts failed.
    #[inline]
    fn wrmsr_retrying(&self, address: MsrAddress, value: u64) -> Result<(), MsrFault> {
        retry_once(MsrOperation::Write, address.get(), || self.write(address, value))
    }

    /// Executes RDPMC, with one retry.
    ///
    /// # Errors
    /// Both attempts failed.
    #[inline]
    fn rdpmc_retrying(&self, index: PmcIndex) -> Result<u64, MsrFault> {
        retry_once(MsrOperation::ReadPmc, index.get(), || self.read_pmc(index))
    }

    /// Changes bits of a register, with one retry, and returns the register's previous value.
    ///
    /// # Errors
    /// Both attempts failed.
    fn update_retrying(&self, update: MsrUpdate) -> Result<u64, MsrFault> {
        let changes = update.clear | update.set != 0;
        let operation = if changes { MsrOperation::Update } else { MsrOperation::Read };
        retry_once(operation, update.register(), || self.update(update))
    }
}

impl<B: MsrBackend + ?Sized> MsrAccess for B {}

#[inline]
fn retry_once<T, E: MsrError>(
    operation: MsrOperation,
    register: u32,
    access: impl Fn() -> Result<T, E>,
) -> Result<T, MsrFault> {
    let fault = |error: E| MsrFault { operation, register, kind: error.kind() };
    access().or_else(|_| access()).map_err(fault)
}
