//! The events of a group, as they are on this processor.

use core::iter;

use crate::counters::control::assignment::plan::PlacementError;
use crate::counters::control::handle::CounterSession;
use crate::counters::error::{EventsError, no_such};
use crate::counters::hooks::event_source::EventSource;
use crate::counters::names::event_id::EventId;
use crate::counters::names::group_id::GroupId;
use crate::counters::shared::entry::{EventEntry, EventState};
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    pub(crate) fn members(&self, group: GroupId) -> impl Iterator<Item = (EventId, &EventEntry)> {
        let mut from = 0;
        iter::from_fn(move || self.next_member(&mut from, group))
    }

    #[inline(never)] // Linked once: each use of a group loops over its members.
    fn next_member(&self, from: &mut usize, group: GroupId) -> Option<(EventId, &EventEntry)> {
        self.table().next_member(from, group)
    }

    /// Returns the events of a group, in the order of the slice that was passed to [`open_group`](Self::open_group) or
    /// [`switch_in`](Self::switch_in).
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventOverflow, EventSource, GroupId, Platform};
    /// # use pmu_core::msr::MsrBackend;
    /// /// Returns an overflowed event's index in its group, which is also its count's index in `read_group`.
    /// fn place<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &CounterSession<'_, S, M, P>,
    ///     group: GroupId,
    ///     overflow: &EventOverflow,
    /// ) -> Option<usize> {
    ///     counters.group_events(group).position(|event| event == overflow.event)
    /// }
    /// ```
    pub fn group_events(&self, group: GroupId) -> impl Iterator<Item = EventId> {
        self.members(group).filter(|_| self.is_open()).map(|(event, _)| event)
    }

    /// Returns the first event of a group whose events are all on this processor.
    #[inline(never)]
    pub(crate) fn first_of(&self, group: GroupId) -> Result<EventId, EventsError> {
        let first = self.members(group).next().filter(|_| self.is_open());
        let (first, entry) = first.ok_or_else(|| no_such(group))?;
        let is_whole = self.members(group).count() == usize::from(entry.members());
        if is_whole { Ok(first) } else { Err(no_such(group)) }
    }

    /// Returns whether an event is in no group, or is the first waiting event of its group.
    pub(crate) fn is_first(&self, event: EventId) -> bool {
        let group = self.table().entry(event).and_then(EventEntry::group);
        let waits = |(_, entry): &(EventId, &EventEntry)| entry.state() == EventState::Waiting;
        let first = group.and_then(|group| self.members(group).find(waits));
        first.is_none_or(|(first, _)| first == event)
    }

    /// Checks that all events of an event's group, if it has one, are on this processor.
    pub(crate) fn check_whole(&self, event: EventId) -> Result<(), PlacementError> {
        let group = self.table().entry(event).and_then(EventEntry::group);
        let whole = group.map_or(Ok(event), |group| self.first_of(group));
        whole.map(|_| ()).map_err(|error| PlacementError { event, reason: error.reason })
    }

    /// Returns whether this processor can count an event and its group.
    pub(crate) fn is_countable(&self, event: EventId) -> bool {
        let mut entries =
            self.table().with_group(event).filter_map(|event| self.table().entry(event));
        entries.all(EventEntry::is_countable)
    }
}
