//! Access to the registers of the processor that executes the call. Registers that the examples name are x86's.

use core::fmt;

use crate::access::address::{CounterIndex, RegisterAddress, RegisterUpdate};

/// Access to the registers of the logical processor that executes the call.
///
/// The caller stays on the processor during a sequence of accesses. Every method may be called in task, interrupt and
/// NMI context. An implementation takes no lock that the interrupted code may hold, does not allocate and does not
/// panic.
///
/// # For authors of a backend
/// - `read` and `write` access exactly the given register, once, in program order.
/// - If an access faults, as by #GP on x86, the method returns an `Err` whose [kind](AccessError::kind) is
///   [`AccessErrorKind::Fault`](crate::access::AccessErrorKind::Fault), and the fault has no other effect. A backend
///   that cannot catch a fault says so in its documentation.
/// - `read_counter` passes on `index` unchanged: on x86, to RDPMC in ECX.
/// - `update` reads the register, then writes the value that [`RegisterUpdate::apply`] returns, as in the example
///   below. `update` must not be built from `read` and `write`, because these methods need a [`RegisterAddress`]. A
///   backend must not create a `RegisterAddress` for a register such as `IA32_DEBUGCTL`.
/// - A backend that passes accesses to another one also forwards [`user_index`](Self::user_index).
///
/// # Examples
/// This kernel on x86 executes the instructions itself, and does not catch #GP:
///
/// ```
/// use core::convert::Infallible;
/// use pmu_core::access::{RegisterAddress, RegisterBackend, RegisterUpdate, CounterIndex};
/// # unsafe fn rdmsr(_: u32) -> u64 { 0 }
/// # unsafe fn wrmsr(_: u32, _: u64) {}
/// # unsafe fn rdpmc(_: u32) -> u64 { 0 }
///
/// struct Msr;
///
/// impl RegisterBackend for Msr {
///     type Error = Infallible;
///
///     fn read(&self, address: RegisterAddress) -> Result<u64, Infallible> {
///         // SAFETY: the kernel runs at privilege level 0; reading changes nothing.
///         Ok(unsafe { rdmsr(address.get()) })
///     }
///
///     fn write(&self, address: RegisterAddress, value: u64) -> Result<(), Infallible> {
///         // SAFETY: no value of this register breaks memory safety, by the promise of `RegisterAddress::new`.
///         Ok(unsafe { wrmsr(address.get(), value) })
///     }
///
///     fn read_counter(&self, index: CounterIndex) -> Result<u64, Infallible> {
///         // SAFETY: the kernel runs at privilege level 0; reading changes nothing.
///         Ok(unsafe { rdpmc(index.get()) })
///     }
///
///     fn update(&self, update: RegisterUpdate) -> Result<u64, Infallible> {
///         // SAFETY: the kernel runs at privilege level 0; reading changes nothing.
///         let found = unsafe { rdmsr(update.register()) };
///         if let Some(value) = update.apply(found) {
///             // SAFETY: the change does not break memory safety, by the promise of `RegisterUpdate::new`.
///             unsafe { wrmsr(update.register(), value) };
///         }
///         Ok(found)
///     }
/// }
/// # assert_eq!(Msr.update(RegisterUpdate::read(0x1D9)), Ok(0));
/// ```
#[doc(alias = "MsrBackend")]
#[doc(alias = "rdmsr")]
#[doc(alias = "wrmsr")]
pub trait RegisterBackend {
    /// Error of a register access.
    type Error: AccessError;

    /// Reads a register: on x86, by RDMSR.
    fn read(&self, address: RegisterAddress) -> Result<u64, Self::Error>;

    /// Writes a register: on x86, by WRMSR.
    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), Self::Error>;

    /// Reads a counter by its index: on x86, by RDPMC.
    fn read_counter(&self, index: CounterIndex) -> Result<u64, Self::Error>;

    /// Changes bits of a register, and returns the register's previous value.
    fn update(&self, update: RegisterUpdate) -> Result<u64, Self::Error>;

    /// Returns the index by which user mode reads the counter that [`read_counter`](Self::read_counter) reads by
    /// `index`. The default, for x86, returns `index`: user mode executes RDPMC, too.
    fn user_index(&self, index: CounterIndex) -> CounterIndex {
        index
    }
}

impl<B: RegisterBackend + ?Sized> RegisterBackend for &B {
    type Error = B::Error;

    #[inline]
    fn read(&self, address: RegisterAddress) -> Result<u64, Self::Error> {
        (**self).read(address)
    }

    #[inline]
    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), Self::Error> {
        (**self).write(address, value)
    }

    #[inline]
    fn read_counter(&self, index: CounterIndex) -> Result<u64, Self::Error> {
        (**self).read_counter(index)
    }

    #[inline]
    fn update(&self, update: RegisterUpdate) -> Result<u64, Self::Error> {
        (**self).update(update)
    }

    #[inline]
    fn user_index(&self, index: CounterIndex) -> CounterIndex {
        (**self).user_index(index)
    }
}

/// Error of a [backend](crate::access::RegisterBackend). The error reports the kind of failure.
///
/// ```
/// use pmu_core::access::{AccessError, AccessErrorKind};
///
/// /// Error of a hypervisor that accesses its guest's registers by a call.
/// #[derive(Debug)]
/// enum CallError {
///     NoSuchProcessor,
///     Fault,
/// }
///
/// impl AccessError for CallError {
///     fn kind(&self) -> AccessErrorKind {
///         match self {
///             Self::NoSuchProcessor => AccessErrorKind::Unreachable,
///             Self::Fault => AccessErrorKind::Fault,
///         }
///     }
/// }
/// # assert_eq!(CallError::Fault.kind(), AccessErrorKind::Fault);
/// # assert_eq!(CallError::NoSuchProcessor.kind(), AccessErrorKind::Unreachable);
/// ```
pub trait AccessError: fmt::Debug {
    /// Returns the kind of failure.
    fn kind(&self) -> AccessErrorKind;
}

impl AccessError for core::convert::Infallible {
    fn kind(&self) -> AccessErrorKind {
        match *self {}
    }
}

/// Kinds of failure of a register access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum AccessErrorKind {
    /// The processor refused the access by a fault, #GP(0) on x86: the register does not exist, a reserved bit was
    /// written, or the privilege is too low.
    Fault,
    /// The backend cannot reach the register at all: the processor does not exist, or permission is missing.
    Unreachable,
    /// Another failure, particular to the backend.
    Other,
}

impl AccessError for AccessErrorKind {
    fn kind(&self) -> AccessErrorKind {
        *self
    }
}

impl fmt::Display for AccessErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fault => "fault",
            Self::Unreachable => "register unreachable",
            Self::Other => "backend failure",
        })
    }
}

/// Operation by which a register is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum AccessOperation {
    /// A read, by RDMSR.
    Read,
    /// A write, by WRMSR.
    Write,
    /// A read of a counter by its index, by RDPMC. In an [`AccessFault`], `register` is then the index.
    ReadCounter,
    /// A read and then a write, for a [`RegisterUpdate`](crate::access::RegisterUpdate). One of the two failed.
    Update,
}

/// A failed access: its operation, its register, and the reason for the failure.
///
/// ```
/// use pmu_core::access::{AccessErrorKind, AccessFault, AccessOperation};
/// let (operation, kind) = (AccessOperation::Write, AccessErrorKind::Fault);
/// let fault = AccessFault { operation, register: 0x38F, kind };
/// assert_eq!(fault.to_string(), "write of register 0x38F: fault");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct AccessFault {
    /// The operation.
    pub operation: AccessOperation,
    /// The register's number, or the counter's index.
    pub register: u32,
    /// The kind of failure.
    pub kind: AccessErrorKind,
}

impl fmt::Display for AccessFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operation = match self.operation {
            AccessOperation::Read => "read of register",
            AccessOperation::Write => "write of register",
            AccessOperation::ReadCounter => "read of counter",
            AccessOperation::Update => "update of register",
        };
        write!(f, "{operation} {:#X}: {}", self.register, self.kind)
    }
}

impl core::error::Error for AccessFault {}

/// Register accesses that are tried once more after a failure. If the second attempt also fails, the error names the
/// register. Because of the retry, a transient fault does not prevent a driver from stopping a counter, servicing an
/// interrupt, or undoing a change.
///
/// Every backend implements this trait through a blanket implementation; no other implementation is possible.
///
/// ```
/// use pmu_core::access::{RegisterAccess, RegisterAddress, RegisterBackend, AccessFault};
/// /// Returns whether a counter has overflowed.
/// fn has_overflowed(msr: &impl RegisterBackend, status: RegisterAddress) -> Result<bool, AccessFault> {
///     Ok(msr.read_retrying(status)? != 0)
/// }
/// ```
pub trait RegisterAccess: RegisterBackend {
    /// Reads a register, with one retry.
    ///
    /// # Errors
    /// Both attempts failed.
    #[inline]
    fn read_retrying(&self, address: RegisterAddress) -> Result<u64, AccessFault> {
        retry_once(AccessOperation::Read, address.get(), || self.read(address))
    }

    /// Writes a register, with one retry.
    ///
    /// # Errors
    /// Both attempts failed.
    #[inline]
    fn write_retrying(&self, address: RegisterAddress, value: u64) -> Result<(), AccessFault> {
        retry_once(AccessOperation::Write, address.get(), || self.write(address, value))
    }

    /// Reads a counter by its index, with one retry.
    ///
    /// # Errors
    /// Both attempts failed.
    #[inline]
    fn read_counter_retrying(&self, index: CounterIndex) -> Result<u64, AccessFault> {
        retry_once(AccessOperation::ReadCounter, index.get(), || self.read_counter(index))
    }

    /// Changes bits of a register, with one retry, and returns the register's previous value.
    ///
    /// # Errors
    /// Both attempts failed.
    fn update_retrying(&self, update: RegisterUpdate) -> Result<u64, AccessFault> {
        let changes = update.clear | update.set != 0;
        let operation = if changes { AccessOperation::Update } else { AccessOperation::Read };
        retry_once(operation, update.register(), || self.update(update))
    }
}

impl<B: RegisterBackend + ?Sized> RegisterAccess for B {}

#[inline]
fn retry_once<T, E: AccessError>(
    operation: AccessOperation,
    register: u32,
    access: impl Fn() -> Result<T, E>,
) -> Result<T, AccessFault> {
    let fault = |error: E| AccessFault { operation, register, kind: error.kind() };
    access().or_else(|_| access()).map_err(fault)
}
