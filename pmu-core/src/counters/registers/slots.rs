//! The slots that a unit's counters need in a [`CounterMemory`](crate::CounterMemory).

use crate::counters::names::counter_id::{CounterSet, MAX_FIXED, MAX_GENERAL};
use crate::counters::registers::unit::CounterUnit;

impl CounterUnit {
    /// Returns the number of slots that these counters need: one for each slot up to the last.
    pub(crate) fn slots_needed(&self, counters: CounterSet) -> usize {
        counters.last().map_or(0, |last| {
            let first = if last.is_fixed() { self.first_fixed_slot() } else { 0 };
            first + usize::from(last.number()) + 1
        })
    }

    /// Returns the counters for which this number of slots is enough.
    pub(crate) fn addressable_with(&self, slots: usize) -> CounterSet {
        let first = |count: usize, most: usize| (1u64 << count.min(most)) - 1;
        let fixed = first(slots.saturating_sub(self.first_fixed_slot()), MAX_FIXED) as u8;
        CounterSet::from_bits(first(slots, MAX_GENERAL)) | CounterSet::fixed(fixed)
    }

    pub(crate) fn first_fixed_slot(&self) -> usize {
        (u32::BITS - (self.counters().bits() as u32).leading_zeros()) as usize
    }
}
