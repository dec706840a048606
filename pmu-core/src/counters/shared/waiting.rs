//! Records of an event that are not reported yet.

use crate::counters::registers::counter::Counter;

/// Records of a counter's event that wait in a facility's memory: the overflows are not reported yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Number of records.
    pub records: u32,
    /// Number of events for which the processor loaded the counter after each of them.
    pub reloaded: u64,
}

/// Returns the number of events since a precise event's counter had the value `counted_to`. If it is behind that value
/// now, the processor has loaded it with a record that was lost: only the events before that record are known.
pub(crate) const fn since_record(value: u64, counted_to: u64, mask: u64) -> u64 {
    let since = value.wrapping_sub(counted_to) & mask;
    if since > mask / 2 { counted_to.wrapping_neg() & mask } else { since }
}

impl Waiting {
    /// No record waits.
    pub const NONE: Self = Self { records: 0, reloaded: 0 };

    /// Adds what was counted up to the last record to a total. A total comes with the counter's value up to which it
    /// was added.
    pub(crate) fn added_to(
        self,
        (total, counted_to): (u64, u64),
        registers: &Counter,
    ) -> (u64, u64) {
        let Some(more) = self.records.checked_sub(1) else { return (total, counted_to) };
        let first = registers.mask().wrapping_sub(counted_to).wrapping_add(1);
        let others = u64::from(more).wrapping_mul(self.reloaded);
        (total.wrapping_add(first).wrapping_add(others), registers.preload(self.reloaded))
    }
}
