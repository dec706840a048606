//! Children of an opened event, for new threads.

use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::events::count::EventCount;
use crate::counters::events::saved::SavedEvent;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::names::event_id::EventId;
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    /// Returns a [child](SavedEvent::child) of an opened event, for a thread that the running thread creates. The
    /// opened event continues.
    ///
    /// ```
    /// use pmu_core::{CounterError, CounterSession, EventSource, Platform};
    /// use pmu_core::msr::MsrBackend;
    /// use pmu_core::thread::ThreadEvent;
    /// /// Returns the events that a new thread inherits from the running thread.
    /// fn fork<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &CounterSession<'_, S, M, P>,
    ///     parent: ThreadEvent,
    ///     tag: u64,
    /// ) -> Result<ThreadEvent, CounterError> {
    ///     let child = match parent {
    ///         ThreadEvent::Opened(event) => counters.child_event(event, tag)?,
    ///         ThreadEvent::SwitchedOut(event) => event.child(tag),
    ///         ThreadEvent::Unused => return Ok(parent),
    ///     };
    ///     Ok(ThreadEvent::SwitchedOut(child))
    /// }
    /// ```
    ///
    /// # Errors
    /// [`NoSuchEvent`](CounterError::NoSuchEvent): the event is not open.
    pub fn child_event(&self, event: EventId, tag: u64) -> Result<SavedEvent, CounterError> {
        Ok(self.extract(self.entry(event)?).child(tag))
    }

    /// Adds a child event's count to the count of an opened event: the value, and the `enabled` and `running` times.
    /// The call may be made while the opened event is on a counter. A [`UserView`](crate::reading::UserView) that was
    /// made before the call does not include the child's count.
    ///
    /// For an event that is on no processor, use [`SavedEvent::add_count`].
    ///
    /// # Errors
    /// - [`NoSuchEvent`](CounterError::NoSuchEvent): the event is not open.
    /// - [`NoTotal`](CounterError::NoTotal): the event interrupts, and was opened without a
    ///   [total](crate::Event::with_total).
    pub fn add_count(&mut self, event: EventId, child: EventCount) -> Result<(), CounterError> {
        let entry = self.entry(event)?;
        if !entry.wants_total() {
            return Err(CounterError::NoTotal(event));
        }
        entry.add_count(child);
        Ok(())
    }
}
