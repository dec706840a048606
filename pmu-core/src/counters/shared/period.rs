//! The period of an opened event, loaded into the counter in chunks, because a period may exceed the greatest load of a
//! counter.
//!
//! ```text
//!           first_chunk                     next_chunk, at an overflow, while something is left
//!   set ────────────────► a chunk counts ◄───────────────────────┐
//!    ▲                     │ │ │ └────────────────────────────────┘
//!    │     over: reported  │ │ │ set_resume: detached, with a rest of the chunk to go
//!    ├─────────────────────┘ │ └─────────────────────────────► resumes ──► first_chunk
//!    │ end_chunk: detached with an overflow pending ▲
//!    └───────────────────────┴──────────────────────┘ while something is left
//! ```
//!
//! `every` is the period that begins next, `current` the one under way, `left` what comes after the chunk that counts,
//! `resume` the rest of the chunk of an event that is on no counter.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::counters::error::CounterError;
use crate::counters::events::count::Period;
use crate::counters::events::saved::SavedEvent;
use crate::counters::registers::counter::Counter;
use crate::counters::shared::table::EventTable;

/// A [`Period`] in a table. While the event is on a counter, the period belongs to the interrupt path.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SharedPeriod {
    every: AtomicU64,
    current: AtomicU64,
    left: AtomicU64,
    resume: AtomicU64,
}

impl SharedPeriod {
    pub(crate) const fn new() -> Self {
        let (every, current) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { every, current, left: AtomicU64::new(0), resume: AtomicU64::new(0) }
    }

    pub(crate) fn store(&self, period: Period) {
        self.every.store(period.every, Relaxed);
        self.current.store(period.current, Relaxed);
        self.left.store(period.left, Relaxed);
        self.resume.store(period.resume, Relaxed);
    }

    pub(crate) fn load(&self) -> Period {
        Period {
            every: self.every.load(Relaxed),
            current: self.current.load(Relaxed),
            left: self.left.load(Relaxed),
            resume: self.resume.load(Relaxed),
        }
    }

    /// Returns the period that begins next; 0: none.
    pub(crate) fn every(&self) -> u64 {
        self.every.load(Relaxed)
    }

    /// Sets the period that begins next.
    pub(crate) fn set(&self, every: u64) {
        self.every.store(every, Relaxed);
    }

    /// Sets the period that begins next in place of `before`, unless an interrupt has set another one.
    pub(crate) fn exchange(&self, before: u64, every: u64) {
        let _ = self.every.compare_exchange(before, every, Relaxed, Relaxed);
    }

    /// Sets the period to one that never ends: the period under way is the last one that is reported.
    pub(crate) fn silence(&self) {
        self.every.fetch_or(Period::SILENT, Relaxed);
    }

    /// Lets an event that is on no counter report again, if it had stopped reporting. The remainder of the period that
    /// never ends is longer than the event's own period, so a whole period begins.
    pub(crate) fn report_again(&self) {
        self.every.fetch_and(!Period::SILENT, Relaxed);
    }

    /// Sets the period that begins next to what `change` makes of it, also if an interrupt changes it meanwhile.
    pub(crate) fn change(&self, change: impl Fn(u64) -> u64) {
        // An interrupt may set or silence the period between a load and a store.
        let _ = self.every.fetch_update(Relaxed, Relaxed, |every| Some(change(every)));
    }

    /// Begins a period anew, of the length that `change` makes of the one that is set. If `keeps` is set, a pending
    /// overflow is still reported, and the event's counter is loaded with 1 for this.
    #[inline(never)] // 80 bytes of the Hermit-like glue, at `opt-level` 3.
    pub(crate) fn begin_anew(&self, change: impl Fn(u64) -> u64, keeps: bool) {
        let before = self.load();
        if !(keeps && before.resume == 1 && before.left == 0) {
            for part in [&self.current, &self.left, &self.resume] {
                part.store(0, Relaxed);
            }
        }
        self.change(change);
    }

    /// Returns whether the event reports, and so interrupts.
    pub(crate) fn reports(&self) -> bool {
        self.every.load(Relaxed) != 0
    }

    /// Returns whether the ends of the event's periods are reported now: it is not silent.
    pub(crate) fn is_reported(&self) -> bool {
        (1..Period::SILENT).contains(&self.every.load(Relaxed))
    }

    /// Returns the period that was over when the event was detached.
    pub(crate) fn ended(&self) -> u64 {
        self.current.load(Relaxed)
    }

    /// Returns the period that ended with an overflow, if this was its last chunk.
    #[inline]
    pub(crate) fn over(&self) -> Option<u64> {
        let over = self.current.load(Relaxed);
        (self.left.load(Relaxed) == 0 && over != 0).then_some(over)
    }

    /// Returns whether a counter was loaded for the whole period under way, and the next one is of the same length.
    #[inline]
    pub(crate) fn is_whole(&self, loaded: u64) -> bool {
        let [every, current, left] =
            [&self.every, &self.current, &self.left].map(|part| part.load(Relaxed));
        every == loaded && current == loaded && left == 0
    }

    /// Returns the number of events with which a counter is loaded when a period begins.
    pub(crate) fn chunk(&self, max_load: u64) -> u64 {
        Self::chunk_of(self.every.load(Relaxed), max_load)
    }

    /// Notes that the processor recorded the overflow, and loaded the counter for `reloaded` events. Returns `true` if
    /// the counter is to be loaded for another number. `throttled`: the event is silent from the next load on.
    pub(crate) fn recorded(&self, reloaded: u64, throttled: bool) -> bool {
        let every = self.every.load(Relaxed);
        // After each record the processor loads the same number, but the next chunk of a long period may be another.
        if self.left.load(Relaxed) != 0 {
            return true;
        }
        // An event that is to report no more has no period that could be over.
        let reports = throttled || every & Period::SILENT == 0;
        let current = if reports { reloaded } else { 0 };
        self.current.store(current, Relaxed);
        every != reloaded
    }

    /// Returns the number of events with which a counter is loaded when the event begins or resumes. `max_load` is the
    /// greatest number that the counter takes; the period ends `delay` events after the last chunk's overflow.
    pub(crate) fn first_chunk(&self, max_load: u64, delay: u64) -> u64 {
        match self.resume.swap(0, Relaxed) {
            0 => self.begin(max_load, delay),
            // Another counter may take less, and a period that was set since may be shorter.
            resume => match self.left.load(Relaxed).wrapping_add(resume) {
                left if left <= self.every.load(Relaxed) => self.take_chunk(left, max_load),
                _ => self.begin(max_load, delay),
            },
        }
    }

    /// Returns the number of events with which the counter is loaded after an overflow.
    #[inline]
    pub(crate) fn next_chunk(&self, max_load: u64, delay: u64) -> u64 {
        match self.left.load(Relaxed) {
            0 => self.begin(max_load, delay),
            left => self.take_chunk(left, max_load),
        }
    }

    /// Begins a period, and returns its first chunk. A counter that only counts is loaded so that it wraps as late as
    /// it can: a wrap that the interrupt did not see would be lost.
    fn begin(&self, max_load: u64, delay: u64) -> u64 {
        let every = self.every.load(Relaxed);
        self.current.store(every, Relaxed);
        let chunks = if every == 0 { max_load } else { every.saturating_sub(delay).max(1) };
        self.take_chunk(chunks, max_load)
    }

    /// Takes the next chunk of `events`: at most `max_load`. If less than twice that is left, takes half of it, so
    /// that the last chunk does not interrupt at once.
    fn take_chunk(&self, events: u64, max_load: u64) -> u64 {
        let chunk = Self::chunk_of(events, max_load);
        self.left.store(events - chunk, Relaxed);
        chunk
    }

    const fn chunk_of(events: u64, max_load: u64) -> u64 {
        match events {
            _ if events <= max_load => events,
            // Two halves, rather than a full load and a small rest whose overflow follows at once.
            _ if events / 2 < max_load => events / 2,
            _ => max_load,
        }
    }

    /// Begins a period, or what was left of one that was under way, and returns its length.
    pub(crate) fn begin_or_resume(&self) -> u64 {
        let every = self.every.load(Relaxed) & !Period::SILENT;
        match self.resume.swap(0, Relaxed) {
            left @ 1.. if left <= every => left,
            _ => {
                self.current.store(every, Relaxed);
                every
            }
        }
    }

    /// Sets the period that is under way.
    pub(crate) fn set_current(&self, period: u64) {
        self.current.store(period, Relaxed);
    }

    /// Notes that the event was detached with `events` to go.
    pub(crate) fn set_resume(&self, events: u64) {
        let interrupts = self.current.load(Relaxed) != 0;
        self.resume.store(if interrupts { events } else { 0 }, Relaxed);
    }

    /// Notes that the event was detached with an overflow pending. Returns whether the period is over; if so, the next
    /// period begins.
    pub(crate) fn end_chunk(&self) -> bool {
        let left = self.left.swap(0, Relaxed);
        self.resume.store(left, Relaxed);
        left == 0 && self.current.load(Relaxed) != 0
    }
}

impl SavedEvent {
    /// Sets the period of an event that interrupts. When the event is next on a counter, a whole period of this length
    /// begins. The remainder of the old period is discarded. `table` gives the
    /// [shortest accepted period](EventTable::set_min_period). Pass [`EventTable::none`] for the default.
    ///
    /// # Errors
    /// [`Period`](CounterError::Period): the period is below the shortest accepted period, the period does not fit in
    /// 63 bits, or the event does not interrupt.
    pub fn set_period(&mut self, table: &EventTable, period: u64) -> Result<(), CounterError> {
        let fits = (table.min_period_of(self.select())..=Period::MAX).contains(&period);
        if !fits || self.period.every == 0 {
            return Err(CounterError::Period(period));
        }
        self.period = Period::new(period);
        self.rate.unthrottle();
        Ok(())
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn every(events: u64) -> SharedPeriod {
        let period = SharedPeriod::new();
        period.set(events);
        period
    }

    #[test]
    fn the_chunks_of_a_period_add_up_to_it() {
        for (period, max_load) in
            [(1, 100), (100, 100), (101, 100), (199, 100), (200, 100), (201, 100), (12_345, 100)]
        {
            let shared = every(period);
            let mut sum = shared.first_chunk(max_load, 0);
            let mut chunks = 1;
            loop {
                let over = shared.over();
                let next = shared.next_chunk(max_load, 0);
                if let Some(over) = over {
                    assert_eq!((over, sum), (period, period));
                    break;
                }
                assert!(next <= max_load && next >= max_load / 2);
                sum += next;
                chunks += 1;
            }
            assert_eq!(chunks, period.div_ceil(max_load), "{period}");
        }
    }

    #[test]
    fn a_period_that_changes_is_reported_as_it_was_loaded() {
        let shared = every(1000);
        assert_eq!(shared.first_chunk(100_000, 0), 1000);
        shared.set(2000);
        assert_eq!((shared.over(), shared.next_chunk(100_000, 0)), (Some(1000), 2000));
        assert_eq!((shared.over(), shared.next_chunk(100_000, 0)), (Some(2000), 2000));
    }

    #[test]
    fn an_event_that_resumes_on_a_shorter_counter_loses_nothing() {
        let shared = every(1000);
        assert_eq!(shared.first_chunk(100_000, 0), 1000);
        shared.set_resume(700);
        assert_eq!(shared.first_chunk(400, 0), 350);
        assert_eq!((shared.over(), shared.next_chunk(400, 0)), (None, 350));
        assert_eq!(shared.over(), Some(1000));
    }

    #[test]
    fn an_event_that_resumes_with_a_period_shorter_than_what_is_left_begins_that_period() {
        for (period, first) in [(699, 699), (700, 700), (701, 700), (1000, 700)] {
            let shared = every(1000);
            assert_eq!(shared.first_chunk(100_000, 0), 1000);
            shared.set_resume(700);
            shared.set(period);
            assert_eq!(shared.first_chunk(100_000, 0), first, "{period}");
        }
    }

    #[test]
    fn what_is_only_counted_wraps_as_late_as_it_can_and_is_not_reported() {
        let shared = every(0);
        assert_eq!(shared.first_chunk(100, 0), 100);
        assert_eq!((shared.over(), shared.next_chunk(100, 0)), (None, 100));
        shared.set_resume(7);
        assert_eq!(shared.first_chunk(100, 0), 100);
        assert!(!shared.end_chunk());
    }
}
