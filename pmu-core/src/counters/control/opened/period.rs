//! Periods that begin at once.

use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::events::count::{EventOverflow, Period};
use crate::counters::hooks::facility::Facility;
use crate::counters::names::{CounterId, CounterSet, EventId};
use crate::platform::Hardware;
use crate::profile::event_source::EventSource;

impl<S: EventSource, H: Hardware> CounterSession<'_, S, H> {
    /// Sets the period of an opened event that interrupts, as `PERF_EVENT_IOC_PERIOD` does. A whole period of the new
    /// length begins at once. The event's count continues. In contrast,
    /// [`EventTable::set_period`](crate::memory::EventTable::set_period) keeps the old period until the next overflow.
    ///
    /// If an overflow is pending, the call itself reports the overflow to `overflowed`. If the overflow's interrupt
    /// still comes, [`service`](crate::service) claims the interrupt, and does not report the overflow again.
    ///
    /// There is one exception: the event waits for a counter, and at most one occurrence of its old period remains. The
    /// old period then ends, and its overflow is reported, when the event has a counter again. Only then does the new
    /// period begin. The same holds for a [precise](crate::Event::precise) event whose counter has overflowed and whose
    /// record is yet to be written.
    ///
    /// On a processor with a global control register, the event's group is stopped during the call.
    ///
    /// ```
    /// use pmu_core::{CounterSession, EventId, EventSource, Hardware};
    /// use pmu_core::error::CounterError;
    /// use pmu_core::interrupt::EventOverflow;
    /// fn ioc_period<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     event: EventId,
    ///     period: u64,
    ///     now: u64,
    ///     mut sample: impl FnMut(EventOverflow),
    /// ) -> Result<(), CounterError> {
    ///     counters.apply_period(event, period, now, |overflow| sample(overflow))
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`NoSuchEvent`](CounterError::NoSuchEvent), [`NoPeriod`](CounterError::NoPeriod),
    ///   [`Period`](CounterError::Period).
    /// - [`Unchanged`](CounterError::Unchanged): the event and its group run on as before, or are stopped, and no part
    ///   of the event's count is lost.
    /// - [`StateUnknown`](CounterError::StateUnknown): the event and its group are stopped, and the event's count since
    ///   the last interrupt of its counter is lost.
    pub fn apply_period(
        &mut self,
        event: EventId,
        period: u64,
        now: u64,
        overflowed: impl FnMut(EventOverflow),
    ) -> Result<(), CounterError> {
        if !self.entry(event)?.period.reports() {
            return Err(CounterError::NoPeriod(event));
        }
        self.table().check_period_of(self.entry(event)?, period)?;
        self.begin_period(event, Some(period), now, overflowed)
    }

    /// Begins a period at once: of this length, or of the one that is set. In the second case, an event stays silent
    /// whose user has silenced it. In both, it is silent if its user silences it meanwhile: in an interrupt, or at the
    /// overflow that is reported here.
    pub(crate) fn begin_period(
        &self,
        event: EventId,
        period: Option<u64>,
        now: u64,
        mut overflowed: impl FnMut(EventOverflow),
    ) -> Result<(), CounterError> {
        let entry = self.entry(event)?;
        let before = entry.period.every();
        // Called once the event is on no counter: samples that waited may throttle it until then.
        let unthrottled = || {
            let throttled = if entry.rate.is_throttled() { Period::SILENT } else { 0 };
            entry.rate.unthrottle();
            move |set: u64| {
                let set = set & !throttled;
                period.map_or(set, |period| period | set & !before & Period::SILENT)
            }
        };
        let begin = |keeps| entry.period.begin_anew(unthrottled(), keeps);
        if self.is_software(entry) {
            let counter = CounterId::SOFTWARE;
            entry.add_software_time(now);
            entry.end_periods(entry.software_value(now), |period| {
                overflowed(EventOverflow { event, period, counter, tag: entry.tag() });
            });
            entry.begin_software_anew(now, unthrottled());
            return Ok(());
        }
        let Some(counter) = self.counter_of(event) else {
            // A stopped event has no overflow pending.
            let keeps = self.is_enabled(event);
            begin(keeps);
            return Ok(());
        };
        let group = self.table().with_group(event).filter_map(|event| self.counter_of(event));
        let group = match entry.is_grouped() {
            true => group.collect(),
            // Its records from before the facilities are settled would belong to no event.
            false if S::Facility::RECORDS && entry.is_precise() => counter.only(),
            false => CounterSet::NONE,
        };
        self.pause(group).inspect_err(|_| self.settle_software())?;
        let applied = self.detach(counter, event).and_then(|detached| {
            if detached.overflowed {
                let (period, tag) = (entry.period.ended(), entry.tag());
                overflowed(EventOverflow { event, period, counter, tag });
            }
            begin(S::Facility::RECORDS && detached.is_due);
            self.run_for(counter, event, None, true)
        });
        if applied.is_err() {
            for member in self.table().with_group(event) {
                if let Ok(entry) = self.entry(member) {
                    // Those that do not answer are marked as faulted; the first error is the reason.
                    let _ = self.detach_and_stop(member, entry, now);
                }
            }
        }
        let settled = self.settle_facilities();
        let resumed = self.unpause(group | counter.only());
        self.settle_software();
        applied.and(settled).and(resumed)
    }
}
