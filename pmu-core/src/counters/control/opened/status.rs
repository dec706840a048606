//! The events of a processor, and the state of each.

use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::events::membership::Membership;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::names::counter_id::CounterId;
use crate::counters::names::event_id::EventId;
use crate::counters::names::group_id::GroupId;
use crate::counters::shared::entry::{EventEntry, EventState};
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

/// State of an opened event. The states have the names that Linux perf uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum EventStatus {
    /// The event is not started.
    Off,
    /// The event is started, but not counted at present, for one of these reasons:
    /// - The event waits until [`rotate`](crate::CounterSession::rotate) puts it on a counter.
    /// - This processor cannot count the event, or cannot count another event of the event's group.
    Inactive,
    /// The event is started, and runs on this counter.
    Active(CounterId),
    /// The event was started, but is no longer counted, for one of these reasons:
    /// - The event's counter faulted.
    /// - The event found no counter, and does not [rotate](crate::Event::rotating).
    ///
    /// This state ends when a task starts the event again, or stops the event.
    Error,
}

impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    /// Returns the opened events, in the order of their [places](EventId::place) in the session's table.
    /// [Unlisted](crate::Event::unlisted) events are omitted.
    ///
    /// ```
    /// use pmu_core::{CounterSession, EventId, EventSource, EventStatus, Platform};
    /// use pmu_core::msr::MsrBackend;
    /// /// Returns the pinned events that are no longer counted, so that the kernel can notify their owners.
    /// fn lost<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &CounterSession<'_, S, M, P>,
    /// ) -> impl Iterator<Item = EventId> {
    ///     counters.events().filter(|event| counters.event_status(*event) == Ok(EventStatus::Error))
    /// }
    /// ```
    pub fn events(&self) -> impl Iterator<Item = EventId> {
        let is_listed = |entry: &EventEntry| !entry.membership().has(Membership::UNLISTED);
        let listed = self.table().opened().filter(move |(_, entry)| is_listed(entry));
        listed.filter(|_| self.is_open()).map(|(event, _)| event)
    }

    /// Returns the [tag](crate::Event::tagged) of an opened event.
    ///
    /// # Errors
    /// [`NoSuchEvent`](CounterError::NoSuchEvent): the event is not open.
    pub fn event_tag(&self, event: EventId) -> Result<u64, CounterError> {
        self.entry(event).map(EventEntry::tag)
    }

    /// Returns the group of an opened event, or `None` if the event is in no group.
    ///
    /// ```
    /// use pmu_core::{CounterSession, EventSource, EventsError, Platform};
    /// use pmu_core::msr::MsrBackend;
    /// /// Closes everything that the kernel opened on a processor that goes offline.
    /// fn close_all<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
    ///     now: u64,
    /// ) -> Result<(), EventsError> {
    ///     while let Some(event) = { counters.events().next() } {
    ///         match counters.event_group(event)? {
    ///             Some(group) => counters.close_group(group, now)?,
    ///             None => drop(counters.close_event(event, now)?),
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`NoSuchEvent`](CounterError::NoSuchEvent): the event is not open.
    pub fn event_group(&self, event: EventId) -> Result<Option<GroupId>, CounterError> {
        self.entry(event).map(EventEntry::group)
    }

    /// Returns the state of an opened event.
    ///
    /// # Errors
    /// [`NoSuchEvent`](CounterError::NoSuchEvent): the event is not open.
    pub fn event_status(&self, event: EventId) -> Result<EventStatus, CounterError> {
        let mut entry = self.entry(event)?;
        let mut event = event;
        if self.is_part(event)
            && let Some(divided) = self.divided_of(entry.group())
        {
            (event, entry) = (divided, self.entry(divided)?);
        }
        Ok(match (entry.state(), self.counter_of(event)) {
            (EventState::Closed | EventState::Stopped, _) => EventStatus::Off,
            (_, Some(counter)) => EventStatus::Active(counter),
            (EventState::Refused | EventState::Counting, None) => EventStatus::Error,
            (EventState::Uncountable, None) => EventStatus::Inactive,
            (EventState::Waiting, None) if entry.rotates() => EventStatus::Inactive,
            (EventState::Waiting, None) => EventStatus::Error,
        })
    }
}
