//! Starting and stopping the events in the rows of the source's table.

use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::hooks::event_source::{EventSource, opens_events};
use crate::counters::names::counter_id::CounterSet;
use crate::counters::names::event_id::EventId;
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

impl<'a, S: EventSource, M: MsrBackend, P: Platform> CounterSession<'a, S, M, P> {
    /// Starts a row's event on a free counter, which interrupts once per period.
    pub(crate) fn start_row(&mut self, row: usize) -> Result<(), CounterError> {
        let event = EventId::of_row(row);
        if self.find(event).is_some() {
            return Err(CounterError::AlreadyStarted(event));
        }
        if !opens_events(&self.source) && self.source.core_thread().is_none() {
            // Row events can run on any counter that another row event can, so moving them makes no room.
            let counter = self.free_counter(CounterSet::GENERAL)?;
            return self.run(counter, event);
        }
        self.assign(event, Some(0)).map_err(|unplaced| unplaced.reason)
    }

    /// Stops the counter of a row's event. An overflow that is pending is dropped.
    pub(crate) fn stop_row(&mut self, row: usize) -> Result<(), CounterError> {
        let event = EventId::of_row(row);
        let (counter, _) = self.find(event).ok_or(CounterError::NotStarted(event))?;
        self.release(counter).map_err(CounterError::Faulted)
    }
}
