//! A period that applies at once.

use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::events::period::Period;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::interrupt::overflow::EventOverflow;
use crate::counters::names::counter_id::CounterSet;
use crate::counters::names::event_id::EventId;
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    /// Sets the period of an opened event that interrupts, at once: a whole period of this length begins, as at
    /// `PERF_EVENT_IOC_PERIOD`. The count goes on. [`EventTable::set_period`](crate::EventTable::set_period) waits for
    /// the next overflow instead.
    ///
    /// An overflow that is pending is reported to `overflowed`, as its interrupt would have reported it. If the
    /// interrupt still comes, it is spurious, and is claimed. If the event waits for a counter with an overflow
    /// pending, or one event before it, that overflow is reported once the event has a counter. The new period begins
    /// then.
    ///
    /// The event's group is stopped meanwhile, where there is a global control register.
    ///
    /// ```
    /// use pmu_core::{CounterError, CounterSession, EventId, EventOverflow, EventSource, MsrBackend, Platform};
    /// fn ioc_period<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
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
    /// [`NoSuchEvent`](CounterError::NoSuchEvent), [`NoPeriod`](CounterError::NoPeriod),
    /// [`Period`](CounterError::Period): nothing was changed. [`Access`](CounterError::Access),
    /// [`Faulted`](CounterError::Faulted): the event and its group are stopped. After `Access` its count is complete;
    /// after `Faulted`, the count since the last interrupt is lost.
    pub fn apply_period(
        &mut self,
        event: EventId,
        period: u64,
        now: u64,
        mut overflowed: impl FnMut(EventOverflow),
    ) -> Result<(), CounterError> {
        let entry = self.entry(event)?;
        if !entry.period.reports() {
            return Err(CounterError::NoPeriod(event));
        }
        self.table().check_period(period)?;
        let Some(counter) = self.counter_of(event) else {
            // A stopped event has no overflow pending.
            let keeps = self.is_started(event);
            entry.period.begin_anew(period, keeps);
            return Ok(());
        };
        let group = self.table().with_group(event).filter_map(|event| self.counter_of(event));
        let group = if entry.is_grouped() { group.collect() } else { CounterSet::NONE };
        self.pause(group)?;
        let applied = self.detach(counter, event).and_then(|detached| {
            if detached.overflowed {
                let (period, tag) = (entry.period.ended(), entry.tag());
                overflowed(EventOverflow { event, period, counter, tag });
            }
            entry.period.store(Period::new(period));
            self.run(counter, event)
        });
        if applied.is_err() {
            for member in self.table().with_group(event) {
                if let Ok(entry) = self.entry(member) {
                    // Those that do not answer are marked as faulted; the first error is the reason.
                    let _ = self.detach_and_stop(member, entry, now);
                }
            }
        }
        applied.and(self.resume(group))
    }
}
