//! Register addresses whose creator promises that any value may be written to the register.

use core::fmt;

/// Number of a model-specific register to which safe code may write any value.
///
/// A WRMSR can redirect SYSCALL, turn off paging protection or make the processor write to memory. The method
/// [`write`](crate::msr::MsrBackend::write) is nevertheless a safe function, because it accepts only an `MsrAddress`.
/// The caller of [`MsrAddress::new`] promises that no value written to the register breaks memory safety.
///
/// ```
/// use pmu_core::msr::MsrAddress;
/// // SAFETY: `IA32_PERFEVTSEL0` selects an event; no value of it makes the processor write to memory.
/// let select = unsafe { MsrAddress::new(0x186) };
/// assert_eq!(select.get(), 0x186);
/// ```
///
/// Wrong: the register holds a pointer, and safe code could make this pointer point anywhere.
///
/// ```
/// # use pmu_core::msr::MsrAddress;
/// // SAFETY: not given. The processor writes its records to the area that `IA32_DS_AREA` names.
/// let ds_area = unsafe { MsrAddress::new(0x600) };
/// # let _ = ds_area;
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct MsrAddress(u32);

impl MsrAddress {
    /// Creates the address of the register with the number `address`.
    ///
    /// # Safety
    /// - No value written to this register breaks memory safety: the register holds no pointer that the processor
    ///   follows, and no value makes the processor write to memory. Event selects, counters and their global control
    ///   register meet this condition. `IA32_DS_AREA`, `IA32_PEBS_ENABLE` and `IA32_DEBUGCTL` do not: write these three
    ///   registers in an unsafe function that documents the caller's duties, and keep their `MsrAddress` private.
    #[inline]
    pub const unsafe fn new(address: u32) -> Self {
        Self(address)
    }

    /// Returns the register's number: the value of ECX for RDMSR and WRMSR.
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

/// RDPMC's operand in ECX. Any value is allowed, because reading a counter is harmless.
///
/// ```
/// use pmu_core::msr::PmcIndex;
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
