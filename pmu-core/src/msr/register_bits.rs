//! One owner's bits of a register that has several owners.

use crate::msr::update::MsrUpdate;

/// The bits that one owner has in a register with several owners, such as `IA32_DEBUGCTL`.
///
/// ```
/// use pmu_core::msr::RegisterBits;
/// // SAFETY: bit 12 of IA32_DEBUGCTL, FREEZE_PERFMON_ON_PMI, stops counters, and no more.
/// let freeze = unsafe { RegisterBits::new(0x1D9, 1 << 12) };
/// assert_eq!(freeze.set_to(1 << 12).apply(0x0001), Some(0x1001));
/// assert_eq!(freeze.set_to(0).apply(0x0001), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RegisterBits {
    register: u32,
    bits: u64,
}

impl RegisterBits {
    /// Describes some bits of a register: the bits that are set in `bits`, in the MSR at the address `register`.
    ///
    /// # Safety
    /// - Setting and clearing any of the bits, while the register's other bits stay unchanged, does not break memory
    ///   safety.
    ///
    /// ```
    /// use pmu_core::msr::RegisterBits;
    /// // SAFETY: bit 12 of IA32_DEBUGCTL, FREEZE_PERFMON_ON_PMI, stops counters, and no more.
    /// let freeze = unsafe { RegisterBits::new(0x1D9, 1 << 12) };
    /// # let _ = freeze;
    /// ```
    ///
    /// Wrong: describing bits of `IA32_DEBUGCTL` that make the processor store branches to memory.
    ///
    /// ```
    /// # use pmu_core::msr::RegisterBits;
    /// // SAFETY: not given. Bits 6 and 7 are TR and BTS.
    /// let freeze = unsafe { RegisterBits::new(0x1D9, 0xC0) };
    /// # let _ = freeze;
    /// ```
    pub const unsafe fn new(register: u32, bits: u64) -> Self {
        Self { register, bits }
    }

    /// Returns the mask of the bits that this value describes.
    pub const fn bits(&self) -> u64 {
        self.bits
    }

    /// Returns a change of the register: each of these [`bits`](Self::bits) takes its value from `value`, and the
    /// register's other bits stay unchanged.
    ///
    /// ```
    /// # use pmu_core::msr::RegisterBits;
    /// // SAFETY: FREEZE_PERFMON_ON_PMI alone: the processor writes no memory for it.
    /// let freeze = unsafe { RegisterBits::new(0x1D9, 1 << 12) };
    /// // Sets its bit, and leaves LBR (bit 0), which is another owner's.
    /// assert_eq!(freeze.set_to(u64::MAX).apply(0b1), Some(1 << 12 | 0b1));
    /// assert_eq!(freeze.set_to(0).apply(0b1), None); // Nothing is to be written.
    /// ```
    pub const fn set_to(&self, value: u64) -> MsrUpdate {
        // SAFETY: by the promise of `new`.
        unsafe { MsrUpdate::new(self.register, self.bits & !value, self.bits & value) }
    }

    /// Returns an [`MsrUpdate`] that only reads the register.
    pub const fn read(&self) -> MsrUpdate {
        MsrUpdate::read(self.register)
    }
}
