//! An event's view for user mode, made by a task.

use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::events::count::EventCount;
use crate::counters::events::user_view::UserView;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::names::event_id::EventId;
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    /// Returns the data with which user mode computes an opened event's count by RDPMC. If the event is on a counter,
    /// the call costs one RDPMC.
    ///
    /// For an event on a counter, the data is valid until one of the following happens:
    /// - An operation starts, stops, moves or closes the event. [`start_event`](Self::start_event) of *another* event
    ///   and [`rotate`](Self::rotate) may also move this event.
    /// - A performance interrupt of the processor is serviced. [`service`](crate::service()) may reload the counter of
    ///   an event with a period. On a processor without an overflow status, `service` may reload the counter of any
    ///   event. After `service`, the handler gets new data by [`user_view`](crate::reading::user_view()).
    /// - The counter has counted half of its range: 2³⁹ events for a counter of 40 bits.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventId, EventSource, Platform};
    /// # use pmu_core::msr::MsrBackend;
    /// # use pmu_core::reading::UserView;
    /// /// Returns the view for the page that user mode reads; without a view, user mode asks by a system call.
    /// fn view<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &CounterSession<'_, S, M, P>,
    ///     event: EventId,
    ///     now: u64,
    /// ) -> Option<UserView> {
    ///     counters.user_view(event, now).ok().filter(|view| view.readable)
    /// }
    /// ```
    ///
    /// # Context
    /// Task, on the processor of the session's counters.
    ///
    /// # Errors
    /// The errors of [`read_event`](Self::read_event).
    pub fn user_view(&self, event: EventId, now: u64) -> Result<UserView, CounterError> {
        let entry = self.entry(event)?;
        let permitted = entry.permits_user_rdpmc();
        let Some(counter) = self.counter_of(event) else {
            let count = self.read_event(event, now)?;
            return Ok(UserView::off_counter(permitted, entry.is_enabled(), count, now));
        };
        if !entry.wants_total() {
            return Err(CounterError::NoTotal(event));
        }
        let (total, value) = self.read_total(counter, event, entry)?;
        let count = EventCount { value: total, ..entry.count_at(now, true) };
        Ok(UserView::on_counter(&self.registers(counter), permitted, value, count, now))
    }
}
