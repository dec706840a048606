//! Single events of a group, enabled and disabled.

use crate::counters::control::assignment::plan::PlacementError;
use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::names::event_id::EventId;
use crate::counters::names::group_id::GroupId;
use crate::counters::shared::entry::{EventEntry, EventState};
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    /// Disables an opened event, as `PERF_EVENT_IOC_DISABLE` does. A pending overflow of the event is not reported. If
    /// the event is disabled already, the call changes nothing. Otherwise the effect depends on the event's group:
    ///
    /// - If the event is in no group, the event [stops](Self::stop_event).
    /// - If the event is the first of a group, the whole group [stops](Self::stop_group).
    /// - If the event is in a group, but is not the group's first event, only this event stops, and the group's other
    ///   events continue without a gap. A start of the group does not start the event before
    ///   [`enable_event`](Self::enable_event) is called.
    ///
    /// The `enabled` and `running` times of a disabled event do not advance. Each event of a group except the first can
    /// also be disabled before the group starts.
    ///
    /// ```
    /// # use pmu_core::{CounterError, CounterSession, EventCount, EventId, EventSource, Platform};
    /// # use pmu_core::msr::MsrBackend;
    /// /// Disables one event of a group while a function runs, and returns the event's count.
    /// fn without<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
    ///     event: EventId,
    ///     clock: impl Fn() -> u64,
    ///     function: impl FnOnce(),
    /// ) -> Result<EventCount, CounterError> {
    ///     counters.disable_event(event, clock())?;
    ///     function(); // Only the other events of the group count here.
    ///     counters.enable_event(event, clock())?;
    ///     counters.read_event(event, clock())
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`NoSuchEvent`](CounterError::NoSuchEvent): the event is not open.
    /// - [`NoSuchGroup`](CounterError::NoSuchGroup): some events of the group are not on this processor.
    /// - [`Faulted`](CounterError::Faulted): accesses to the registers of the event's counter failed, and the count
    ///   since the last read of this counter is lost. The event is disabled.
    pub fn disable_event(&mut self, event: EventId, now: u64) -> Result<(), CounterError> {
        let entry = self.entry(event)?;
        let Some((group, first)) = self.group_and_first(entry)? else {
            return match entry.state() {
                EventState::Stopped => Ok(()),
                _ if self.is_started(event) => self.stop_event(event, now),
                // Its counter faulted. It is not to take a turn again.
                _ => self.detach_and_stop(event, entry, now),
            };
        };
        if first != event {
            entry.set_disabled(true);
            let stopped = self.detach_and_stop(event, entry, now);
            if self.state_of(first) == Some(EventState::Uncountable) && self.is_countable(first) {
                self.change_group(first, EventState::Waiting);
            }
            return stopped;
        }
        if self.group_events(group).any(|event| self.is_started(event)) {
            return self.stop_group(group, now).map_err(|error| error.reason);
        }
        self.members(group)
            .filter(|(_, entry)| entry.state() != EventState::Stopped)
            .try_for_each(|(event, entry)| self.detach_and_stop(event, entry, now))
    }

    /// Enables an opened event, as `PERF_EVENT_IOC_ENABLE` does. If the event is enabled already, the call changes
    /// nothing. Otherwise the effect depends on the event's group:
    ///
    /// - If the event is in no group, the event [starts](Self::start_event).
    /// - If the event is the first of a group, the group [starts](Self::start_group) without its
    ///   [disabled](Self::disable_event) events.
    /// - If the event is in a group, but is not the group's first event, the event is counted with the group again. If
    ///   the group is on counters, the event gets a counter. The group's other events continue. Their counts have a gap
    ///   only if these events must move to other counters. If there is no counter for the event, and the group
    ///   [rotates](crate::Event::rotating), the whole group leaves its counters and waits for its turn.
    ///
    /// To enable a whole group, as `PERF_IOC_FLAG_GROUP` does, call this for each of its events. The call for the
    /// group's first event comes last.
    ///
    /// # Errors
    /// - [`NoSuchEvent`](CounterError::NoSuchEvent): the event is not open.
    /// - The errors of [`start_event`](Self::start_event) and [`start_group`](Self::start_group). The event stays
    ///   disabled.
    pub fn enable_event(&mut self, event: EventId, now: u64) -> Result<(), CounterError> {
        let entry = self.entry(event)?;
        let Some((group, first)) = self.group_and_first(entry)? else {
            return if self.is_started(event) { Ok(()) } else { self.start_event(event, now) };
        };
        if first == event {
            if self.is_started(event) {
                return Ok(());
            }
            return self.start_group(group, now).map_err(|error| error.reason);
        }
        if !entry.is_disabled() || self.is_part(event) {
            return Ok(());
        }
        entry.set_disabled(false);
        if !self.is_started(first) {
            return Ok(());
        }
        entry.begin_time(now);
        let joined = self.join(event, first, now);
        if joined.is_err() {
            entry.set_disabled(true);
            // The failed change may have left the event started. The first error is the reason.
            let _ = self.detach_and_stop(event, entry, now);
        }
        joined
    }

    /// Returns the group of an entry and its first event, if the event is in a group that is whole on this processor.
    fn group_and_first(
        &self,
        entry: &EventEntry,
    ) -> Result<Option<(GroupId, EventId)>, CounterError> {
        let Some(group) = entry.group() else { return Ok(None) };
        let first = self.first_of(group).map_err(|error| error.reason)?;
        Ok(Some((group, first)))
    }

    fn state_of(&self, event: EventId) -> Option<EventState> {
        self.table().entry(event).map(EventEntry::state)
    }

    /// Gives a stopped event a counter beside the rest of its group, which is started.
    fn join(&self, event: EventId, first: EventId, now: u64) -> Result<(), CounterError> {
        if self.counter_of(first).is_none() {
            self.change_state(event, self.state_of(first).unwrap_or(EventState::Waiting));
            return Ok(());
        }
        self.add_times(now);
        self.get_ready(first).map_err(|unplaced| unplaced.reason)?;
        let mut planner = self.planner();
        self.present(&mut planner.plan);
        self.table().with_group(first).for_each(|event| planner.plan.remove(event));
        let rotates = self.table().entry(first).is_some_and(EventEntry::rotates);
        let is_countable = self.is_countable(first);
        let has_room = if is_countable {
            let placed = self.plan_beside(&mut planner, first, (!rotates).then_some(0));
            let placed = placed.map_err(PlacementError::from);
            match placed.map_err(|unplaced| unplaced.reason) {
                Err(reason) if !rotates => return Err(reason),
                placed => placed.is_ok(),
            }
        } else {
            false
        };
        self.apply(&mut planner)?;
        if !has_room {
            // The group has left its counters.
            let waits = if is_countable { EventState::Waiting } else { EventState::Uncountable };
            self.change_group(first, waits);
        }
        Ok(())
    }
}
