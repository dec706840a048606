//! Access to the model-specific registers of the processor that executes the call.
//!
//! Read first: Intel SDM vol. 2, RDMSR, WRMSR and RDPMC; AMD APM vol. 3, the same.

use core::fmt;

#[cfg(all(feature = "native", any(target_arch = "x86", target_arch = "x86_64")))]
pub(crate) mod native;
pub(crate) mod optional;

/// The number of a model-specific register that a caller vouches for.
///
/// A WRMSR can redirect SYSCALL, turn off paging protection or make the processor write to memory. [`MsrBackend`] is
/// nevertheless safe to call, because the code that *names* a register makes the promise of [`MsrAddress::new`] for
/// every value that safe code could write to it.
///
/// ```
/// use pmu_core::MsrAddress;
/// // SAFETY: `IA32_PERFEVTSEL0` selects an event; no value of it makes the processor write to memory.
/// let select = unsafe { MsrAddress::new(0x186) };
/// assert_eq!(select.get(), 0x186);
/// ```
///
/// Wrong: a register that holds a pointer, which safe code could then aim at any memory.
///
/// ```
/// # use pmu_core::MsrAddress;
/// // SAFETY: not given. The processor writes its records to the area that `IA32_DS_AREA` names.
/// let ds_area = unsafe { MsrAddress::new(0x600) };
/// # let _ = ds_area;
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct MsrAddress(u32);

impl MsrAddress {
    /// Names the register `address`.
    ///
    /// # Safety
    /// - No value written to this register may break memory safety: it holds no pointer that the
    ///   processor follows, and starts nothing that writes to memory. Event selects, counters and
    ///   their global control are such registers; `IA32_DS_AREA`, `IA32_PEBS_ENABLE` and
    ///   `IA32_DEBUGCTL` are not: wrap those in an unsafe operation that states its duties, and
    ///   keep their `MsrAddress` private.
    #[inline]
    pub const unsafe fn new(address: u32) -> Self {
        Self(address)
    }

    /// Returns the register's number, as RDMSR and WRMSR take it in ECX.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for MsrAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MsrAddress({:#X})", self.0)
    }
}

/// A change of some bits of one register that safe code must not write as a whole.
///
/// `IA32_DEBUGCTL` and `IA32_PEBS_ENABLE` have bits that make the processor write to memory. A value of this type
/// changes only other bits of these registers, and safe code cannot write them in any other way.
///
/// ```
/// use pmu_core::MsrUpdate;
/// // SAFETY: bit 12 of IA32_DEBUGCTL freezes the counters, and no more.
/// let freeze = unsafe { MsrUpdate::new(0x1D9, 0, 1 << 12) };
/// assert_eq!(freeze.apply(0x3), Some(0x1003));
/// assert_eq!(freeze.apply(0x1003), None);
/// ```
///
/// Wrong: a bit that makes the processor write to memory.
///
/// ```
/// # use pmu_core::MsrUpdate;
/// // SAFETY: not given. Bit 7 of IA32_DEBUGCTL, BTS, stores branches into the Debug Store's buffer.
/// let trace = unsafe { MsrUpdate::new(0x1D9, 0, 1 << 7) };
/// # let _ = trace;
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct MsrUpdate {
    register: u32,
    clear: u64,
    set: u64,
}

impl MsrUpdate {
    /// Describes a change that clears the bits of `clear` and sets those of `set` in the register `register`.
    ///
    /// # Safety
    /// - The change does not break memory safety, whatever the register holds, at any time and any number of times.
    ///   The change is a read and a write. If an interrupt changes other bits in between, writing these back as they
    ///   were read does not break memory safety, either.
    #[inline]
    pub const unsafe fn new(register: u32, clear: u64, set: u64) -> Self {
        Self { register, clear, set }
    }

    /// Describes an access that reads the register and changes nothing.
    #[inline]
    pub const fn read(register: u32) -> Self {
        Self { register, clear: 0, set: 0 }
    }

    /// Returns the register's number, as RDMSR and WRMSR take it in ECX.
    #[inline]
    pub const fn register(self) -> u32 {
        self.register
    }

    /// Returns the value to write where the register holds `found`, or `None` where it has that value already.
    #[inline]
    pub const fn apply(self, found: u64) -> Option<u64> {
        let value = found & !self.clear | self.set;
        if value == found { None } else { Some(value) }
    }
}

impl fmt::Debug for MsrUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { register, clear, set } = self;
        write!(f, "MsrUpdate({register:#X}, clear {clear:#X}, set {set:#X})")
    }
}

/// RDPMC's operand in ECX. Any value is allowed, because reading a counter is harmless.
///
/// ```
/// use pmu_core::PmcIndex;
/// // The first fixed counter of an Intel processor: bit 30 of ECX.
/// assert_eq!(PmcIndex::new(1 << 30).get(), 0x4000_0000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PmcIndex(u32);

impl PmcIndex {
    /// Creates an index from the value for ECX.
    #[inline]
    pub const fn new(ecx: u32) -> Self {
        Self(ecx)
    }

    /// Returns the value for ECX.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Access to the model-specific registers of the logical processor that executes the call.
///
/// The caller stays on the processor during a sequence of accesses. Every method may be called in task, interrupt and
/// NMI context. An implementation takes no lock that an interrupt could find held, does not allocate and does not
/// panic.
///
/// # For authors of a backend
/// - `read` and `write` reach exactly the register that is named, once, in program order.
/// - A #GP is an `Err` whose [kind](MsrError::kind) is [`MsrErrorKind::GeneralProtection`] and has
///   no other effect. A backend that cannot catch one says so in its documentation.
/// - `read_pmc` is RDPMC: `index` goes to ECX unchanged.
/// - `update` is RDMSR, then WRMSR of the value that [`MsrUpdate::apply`] returns. It must not be made of `read` and
///   `write`, because these registers have no [`MsrAddress`].
///
/// # Examples
/// A kernel with instructions of its own, where a #GP ends the kernel:
///
/// ```
/// use core::convert::Infallible;
/// use pmu_core::{MsrAddress, MsrBackend, MsrUpdate, PmcIndex};
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
    /// Error of an access to a register.
    type Error: MsrError;

    /// Executes RDMSR.
    fn read(&self, address: MsrAddress) -> Result<u64, Self::Error>;

    /// Executes WRMSR.
    fn write(&self, address: MsrAddress, value: u64) -> Result<(), Self::Error>;

    /// Executes RDPMC.
    fn read_pmc(&self, index: PmcIndex) -> Result<u64, Self::Error>;

    /// Changes bits of a register, and returns the register's value before.
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

/// An error of a [backend](MsrBackend). Generic code asks for its kind.
///
/// ```
/// use pmu_core::{MsrError, MsrErrorKind};
///
/// /// The answer of a hypervisor that reaches its guest's registers by a call.
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
    /// The processor raised #GP(0): no such register, a reserved bit, or too little privilege.
    GeneralProtection,
    /// The backend cannot reach the register at all (no such processor, no permission).
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

/// The instruction that failed, or was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum MsrOperation {
    /// RDMSR.
    Read,
    /// WRMSR.
    Write,
    /// RDPMC; the register number of the fault is then the index in ECX.
    ReadPmc,
    /// RDMSR or WRMSR of an [`MsrUpdate`].
    Update,
}

/// An access that failed: what was tried, on which register, and why it failed.
///
/// ```
/// use pmu_core::{MsrErrorKind, MsrFault, MsrOperation};
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

/// The accesses of a backend as drivers use them: each is retried once after a failure, and the error names the
/// register. So a transient fault does not keep anything from being undone, stopped or serviced.
///
/// Every backend has this trait, and it cannot be implemented otherwise.
///
/// ```
/// use pmu_core::{MsrAccess, MsrAddress, MsrBackend, MsrFault};
/// /// Whether a counter overflowed.
/// fn has_overflowed(msr: &impl MsrBackend, status: MsrAddress) -> Result<bool, MsrFault> {
///     Ok(msr.rdmsr_retrying(status)? != 0)
/// }
/// ```
pub trait MsrAccess: MsrBackend {
    /// Executes RDMSR, with one retry.
    ///
    /// # Errors
    /// The second access failed, too.
    #[inline]
    fn rdmsr_retrying(&self, address: MsrAddress) -> Result<u64, MsrFault> {
        retry_once(MsrOperation::Read, address.get(), || self.read(address))
    }

    /// Executes WRMSR, with one retry.
    ///
    /// # Errors
    /// The second access failed, too.
    #[inline]
    fn wrmsr_retrying(&self, address: MsrAddress, value: u64) -> Result<(), MsrFault> {
        retry_once(MsrOperation::Write, address.get(), || self.write(address, value))
    }

    /// Executes RDPMC, with one retry.
    ///
    /// # Errors
    /// The second access failed, too.
    #[inline]
    fn rdpmc_retrying(&self, index: PmcIndex) -> Result<u64, MsrFault> {
        retry_once(MsrOperation::ReadPmc, index.get(), || self.read_pmc(index))
    }

    /// Changes bits of a register, with one retry, and returns the register's value before.
    ///
    /// # Errors
    /// The second access failed, too.
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
