//! Closing: of an event that is in no group, of a group, and of one event of a group.

use crate::counters::control::handle::CounterSession;
use crate::counters::error::{CounterError, EventsError, no_such};
use crate::counters::events::count::{EventCount, Membership};
use crate::counters::hooks::event_source::EventSource;
use crate::counters::names::{EventId, GroupId};
use crate::counters::shared::entry::{EventEntry, EventState};
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    /// Stops and closes an event, and returns its count. A later event may get the same [`EventId`]. Samples of a
    /// [precise](Event::precise) event whose records wait in memory are dropped: call
    /// [`report_samples`](Self::report_samples) before.
    ///
    /// ```
    /// # use pmu_core::{CounterError, CounterSession, EventId, EventSource, Platform};
    /// # use pmu_core::msr::MsrBackend;
    /// /// Closes an event of a process that ends, and returns its count as if it had never waited for a counter.
    /// fn end<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
    ///     event: EventId,
    ///     now: u64,
    /// ) -> Result<Option<u64>, CounterError> {
    ///     let count = counters.close_event(event, now)?;
    ///     Ok(count.scaled())
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`NoSuchEvent`](CounterError::NoSuchEvent): the event is not open.
    /// - The errors of [`stop_event`](Self::stop_event). The event stays open.
    pub fn close_event(&mut self, event: EventId, now: u64) -> Result<EventCount, CounterError> {
        let entry = self.ungrouped(event)?;
        if self.is_started(event) {
            self.detach_and_stop(event, entry, now)?;
        }
        entry.set_state(EventState::Closed);
        self.forget_in_facilities(event);
        Ok(entry.count())
    }

    /// Stops a group and closes its events. If some of the group's events are switched out, the call closes only the
    /// events that are on this processor. Later events may get the [`EventId`](crate::EventId)s of the closed events.
    /// Samples that wait in memory are dropped, as by [`close_event`](Self::close_event).
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventSource, GroupId, Platform};
    /// # use pmu_core::msr::MsrBackend;
    /// /// Closes the groups of a session's client. A group that does not close stays in `groups`.
    /// fn close<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
    ///     groups: &mut [Option<GroupId>],
    ///     now: u64,
    /// ) {
    ///     for group in groups {
    ///         *group = group.filter(|group| counters.close_group(*group, now).is_err());
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`NoSuchGroup`](CounterError::NoSuchGroup): none of the group's events is on this processor.
    /// - The errors of [`stop_group`](Self::stop_group). The group stays open.
    pub fn close_group(&mut self, group: GroupId, now: u64) -> Result<(), EventsError> {
        self.group_events(group).next().ok_or_else(|| no_such(group))?;
        if self.group_events(group).any(|event| self.is_started(event)) {
            self.stop_group(group, now)?;
        }
        for (event, entry) in self.members(group) {
            entry.set_state(EventState::Closed);
            self.forget_in_facilities(event);
        }
        Ok(())
    }

    /// Closes one event, and leaves the other events of its group as they are: those that count go on without a gap. If
    /// the event is the first of its group, the others are in no group afterwards, as after Linux closed the file of a
    /// group's leader; events of theirs that were disabled are stopped. Events that need each other are closed
    /// together: issue slots with their parts, and events whose overflows [reload](crate::Event::reloaded_by) counters.
    /// Returns the event's last count.
    ///
    /// ```
    /// # use pmu_core::{CounterError, CounterSession, EventId, EventSource, Platform};
    /// # use pmu_core::msr::MsrBackend;
    /// /// A client gives up one of its events.
    /// fn drop_one<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
    ///     event: EventId,
    ///     now: u64,
    /// ) -> Result<u64, CounterError> {
    ///     Ok(counters.close_member(event, now)?.value)
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`NoSuchEvent`](CounterError::NoSuchEvent): the event is not open.
    /// - [`NoSuchGroup`](CounterError::NoSuchGroup): some events of the group are not on this processor.
    /// - The errors of [`stop_event`](Self::stop_event). The event stays open.
    pub fn close_member(&mut self, event: EventId, now: u64) -> Result<EventCount, CounterError> {
        let entry = self.entry(event)?;
        let Some((group, first)) = self.group_and_first(entry)? else {
            return self.close_event(event, now);
        };
        let needs_others = |(other, of): (EventId, &EventEntry)| {
            of.membership().reload != 0 || first == event && self.is_part(other)
        };
        if self.members(group).any(needs_others) {
            self.close_group(group, now).map_err(|error| error.reason)?;
            return Ok(self.table().entry(event).map(EventEntry::count).unwrap_or_default());
        }
        self.detach_and_stop(event, entry, now)?;
        entry.set_state(EventState::Closed);
        self.forget_in_facilities(event);
        if first == event {
            self.dissolve(group);
        } else {
            let members = self.members(group).count() as u8;
            self.members(group).for_each(|(_, entry)| entry.set_group(group, members));
            self.count_again(first);
        }
        Ok(entry.count())
    }

    /// Lets the events that are left of a group be in none.
    fn dissolve(&self, group: GroupId) {
        while let Some((event, entry)) = self.members(group).next() {
            let of_group = Membership::FIRST | Membership::DISABLED;
            let alone = Membership { group: 0, members: 0, ..entry.membership() };
            entry.set_membership(alone.with(of_group, false));
            self.count_again(event);
        }
    }
}
