//! Addresses of registers, whose creator promises that any value may be written to the register. Registers that the
//! examples name are x86's.

use core::fmt;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

/// Address of a register to which safe code may write any value.
///
/// A write of a system register can redirect SYSCALL, turn off paging protection or make the processor write to memory.
/// The method [`write`](crate::access::RegisterBackend::write) is nevertheless a safe function, because it accepts only
/// a `RegisterAddress`. The caller of [`RegisterAddress::new`] promises that no value written to the register breaks
/// memory safety.
///
/// ```
/// use pmu_core::access::RegisterAddress;
/// // SAFETY: `IA32_PERFEVTSEL0` selects an event; no value of it makes the processor write to memory.
/// let select = unsafe { RegisterAddress::new(0x186) };
/// assert_eq!(select.get(), 0x186);
/// ```
///
/// Wrong: the register holds a pointer, and safe code could make this pointer point anywhere.
///
/// ```
/// # use pmu_core::access::RegisterAddress;
/// // SAFETY: not given. The processor writes its records to the area that `IA32_DS_AREA` names.
/// let ds_area = unsafe { RegisterAddress::new(0x600) };
/// # let _ = ds_area;
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RegisterAddress(u32);

impl RegisterAddress {
    /// Creates the address of the register with the number `address`.
    ///
    /// # Safety
    /// - No value written to this register breaks memory safety: the register holds no pointer that the processor
    ///   follows, and no value makes the processor write to memory. Event selects, counters and their global control
    ///   register meet this condition. `IA32_DS_AREA`, `IA32_PEBS_ENABLE` and `IA32_DEBUGCTL` do not: write these three
    ///   registers in an unsafe function that documents the caller's duties, and keep their `RegisterAddress` private.
    #[inline]
    pub const unsafe fn new(address: u32) -> Self {
        Self(address)
    }

    /// Returns the register's number. On x86, this is the value of ECX for RDMSR and WRMSR.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for RegisterAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegisterAddress({:#X})", self.0)
    }
}

/// Index by which a counter is read: on x86, RDPMC's operand in ECX. Any value is allowed, because reading a counter is
/// harmless.
///
/// ```
/// use pmu_core::access::CounterIndex;
/// // The first fixed counter of an Intel processor: bit 30 of ECX.
/// assert_eq!(CounterIndex::new(1 << 30).get(), 0x4000_0000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CounterIndex(u32);

impl CounterIndex {
    /// Creates an index.
    #[inline]
    pub const fn new(ecx: u32) -> Self {
        Self(ecx)
    }

    /// Returns the index's value.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// An `Option<RegisterAddress>` in four bytes. Zeros, as in new memory, stand for `None`. An address is inverted: so
/// only `FFFF_FFFFh`, which is no register's, cannot be told from `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) struct OptionalAddress(u32);

impl OptionalAddress {
    pub(crate) const NONE: Self = Self(0);

    pub(crate) const fn some(address: RegisterAddress) -> Self {
        Self(!address.get())
    }

    #[inline]
    pub(crate) const fn get(self) -> Option<RegisterAddress> {
        match self.0 {
            0 => None,
            // SAFETY: only `some` makes it, of an address that a `RegisterAddress` had.
            inverted => Some(unsafe { RegisterAddress::new(!inverted) }),
        }
    }
}

/// The same, shared.
#[derive(Debug)]
pub(crate) struct SharedAddress(AtomicU32);

impl SharedAddress {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(OptionalAddress::NONE.0))
    }

    pub(crate) fn store(&self, address: OptionalAddress) {
        self.0.store(address.0, Relaxed);
    }

    #[inline]
    pub(crate) fn load(&self) -> OptionalAddress {
        OptionalAddress(self.0.load(Relaxed))
    }
}

/// The bits that one owner has in a register with several owners, such as `IA32_DEBUGCTL`.
///
/// ```
/// use pmu_core::access::RegisterBits;
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
    /// Describes some bits of a register: the bits that are set in `bits`, in the register with the number `register`.
    ///
    /// # Safety
    /// - Setting and clearing any of the bits, while the register's other bits stay unchanged, does not break memory
    ///   safety.
    ///
    /// ```
    /// use pmu_core::access::RegisterBits;
    /// // SAFETY: bit 12 of IA32_DEBUGCTL, FREEZE_PERFMON_ON_PMI, stops counters, and no more.
    /// let freeze = unsafe { RegisterBits::new(0x1D9, 1 << 12) };
    /// # let _ = freeze;
    /// ```
    ///
    /// Wrong: describing bits of `IA32_DEBUGCTL` that make the processor store branches to memory.
    ///
    /// ```
    /// # use pmu_core::access::RegisterBits;
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
    /// # use pmu_core::access::RegisterBits;
    /// // SAFETY: FREEZE_PERFMON_ON_PMI alone: the processor writes no memory for it.
    /// let freeze = unsafe { RegisterBits::new(0x1D9, 1 << 12) };
    /// // Sets its bit, and leaves LBR (bit 0), which is another owner's.
    /// assert_eq!(freeze.set_to(u64::MAX).apply(0b1), Some(1 << 12 | 0b1));
    /// assert_eq!(freeze.set_to(0).apply(0b1), None); // Nothing is to be written.
    /// ```
    pub const fn set_to(&self, value: u64) -> RegisterUpdate {
        // SAFETY: by the promise of `new`.
        unsafe { RegisterUpdate::new(self.register, self.bits & !value, self.bits & value) }
    }

    /// Returns a [`RegisterUpdate`] that only reads the register.
    pub const fn read(&self) -> RegisterUpdate {
        RegisterUpdate::read(self.register)
    }
}

/// A change of selected bits of a register. Safe code must not write the whole register.
///
/// `IA32_DEBUGCTL` and `IA32_PEBS_ENABLE` have bits that make the processor write to memory. A `RegisterUpdate` never
/// changes these bits, and safe code can write these registers only through a `RegisterUpdate`.
///
/// ```
/// use pmu_core::access::RegisterUpdate;
/// // SAFETY: bit 12 of IA32_DEBUGCTL freezes the counters, and no more.
/// let freeze = unsafe { RegisterUpdate::new(0x1D9, 0, 1 << 12) };
/// assert_eq!(freeze.apply(0x3), Some(0x1003));
/// assert_eq!(freeze.apply(0x1003), None);
/// ```
///
/// Wrong: the bit makes the processor write to memory.
///
/// ```
/// # use pmu_core::access::RegisterUpdate;
/// // SAFETY: not given. Bit 7 of IA32_DEBUGCTL, BTS, stores branches into the Debug Store's buffer.
/// let trace = unsafe { RegisterUpdate::new(0x1D9, 0, 1 << 7) };
/// # let _ = trace;
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RegisterUpdate {
    register: u32,
    pub(crate) clear: u64,
    pub(crate) set: u64,
}

impl RegisterUpdate {
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

    /// Returns the register's number. On x86, this is the value of ECX for RDMSR and WRMSR.
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

impl fmt::Debug for RegisterUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { register, clear, set } = self;
        write!(f, "RegisterUpdate({register:#X}, clear {clear:#X}, set {set:#X})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_had_back_and_none_is_none() {
        assert_eq!(OptionalAddress::NONE.get(), None);
        let shared = SharedAddress::new();
        assert_eq!(shared.load().get(), None);
        for number in [0, 1, 0x1A6, 0xC001_0200, u32::MAX - 1] {
            // SAFETY: nothing accesses the register.
            let address = unsafe { RegisterAddress::new(number) };
            shared.store(OptionalAddress::some(address));
            assert_eq!(shared.load().get(), Some(address), "{number:#X}");
        }
    }
}
