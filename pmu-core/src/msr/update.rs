//! A change of some bits of a register that has other owners.

use core::fmt;

/// A change of selected bits of a register. Safe code must not write the whole register.
///
/// `IA32_DEBUGCTL` and `IA32_PEBS_ENABLE` have bits that make the processor write to memory. An `MsrUpdate` never
/// changes these bits, and safe code can write these registers only through an `MsrUpdate`.
///
/// ```
/// use pmu_core::msr::MsrUpdate;
/// // SAFETY: bit 12 of IA32_DEBUGCTL freezes the counters, and no more.
/// let freeze = unsafe { MsrUpdate::new(0x1D9, 0, 1 << 12) };
/// assert_eq!(freeze.apply(0x3), Some(0x1003));
/// assert_eq!(freeze.apply(0x1003), None);
/// ```
///
/// Wrong: the bit makes the processor write to memory.
///
/// ```
/// # use pmu_core::msr::MsrUpdate;
/// // SAFETY: not given. Bit 7 of IA32_DEBUGCTL, BTS, stores branches into the Debug Store's buffer.
/// let trace = unsafe { MsrUpdate::new(0x1D9, 0, 1 << 7) };
/// # let _ = trace;
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct MsrUpdate {
    register: u32,
    pub(crate) clear: u64,
    pub(crate) set: u64,
}

impl MsrUpdate {
    /// Describes a change of the register with the number `register`: the bits in `clear` become 0, and the bits in
    /// `set` become 1.
    ///
    /// # Safety
    /// - The change does not break memory safety, whatever value the register holds. This must be true at any time, and
    ///   for any number of repetitions.
    /// - The change is a read and a write. If an interrupt handler changes other bits of the register between the read
    ///   and the write, the write undoes the handler's change. Undoing the handler's change must not break memory
    ///   safety.
    #[inline]
    pub const unsafe fn new(register: u32, clear: u64, set: u64) -> Self {
        Self { register, clear, set }
    }

    /// Describes an access that reads the register with the number `register`, and changes nothing.
    #[inline]
    pub const fn read(register: u32) -> Self {
        Self { register, clear: 0, set: 0 }
    }

    /// Returns the register's number: the value of ECX for RDMSR and WRMSR.
    #[inline]
    pub const fn register(self) -> u32 {
        self.register
    }

    /// Returns the value to write to a register that holds `found`. Returns `None` if `found` needs no change.
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
