//! One hardware counter: its registers, and its arithmetic.

use crate::counters::registers::select::EventSelect;
use crate::msr::access::MsrAccess;
use crate::msr::address::{MsrAddress, PmcIndex};
use crate::msr::backend::MsrBackend;
use crate::msr::fault::MsrFault;

/// The longest period of a counter whose writes take 32 bits and extend their sign (SDM vol. 3B, "Full-Width Writes to
/// Performance Counter Registers").
const NARROW_MAX_LOAD: u64 = (1 << 31) - 1;

/// The register that controls one counter: an event select, or the register that all fixed counters share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum CounterControl {
    /// The event select register of one general counter.
    Select(MsrAddress),
    /// The bits of one fixed counter in the fixed counters' control register. All fixed counters share this register.
    Shared {
        /// The shared control register.
        register: MsrAddress,
        /// The fixed counter's number.
        counter: u8,
    },
}

impl CounterControl {
    /// Returns the address of the control register.
    #[inline]
    pub const fn register(self) -> MsrAddress {
        match self {
            Self::Select(register) | Self::Shared { register, .. } => register,
        }
    }

    /// Returns the bits of the register that are the counter's.
    pub(crate) const fn mask(self) -> u64 {
        match self {
            Self::Select(_) => u64::MAX,
            // With bits 32 + 4n, adaptive records, and 33 + 4n, RDPMC user disable (SDM vol. 3B, IA32_FIXED_CTR_CTRL).
            Self::Shared { counter, .. } => (0b1111 | 0b11 << 32) << (4 * (counter % 8)),
        }
    }

    /// Returns the bit that makes an overflow interrupt.
    pub(crate) const fn interrupt(self) -> u64 {
        match self {
            Self::Select(_) => EventSelect::INTERRUPT,
            Self::Shared { counter, .. } => 1 << 3 << (4 * (counter % 8)),
        }
    }

    /// Returns the value of these bits with which the counter counts `select`, and interrupts.
    pub(crate) const fn running(self, select: EventSelect) -> u64 {
        match self {
            Self::Select(_) => select.running().select_bits(),
            Self::Shared { counter, .. } => {
                let bits = select.select_bits();
                let modes = bits >> 17 & 1 | (bits >> 16 & 1) << 1;
                let (interrupts, any_thread) = (1 << 3, (bits >> 21 & 1) << 2);
                let no_user_rdpmc = (bits >> 37 & 1) << 33;
                (modes | any_thread | interrupts | no_user_rdpmc) << (4 * (counter % 8))
            }
        }
    }
}

impl CounterControl {
    /// Returns bits of a running counter, changed as facilities need them.
    pub(crate) const fn with(self, running: u64, silent: bool, adaptive: bool) -> u64 {
        let is_adaptive = match self {
            Self::Select(_) => 1 << 34,
            Self::Shared { counter, .. } => 1 << 32 << (4 * (counter % 8)),
        };
        let interrupts = if silent { running & !self.interrupt() } else { running };
        interrupts | if adaptive { is_adaptive } else { 0 }
    }
}

/// The registers of one hardware counter. [`CounterUnit::counter`](crate::CounterUnit::counter) returns this value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Counter {
    pub(crate) control: CounterControl,
    pub(crate) value: MsrAddress,
    /// The second address, at which a write takes the whole value, if there is one.
    pub(crate) full: Option<MsrAddress>,
    pub(crate) sign_extended: bool,
    pub(crate) rdpmc: Option<PmcIndex>,
    /// One bit for each bit of the counter.
    pub(crate) mask: u64,
}

impl Counter {
    /// Returns the register that controls the counter.
    #[inline]
    pub const fn control(&self) -> CounterControl {
        self.control
    }

    /// Returns the register that holds the counter's value.
    #[inline]
    pub const fn value_register(&self) -> MsrAddress {
        self.value
    }

    /// Returns the counter's index for RDPMC, or `None` if only RDMSR reads the counter.
    #[inline]
    pub const fn rdpmc_index(&self) -> Option<PmcIndex> {
        self.rdpmc
    }

    /// Returns the counter's width in bits: from 32 to 64, or less if it is a sampling unit.
    pub const fn width(&self) -> u32 {
        self.mask.count_ones()
    }

    /// Returns the start value from which the counter overflows after `events` events.
    ///
    /// Some processors take only the low 32 bits of a write, and sign-extend these bits. On these processors, the
    /// result is correct only if `events` is below 2³¹.
    ///
    /// ```
    /// # use pmu_core::registers::Counter;
    /// # use pmu_core::msr::{MsrAccess, MsrBackend, MsrFault};
    /// /// Arms a counter of a unit for a period, while the counter is stopped.
    /// fn arm(msr: &impl MsrBackend, counter: &Counter, events: u64) -> Result<(), MsrFault> {
    ///     msr.wrmsr_retrying(counter.value_register(), counter.preload(events))
    /// }
    /// ```
    #[inline]
    pub const fn preload(&self, events: u64) -> u64 {
        events.wrapping_neg() & self.mask
    }

    /// Returns whether a counter that was [preloaded](Self::preload), and now reads `value`, has overflowed.
    ///
    /// The result is correct until the counter has counted half of its range after the overflow.
    ///
    /// ```
    /// # use pmu_core::registers::Counter;
    /// # use pmu_core::msr::{MsrAccess, MsrBackend, MsrFault};
    /// /// Without an overflow status: returns whether a counter that was loaded with `preload` has overflowed.
    /// fn is_overflowed(msr: &impl MsrBackend, counter: &Counter) -> Result<bool, MsrFault> {
    ///     let value = match counter.rdpmc_index() {
    ///         Some(index) => msr.rdpmc_retrying(index)?,
    ///         None => msr.rdmsr_retrying(counter.value_register())?,
    ///     };
    ///     Ok(counter.has_overflowed(value))
    /// }
    /// ```
    #[inline]
    pub const fn has_overflowed(&self, value: u64) -> bool {
        value & (self.mask ^ self.mask >> 1) == 0
    }

    /// Returns a mask with one bit for each bit of the counter.
    #[inline]
    pub const fn mask(&self) -> u64 {
        self.mask
    }

    /// Writes `value` to the stopped counter, at the counter's full-width address if there is one. Without full-width
    /// writes, `value` must be a [preload](Self::preload) for less than 2³¹ events.
    ///
    /// # Errors
    /// The write failed.
    pub fn load(&self, msr: &impl MsrBackend, value: u64) -> Result<(), MsrFault> {
        msr.wrmsr_retrying(self.register_for(value), value)
    }

    /// Returns the longest period that the counter can be loaded for. `full_width`: the processor has full-width
    /// writes.
    pub(crate) const fn max_load(&self, full_width: bool) -> u64 {
        if self.sign_extended && !(full_width && self.full.is_some()) {
            NARROW_MAX_LOAD
        } else {
            self.mask >> 1
        }
    }

    /// Returns the greatest number of events that the processor can load after a record. Its register may have only 32
    /// bits.
    pub(crate) const fn max_reload(&self) -> u64 {
        let longest = self.mask >> 1;
        if longest < NARROW_MAX_LOAD { longest } else { NARROW_MAX_LOAD }
    }

    /// Returns the value with which the counter of an event without a period continues: one that overflows within
    /// `max_load`. Its lower bits stay as in `value`, so that they count on across the counter's interrupts.
    pub(crate) const fn rearmed_value(&self, value: u64, full_width: bool) -> u64 {
        let max_load = self.max_load(full_width);
        value & max_load | self.mask & !max_load
    }

    /// Returns the address at which a write makes the counter hold `value`: the first address where that suffices.
    pub(crate) fn register_for(&self, value: u64) -> MsrAddress {
        let extended = i64::from(value as u32 as i32) as u64 & self.mask;
        match self.full {
            Some(full) if self.sign_extended && extended != value => full,
            _ => self.value,
        }
    }

    /// Creates a sampling unit as a counter of `width` bits, at most 31. `register` is the unit's control register, by
    /// which errors name it. The session never accesses the register: the
    /// [facility](crate::facility::EventFacility::access_unit) does.
    pub const fn of_unit(register: MsrAddress, width: u8) -> Self {
        Self {
            control: CounterControl::Select(register),
            value: register,
            full: None,
            sign_extended: false,
            rdpmc: None,
            mask: (1 << (width % 32)) - 1,
        }
    }

    /// Returns whether the counter is a sampling unit, which a facility drives: a hardware counter has 32 bits or more.
    #[inline]
    pub(crate) const fn is_unit(&self) -> bool {
        self.mask >> 31 == 0
    }

    /// Reads the counter: by RDPMC, or by RDMSR if it has no index.
    #[inline]
    pub(crate) fn read(&self, msr: &impl MsrBackend) -> Result<u64, MsrFault> {
        match self.rdpmc {
            Some(index) => msr.rdpmc_retrying(index),
            None => msr.rdmsr_retrying(self.value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(width: u32, sign_extended: bool) -> Counter {
        // SAFETY: nothing accesses them.
        let (control, value, full) =
            unsafe { (MsrAddress::new(0), MsrAddress::new(1), Some(MsrAddress::new(2))) };
        let mask = u64::MAX >> (64 - width);
        let control = CounterControl::Select(control);
        Counter { control, value, full, sign_extended, rdpmc: None, mask }
    }

    #[test]
    fn a_preloaded_counter_overflows_after_exactly_its_events() {
        for width in [32, 40, 48, 64] {
            let counter = counter(width, true);
            for events in [1, 0x1000, 0x1_0000, 0x7FFF_FFFF] {
                let start = counter.preload(events);
                // The result of a write that the processor sign-extends from bit 31.
                assert_eq!(start as u32 as i32 as i64 as u64 & counter.mask(), start);
                let before = start.wrapping_add(events - 1) & counter.mask();
                let after = start.wrapping_add(events) & counter.mask();
                assert!(!counter.has_overflowed(before));
                assert!(counter.has_overflowed(after));
                assert_eq!(after, 0);
            }
        }
    }

    #[test]
    fn a_value_that_a_narrow_write_would_change_goes_to_the_other_address() {
        let narrow = counter(48, true);
        for (value, address) in [
            (0, 1),
            (0x7FFF_FFFF, 1),
            (0x8000_0000, 2),
            (0xFFFF_8000_0000, 1),
            (0xFFFF_7FFF_FFFF, 2),
            (0x8000_0000_0000, 2),
        ] {
            assert_eq!(narrow.register_for(value).get(), address, "{value:#X}");
            assert_eq!(counter(48, false).register_for(value).get(), 1, "{value:#X}");
        }
        assert_eq!([narrow.max_load(false), narrow.max_load(true)], [0x7FFF_FFFF, (1 << 47) - 1]);
        assert_eq!(counter(48, false).max_load(false), (1 << 47) - 1);
    }

    #[test]
    fn what_is_only_counted_goes_on_where_a_wrap_is_seen() {
        let counter = counter(48, true);
        for (full_width, start) in [(false, 0xFFFF_8000_0000), (true, 0x8000_0000_0000)] {
            let max_load = counter.max_load(full_width);
            for value in [0, 5, max_load] {
                let on = counter.rearmed_value(value, full_width);
                assert_eq!(on, start | value);
                assert!(!counter.has_overflowed(on));
                // Every value between it and the next overflow is greater, and every one within the max_load of it
                // less.
                assert!(max_load < on);
                let register = counter.register_for(on);
                assert!(full_width || register == counter.value_register(), "{on:#X}");
            }
        }
    }

    /// SDM vol. 3B, "IA32_FIXED_CTR_CTRL": EN of two bits (OS, then user), AnyThread, PMI; RDPMC user
    /// disable at bit 33 + 4n.
    #[test]
    fn a_fixed_counters_bits_say_what_the_select_says() {
        // SAFETY: nothing accesses it.
        let register = unsafe { MsrAddress::new(0x38D) };
        let of = |counter| CounterControl::Shared { register, counter };
        let select = |bits| EventSelect::from_bits(bits);
        assert_eq!(of(0).running(select(0x3_00C0)), 0b1011);
        assert_eq!(of(1).running(select(0x1_003C)), 0b1010_0000);
        assert_eq!(of(2).running(select(0x2_0300)), 0b1001_0000_0000);
        assert_eq!(of(2).running(select(0x23_0300)), 0b1111_0000_0000);
        assert_eq!(of(3).running(select(1 << 37 | 0x1_0400)), 1 << 45 | 0b1010 << 12);
        assert_eq!(of(3).mask(), 0b11 << 44 | 0b1111 << 12);
        // Bit 32 + 4n: adaptive records. Without PMI, no overflow interrupts.
        let silent = |bits, adaptive| of(1).with(of(1).running(select(bits)), true, adaptive);
        assert_eq!(silent(0x3_003C, true), 1 << 36 | 0b0011_0000);
        assert_eq!(silent(0x1_003C, false), 0b0010_0000);
    }
}
