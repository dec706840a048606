//! Events that the kernel's calls count, in the table of a processor's events.
//!
//! A period ends as the count reaches the value in the place that holds a counter's last value for other events. So an
//! interrupt and the task that it interrupts need no order between them: the count only grows, and whoever moves that
//! value on reports the sample.

use core::sync::atomic::Ordering::Relaxed;

use crate::counters::events::count::Period;
use crate::counters::events::software::SoftwareEvent;
use crate::counters::names::EventId;
use crate::counters::shared::entry::{EventEntry, EventState};
use crate::counters::shared::table::EventTable;

impl EventTable {
    /// Lets the software events of an event's group, or of all groups, count no more: a counter of the group faulted.
    pub(crate) fn stop_followers(&self, of: Option<EventId>) {
        let takes = |group| {
            self.opened().any(|(_, entry)| entry.group() == group && !entry.is_without_counter())
        };
        for (event, entry) in self.opened() {
            let is_its = of.is_none_or(|of| self.are_together(of, event));
            if entry.counts_in_software() && is_its && entry.is_grouped() && takes(entry.group()) {
                entry.set_state(EventState::lost(entry));
            }
        }
    }

    /// Returns a period that an event may have: one that is not below the shortest.
    pub(crate) fn at_least_min_of(&self, entry: &EventEntry, period: u64) -> u64 {
        period.max(self.min_period_of(entry.members_select()))
    }
}

impl EventState {
    /// Returns the state of an enabled software event whose group has lost a counter: a rotation gives the group
    /// another one if it rotates, and otherwise a task enables it again.
    pub(crate) fn lost(entry: &EventEntry) -> Self {
        if entry.rotates() { Self::Waiting } else { Self::Refused }
    }
}

impl EventEntry {
    /// Returns whether the kernel's calls count the event.
    pub(crate) fn is_software(&self) -> bool {
        self.members_select().is_software()
    }

    /// Returns which event the kernel's calls count.
    pub(crate) fn software(&self) -> Option<SoftwareEvent> {
        SoftwareEvent::of_select(self.members_select())
    }

    pub(crate) fn counts_in_software(&self) -> bool {
        self.is_software() && self.state() == EventState::Counting
    }

    pub(crate) fn is_clock(&self) -> bool {
        self.software().is_some_and(SoftwareEvent::is_clock)
    }

    pub(crate) fn is_of_mode(&self, in_user: bool) -> bool {
        self.select().counts_in(in_user)
    }

    /// Returns the count at the time `now`. During an addition of time on the same processor, it may lack that time.
    pub(crate) fn software_value(&self, now: u64) -> u64 {
        let runs = self.is_clock() && self.state() == EventState::Counting;
        let passed = if runs { self.time_since(now) } else { 0 };
        self.total.load(Relaxed).wrapping_add(passed)
    }

    /// Adds the time up to `now`, which is also the count of a clock.
    pub(crate) fn add_software_time(&self, now: u64) {
        let value = self.software_value(now);
        self.add_time(now, true);
        if self.is_clock() {
            self.total.store(value, Relaxed);
        }
    }

    /// Begins a period at `now`, or what is left of the one that was under way.
    pub(crate) fn begin_software(&self, now: u64) {
        let left = self.period.begin_or_resume();
        self.counted_to.store(self.software_value(now).wrapping_add(left), Relaxed);
    }

    /// Begins a period at `now`, of the length that `change` makes of the one that is set.
    pub(crate) fn begin_software_anew(&self, now: u64, change: impl Fn(u64) -> u64) {
        self.period.change(change);
        self.begin_software(now);
    }

    /// Returns what is left of the period at this count; 0 if it has ended.
    pub(crate) fn left_at(&self, value: u64) -> u64 {
        let left = self.counted_to.load(Relaxed).wrapping_sub(value);
        if left > Period::MAX { 0 } else { left }
    }

    /// Returns what is left of the period of an event that does not count; 0 if it has none.
    pub(crate) fn left_of_period(&self) -> u64 {
        let left = self.left_at(self.total.load(Relaxed));
        // A period that has ended is reported with the next occurrence.
        if self.period.reports() { left.max(1) } else { 0 }
    }

    /// Ends the periods that are over at a count. `report` gets their sum, unless the event is silent.
    pub(crate) fn end_periods(&self, value: u64, report: impl FnOnce(u64)) {
        let every = self.period.every();
        let (period, ends) = (every & !Period::SILENT, self.counted_to.load(Relaxed));
        let beyond = value.wrapping_sub(ends);
        // Modulo 2^64: a difference beyond any period means that the end is still ahead.
        if beyond > Period::MAX {
            return;
        }
        // All but the first are of the present length.
        let Some(more) = beyond.checked_div(period) else { return };
        // No product here overflows: it is at most `beyond`, which is at most the longest period.
        let next = ends.wrapping_add(more * period).wrapping_add(period);
        if self.counted_to.compare_exchange(ends, next, Relaxed, Relaxed).is_err() {
            return; // A nested interrupt reports them.
        }
        let over = self.period.ended().wrapping_add(more * period);
        self.period.set_current(period);
        if every & Period::SILENT == 0 {
            report(over);
        }
        // The next period is of the length that the report may have set.
        let changed = self.period.every() & !Period::SILENT;
        let corrected = next.wrapping_sub(period).wrapping_add(changed);
        // Unless a nested call has begun another period.
        if changed != period
            && self.counted_to.compare_exchange(next, corrected, Relaxed, Relaxed).is_ok()
        {
            self.period.set_current(changed);
        }
    }

    /// Adds to the count, and leaves the period as it is.
    pub(crate) fn shift_period(&self, more: u64) {
        self.counted_to.fetch_add(more, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::events::event::Event;
    use crate::counters::names::CounterSet;
    use crate::counters::registers::unit::CounterUnit;

    fn entry(event: Event) -> EventEntry {
        let entry = EventEntry::new();
        let select = event.software_event().unwrap().select();
        entry.open(&event, &CounterUnit::NONE, (select, CounterSet::NONE));
        entry.begin_software(0);
        entry.set_state(EventState::Counting);
        entry
    }

    /// Against a model that counts one occurrence at a time.
    #[test]
    fn periods_end_as_if_each_occurrence_were_told_alone() {
        for period in [1, 2, 7, 100] {
            let entry = entry(Event::software(SoftwareEvent::PageFaults).every(period));
            let (mut total, mut left, mut seed) = (0_u64, period, 12_345_u64);
            for _ in 0..500 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let occurrences = seed >> 60;
                let mut expected = 0;
                for _ in 0..occurrences {
                    left -= 1;
                    if left == 0 {
                        (left, expected) = (period, expected + period);
                    }
                }
                total += occurrences;
                let mut reported = 0;
                let value = entry.total.fetch_add(occurrences, Relaxed) + occurrences;
                entry.end_periods(value, |period| reported += period);
                assert_eq!((reported, entry.left_of_period()), (expected, left), "{period}");
            }
            assert_eq!(entry.count().value, total);
        }
    }

    #[test]
    fn a_report_sets_the_period_that_begins() {
        let entry = entry(Event::software(SoftwareEvent::ContextSwitches).every(10));
        entry.end_periods(10, |over| {
            assert_eq!(over, 10);
            entry.period.set(3);
        });
        entry.end_periods(12, |_| panic!("too early"));
        let mut over = 0;
        entry.end_periods(13, |period| over = period);
        assert_eq!(over, 3);
    }

    #[test]
    fn a_silent_event_loses_no_step() {
        let entry = entry(Event::software(SoftwareEvent::PageFaults).every(5));
        entry.period.silence();
        entry.end_periods(23, |_| panic!("it is silent"));
        entry.period.report_again();
        let mut over = 0;
        entry.end_periods(25, |period| over = period);
        assert_eq!(over, 5);
    }

    #[test]
    fn the_greatest_count_ends_no_loop_and_no_arithmetic() {
        let entry = entry(Event::software(SoftwareEvent::PageFaults).every(Period::MAX));
        for value in [Period::MAX - 1, u64::MAX, u64::MAX - 1, 5, Period::MAX] {
            entry.end_periods(value, |_| ());
        }
        let entry = self::entry(Event::software(SoftwareEvent::PageFaults).every(1));
        let mut over = 0;
        entry.end_periods(Period::MAX, |period| over = period);
        assert_eq!(over, Period::MAX);
    }
}
