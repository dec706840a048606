//! One hardware counter: its registers, and its arithmetic. Registers that the examples name are x86's.

use core::fmt;

use crate::access::address::{CounterIndex, RegisterAddress};
use crate::access::backend::{AccessFault, RegisterAccess, RegisterBackend};
use crate::counters::names::MAX_FIXED;

/// The longest period of a counter whose writes take 32 bits and extend their sign (SDM vol. 3B, "Full-Width Writes to
/// Performance Counter Registers").
const NARROW_MAX_LOAD: u64 = (1 << 31) - 1;

/// The register that controls one counter: an event select, or the register that all fixed counters share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum CounterControl {
    /// The event select register of one general counter.
    Select(RegisterAddress),
    /// The bits of one fixed counter in the fixed counters' control register. All fixed counters share this register.
    Shared {
        /// The shared control register.
        register: RegisterAddress,
        /// The fixed counter's number.
        counter: u8,
    },
}

impl CounterControl {
    /// Returns the address of the control register.
    #[inline]
    pub const fn register(self) -> RegisterAddress {
        match self {
            Self::Select(register) | Self::Shared { register, .. } => register,
        }
    }
}

/// The registers of one hardware counter. [`CounterUnit::counter`](crate::CounterUnit::counter) returns this value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Counter {
    pub(crate) control: CounterControl,
    pub(crate) value: RegisterAddress,
    /// The second address, at which a write takes the whole value, if there is one.
    pub(crate) full: Option<RegisterAddress>,
    pub(crate) sign_extended: bool,
    pub(crate) index: Option<CounterIndex>,
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
    pub const fn value_register(&self) -> RegisterAddress {
        self.value
    }

    /// Returns the index by which [`read_counter`](RegisterBackend::read_counter) reads the counter, or `None` if only
    /// its register does.
    #[inline]
    pub const fn read_index(&self) -> Option<CounterIndex> {
        self.index
    }

    /// Returns the counter's width in bits: from 32 to 64, or less if it is a sampling unit.
    pub const fn width(&self) -> u32 {
        u64::BITS - self.mask.leading_zeros()
    }

    /// Returns the start value from which the counter overflows after `events` events.
    ///
    /// Some processors take only the low 32 bits of a write, and sign-extend these bits. On these processors, the
    /// result is correct only if `events` is below 2³¹.
    ///
    /// ```
    /// # use pmu_core::registers::Counter;
    /// # use pmu_core::access::{RegisterAccess, RegisterBackend, AccessFault};
    /// /// Arms a counter of a unit for a period, while the counter is stopped.
    /// fn arm(msr: &impl RegisterBackend, counter: &Counter, events: u64) -> Result<(), AccessFault> {
    ///     msr.write_retrying(counter.value_register(), counter.preload(events))
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
    /// # use pmu_core::access::{RegisterAccess, RegisterBackend, AccessFault};
    /// /// Without an overflow status: returns whether a counter that was loaded with `preload` has overflowed.
    /// fn is_overflowed(msr: &impl RegisterBackend, counter: &Counter) -> Result<bool, AccessFault> {
    ///     let value = match counter.read_index() {
    ///         Some(index) => msr.read_counter_retrying(index)?,
    ///         None => msr.read_retrying(counter.value_register())?,
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
    pub fn load(&self, msr: &impl RegisterBackend, value: u64) -> Result<(), AccessFault> {
        msr.write_retrying(self.register_for(value), value)
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
    pub(crate) fn register_for(&self, value: u64) -> RegisterAddress {
        let extended = i64::from(value as u32 as i32) as u64 & self.mask;
        match self.full {
            Some(full) if self.sign_extended && extended != value => full,
            _ => self.value,
        }
    }

    /// Creates a sampling unit as a counter of `width` bits, at most 31. `register` is the unit's control register, by
    /// which errors name it. The session never accesses the register: the
    /// [facility](crate::facility::EventFacility::access_unit) does.
    pub const fn of_unit(register: RegisterAddress, width: u8) -> Self {
        Self {
            control: CounterControl::Select(register),
            value: register,
            full: None,
            sign_extended: false,
            index: None,
            mask: (1 << (width % 32)) - 1,
        }
    }

    /// Returns whether the counter is a sampling unit, which a facility drives: a hardware counter has 32 bits or more.
    #[inline]
    pub(crate) const fn is_unit(&self) -> bool {
        self.mask >> 31 == 0
    }

    /// Returns the index by which user mode reads the counter, if that is permitted.
    pub(crate) fn user_index(
        &self,
        msr: &impl RegisterBackend,
        permitted: bool,
    ) -> Option<CounterIndex> {
        self.index.filter(|_| permitted).map(|index| msr.user_index(index))
    }

    /// Reads the counter: by its index, or from its register if it has none.
    #[inline]
    pub(crate) fn read(&self, msr: &impl RegisterBackend) -> Result<u64, AccessFault> {
        match self.index {
            Some(index) => msr.read_counter_retrying(index),
            None => msr.read_retrying(self.value),
        }
    }
}

/// Value of an event-select register: the event that the counter counts, and the conditions under which it counts.
///
/// The vendors' layouts agree in bits 31:0, except for a few reserved bits. AMD's event numbers continue in bits 35:32.
/// Each vendor crate has a register type that names each bit and converts into `EventSelect`. Source: SDM vol. 3B,
/// "Layout of IA32_PERFEVTSELx MSRs"; APM vol. 2, "Core Performance Event-Select Register".
///
/// ```
/// use pmu_core::registers::EventSelect;
/// let cycles = EventSelect::from_bits(0x3_003C); // event 0x3C, at every privilege
/// assert_eq!(cycles.running().select_bits(), 0x53_003C);
/// assert_eq!(EventSelect::from_bits(0xF_0000_02D0).event_number(), 0xFD0);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EventSelect(u64);

impl EventSelect {
    /// Event and unit mask that stand for part 0 of another event's occurrences, as in Linux perf.
    pub(crate) const PART: u16 = 0x8000;

    /// Bit 19, which stands for pin control and is legal in no event: the select is for a
    /// [sampling unit](crate::facility::EventFacility::UNITS), and bits 15:0 and 31:24 are the unit's.
    pub const OF_UNIT: u64 = 1 << 19;

    /// Bit 62, which no register has: bits 7:0 are the number of a [`SoftwareEvent`](crate::SoftwareEvent).
    pub(crate) const SOFTWARE: u64 = 1 << 62;

    /// Returns whether the kernel's calls count the event.
    pub(crate) const fn is_software(self) -> bool {
        self.0 & Self::SOFTWARE != 0
    }

    /// Creates a select from the value of an event-select register.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns the value of the event-select register.
    pub const fn select_bits(self) -> u64 {
        self.0
    }

    /// Returns whether the select is for a [sampling unit](Self::OF_UNIT).
    pub const fn is_of_unit(self) -> bool {
        self.0 & Self::OF_UNIT != 0
    }
}

impl fmt::Debug for EventSelect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventSelect({:#X})", self.0)
    }
}

/// Registers of general counters, at regular distances from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CounterBank {
    /// Address of the first counter's event select.
    pub select: u32,
    /// Address of the first counter's value register.
    pub value: u32,
    /// Difference between the register addresses of adjacent counters.
    pub step: u32,
    /// Number of counters that have an index, as for RDPMC. These are the counters with the lowest numbers. The index
    /// is the counter's number.
    pub indexed: u8,
    /// Set if a write to a value register takes only the low 32 bits of the value, and sign-extends them.
    pub sign_extended: bool,
    /// Set if the counters also count events whose bits 7:0 are 0, although the unit has fixed counters. Otherwise such
    /// a select stands for the event of a fixed counter, as on Intel.
    pub counts_every_number: bool,
}

/// Full-width addresses of the general counters' value registers: a write to such an address takes all bits of the
/// value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FullWidth {
    /// Full-width address of the first counter's value register, such as 0x4C1 (`IA32_A_PMC0`).
    pub value: u32,
    /// Address of the read-only register that declares whether the full-width addresses exist.
    pub capabilities: u32,
    /// The bit of `capabilities` that is set if the full-width addresses exist.
    pub declared: u64,
}

/// Registers of fixed counters. Each fixed counter counts one event, and has no event select. All fixed counters share
/// a control register, in which each counter has four bits.
///
/// The lowest of the four bits enables counting at privilege level 0. The next bits enable counting above level 0,
/// counting for all threads of the core, and interrupts on overflow. The index of a fixed counter has bit 30 set, as
/// for RDPMC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FixedCounters {
    /// Address of the control register that all fixed counters share.
    pub control: u32,
    /// Address of the first counter's value register.
    pub value: u32,
    /// Difference between the addresses of adjacent counters' value registers.
    pub step: u32,
    /// Each counter's event: the event number and unit mask, as in bits 15:0 of an event select. A counter whose value
    /// is 0 counts no event that is opened. If the processor gives the counter's event no number, the vendor's crate
    /// makes one up whose bits 7:0 are 0, as 0x0300 for Intel's reference cycles: no general counter counts it then,
    /// unless the bank [counts every number](CounterBank::counts_every_number).
    pub events: [u16; MAX_FIXED],
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(width: u32, sign_extended: bool) -> Counter {
        // SAFETY: nothing accesses them.
        let (control, value, full) = unsafe {
            (RegisterAddress::new(0), RegisterAddress::new(1), Some(RegisterAddress::new(2)))
        };
        let mask = u64::MAX >> (64 - width);
        let control = CounterControl::Select(control);
        Counter { control, value, full, sign_extended, index: None, mask }
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
}
