//! Software events: counted by the calls of the kernel, and sampled by the call that ends a period, or by a timer of
//! clocks.

use core::sync::atomic::Ordering::Relaxed;

use crate::counters::events::count::EventOverflow;
use crate::counters::events::software::SoftwareEvent;
use crate::counters::names::{CounterId, EventId};
use crate::counters::shared::entry::{EventEntry, EventState};
use crate::counters::shared::table::EventTable;

impl EventTable {
    /// Counts something that happened on this table's processor: in each event of this kind that counts now. Minor and
    /// major page faults are page faults, too. For each event whose period ended, `overflowed` gets one overflow; its
    /// period is that of all periods that ended. `in_user`: it happened in user mode.
    ///
    /// ```
    /// use pmu_core::SoftwareEvent;
    /// use pmu_core::interrupt::EventOverflow;
    /// use pmu_core::memory::EventTable;
    /// /// The end of the kernel's page fault handler. The frame is the sample's.
    /// fn faulted(events: &EventTable, address: u64, in_user: bool, push: impl Fn(u64, u64)) {
    ///     let sample = |overflow: EventOverflow| push(overflow.tag, address);
    ///     events.happened(SoftwareEvent::MinorFaults, 1, in_user, sample);
    /// }
    /// ```
    ///
    /// # Context
    /// Task or interrupt on the table's processor, where the task cannot move to another processor during the call. Not
    /// an NMI. The call accesses no register, and its time is limited by the capacity of the table.
    pub fn happened(
        &self,
        what: SoftwareEvent,
        occurrences: u32,
        in_user: bool,
        mut overflowed: impl FnMut(EventOverflow),
    ) {
        for (event, entry) in self.opened() {
            let counts = entry.software().is_some_and(|of| of.counts(what));
            if counts && entry.state() == EventState::Counting && entry.is_of_mode(in_user) {
                // One atomic addition: an interrupt in between gets a value of its own, so no occurrence is counted
                // twice.
                let more = u64::from(occurrences);
                let value = entry.total.fetch_add(more, Relaxed).wrapping_add(more);
                entry.end_periods(value, |period| {
                    let (counter, tag) = (CounterId::SOFTWARE, entry.tag());
                    overflowed(EventOverflow { event, period, counter, tag });
                });
            }
        }
    }

    /// Reports the samples of the clocks whose periods have ended at `now`, as [`happened`](Self::happened) does.
    /// Returns the nanoseconds until the next period ends; `None` if no clock is sampled.
    ///
    /// A kernel's timer calls this at the end of that time, and a kernel asks for the time with
    /// [`next_clock`](Self::next_clock) after each operation of the session. A sample may come late, if the timer
    /// interrupts such an operation, and never early.
    ///
    /// ```
    /// use pmu_core::interrupt::EventOverflow;
    /// use pmu_core::memory::EventTable;
    /// /// The handler of a timer that `arm` sets.
    /// fn timer(events: &EventTable, now: u64, in_user: bool, push: impl FnMut(EventOverflow), arm: fn(Option<u64>)) {
    ///     arm(events.sample_clocks(now, in_user, push));
    /// }
    /// ```
    ///
    /// # Context
    /// As [`happened`](Self::happened).
    pub fn sample_clocks(
        &self,
        now: u64,
        in_user: bool,
        mut overflowed: impl FnMut(EventOverflow),
    ) -> Option<u64> {
        for (event, entry) in self.sampled_clocks() {
            entry.end_periods(entry.software_value(now), |period| {
                // A clock advances in both modes. The mode only decides whether the end of a period is a sample.
                if entry.is_of_mode(in_user) {
                    let (counter, tag) = (CounterId::SOFTWARE, entry.tag());
                    overflowed(EventOverflow { event, period, counter, tag });
                }
            });
        }
        self.next_clock(now)
    }

    /// Returns the nanoseconds until the next period of a clock that counts ends: 0 if one has ended.
    ///
    /// # Context
    /// As [`happened`](Self::happened).
    pub fn next_clock(&self, now: u64) -> Option<u64> {
        self.sampled_clocks().map(|(_, entry)| entry.left_at(entry.software_value(now))).min()
    }

    fn sampled_clocks(&self) -> impl Iterator<Item = (EventId, &EventEntry)> {
        self.opened().filter(|(_, entry)| {
            entry.is_clock() && entry.state() == EventState::Counting && entry.period.is_reported()
        })
    }
}
