//! Groups: events that are counted together, or not at all.

use crate::counters::control::assignment::plan::PlacementError;
use crate::counters::control::handle::CounterSession;
use crate::counters::error::{CounterError, EventsError, bit_of_member, no_such};
use crate::counters::events::count::{EventCount, Membership};
use crate::counters::events::event::Event;
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::names::{CounterSet, EventId, GroupId, MAX_COUNTERS};
use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::entry::{EventEntry, EventState};
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    /// Opens a group of events, which are counted together or not at all. The opened events are not started. The first
    /// event decides whether the group [rotates](Event::rotating), and whether it is [exclusive](Event::exclusive).
    ///
    /// ```
    /// # use pmu_core::{
    /// #     CounterSession, CounterUnit, Event, EventCount, EventSource, GenericEvent, EventsError, Platform,
    /// # };
    /// # use pmu_core::msr::MsrBackend;
    /// /// Returns the instructions per thousand cycles of a function.
    /// fn instructions_per_kilocycle<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
    ///     unit: &CounterUnit,
    ///     clock: impl Fn() -> u64,
    ///     function: impl FnOnce(),
    /// ) -> Result<Option<u64>, EventsError> {
    ///     let events = [GenericEvent::Instructions, GenericEvent::Cycles].map(Event::generic);
    ///     let group = counters.open_group(unit, &events)?;
    ///     let mut counts = [EventCount::default(); 2];
    ///     let counted = counters.start_group(group, clock()).and_then(|()| {
    ///         function();
    ///         counters.read_group(group, clock(), &mut counts)
    ///     });
    ///     counters.close_group(group, clock())?;
    ///     counted?;
    ///     let [instructions, cycles] = counts.map(|count| count.value);
    ///     Ok((instructions * 1000).checked_div(cycles))
    /// }
    /// ```
    ///
    /// # Errors
    /// - The errors of [`open_event`](Self::open_event), for the first event that cannot be opened.
    /// - [`NoFreeCounter`](CounterError::NoFreeCounter), [`ExtraRegisterInUse`](CounterError::ExtraRegisterInUse): the
    ///   session has too few counters or extra registers for the whole group, even if no other event runs. The error
    ///   names the first event of the group that finds no counter or extra register. A smaller group may fit.
    /// - [`NoEvents`](CounterError::NoEvents): `events` is empty.
    ///
    /// After an error, none of the events is open.
    ///
    /// # Limitations
    /// The events start and stop by one write if the processor has a global control register. Without one (AMD before
    /// PerfMonV2, Intel's version 1), they start and stop one after the other.
    pub fn open_group(
        &mut self,
        processor: &CounterUnit,
        events: &[Event],
    ) -> Result<GroupId, EventsError> {
        if events.is_empty() {
            return Err(EventsError::of_group(CounterError::NoEvents));
        }
        let group = GroupId::new();
        let opened = self.open_members(processor, group, events);
        opened.and_then(|()| self.check_room(group)).inspect_err(|_| {
            for (_, entry) in self.members(group) {
                entry.set_state(EventState::Closed);
            }
        })?;
        Ok(group)
    }

    fn open_members(
        &self,
        processor: &CounterUnit,
        group: GroupId,
        events: &[Event],
    ) -> Result<(), EventsError> {
        let of_first = |event: &Event| (event.rotates, event.flags & Membership::EXCLUSIVE);
        let (rotates, exclusive) = events.first().map(of_first).unwrap_or_default();
        for (member, event) in events.iter().enumerate() {
            let failed = |reason| EventsError::of_member(member, reason);
            if member == MAX_COUNTERS {
                return Err(failed(CounterError::NoFreeCounter));
            }
            let reloads = self.reloads_others(events, member).map_err(failed)?;
            let first = if member == 0 { Membership::FIRST } else { 0 };
            // Rotation and exclusiveness are properties of the whole group: its first event decides for all.
            let alone = Event {
                rotates,
                flags: event.flags & !Membership::EXCLUSIVE | exclusive | first,
                // The bitmap names members that are not open yet: `open_reload` stores it, and `open_after` would
                // refuse it.
                reload: if S::Facility::OFFERS { 0 } else { event.reload },
                ..*event
            };
            let before = events.get(..member).unwrap_or_default();
            let id = self.open_after(processor, &alone, before, None).map_err(failed)?;
            if let Some(entry) = self.table().entry(id) {
                entry.set_group(group, events.len() as u8);
                self.open_reload(entry, event.reload, reloads).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Opens an event in the group of `other`, behind the group's events, as `perf_event_open` does with a `group_fd`.
    /// If `other` is in no group, it becomes the first event of a new one. The group takes over whether the event
    /// rotates and whether it is exclusive. No register is accessed.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, CounterUnit, Event, EventId, EventSource, EventsError, GenericEvent, Platform};
    /// # use pmu_core::msr::MsrBackend;
    /// /// Opens the cycles beside an event that was opened alone.
    /// fn beside<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
    ///     unit: &CounterUnit,
    ///     event: EventId,
    /// ) -> Result<EventId, EventsError> {
    ///     counters.open_member(unit, event, &Event::generic(GenericEvent::Cycles))
    /// }
    /// ```
    ///
    /// # Errors
    /// After an error, the event is not open, and the group, or the event without a group, is as before.
    /// - [`NoSuchEvent`](CounterError::NoSuchEvent): `other` is not open.
    /// - [`NoSuchGroup`](CounterError::NoSuchGroup): the group is not whole on this processor.
    /// - [`AlreadyStarted`](CounterError::AlreadyStarted): the group is started. It is to be stopped before.
    /// - [`NotReloadable`](CounterError::NotReloadable): the event is to be [reloaded](Event::reloaded_by).
    /// - [`InsufficientMemory`](CounterError::InsufficientMemory): the table of opened events has no free place behind
    ///   those of the group.
    /// - The other errors of [`open_group`](Self::open_group).
    pub fn open_member(
        &mut self,
        processor: &CounterUnit,
        other: EventId,
        event: &Event,
    ) -> Result<EventId, EventsError> {
        let entry = self.entry(other)?;
        let found = entry.membership();
        let group = entry.group().unwrap_or_else(GroupId::new);
        if entry.group().is_none() {
            entry.set_membership(found.with(Membership::FIRST, true));
            entry.set_group(group, 1);
        }
        let rotates = entry.rotates();
        let flags = event.flags & !Membership::EXCLUSIVE | found.flags & Membership::EXCLUSIVE;
        let joined = self.open_behind(processor, group, &Event { rotates, flags, ..*event });
        if let (Err(_), Ok(entry)) = (&joined, self.entry(other)) {
            entry.set_membership(found);
        }
        joined
    }

    fn open_behind(
        &self,
        processor: &CounterUnit,
        group: GroupId,
        event: &Event,
    ) -> Result<EventId, EventsError> {
        self.first_of(group)?;
        let started = self.group_events(group).find(|event| self.is_started(*event));
        if let Some(started) = started {
            return Err(EventsError::of_group(CounterError::AlreadyStarted(started)));
        }
        let members = self.members(group).count();
        let failed = |reason| EventsError::of_member(members, reason);
        if members == MAX_COUNTERS {
            return Err(failed(CounterError::NoFreeCounter));
        }
        // Only a part and a latency ask which events are before them, and each of them for one event.
        let last = self.group_events(group).last();
        let mut places = self
            .members(group)
            .map(|(_, entry)| self.open_after(processor, event, &[entry.extract().event()], last));
        let first = places.next().unwrap_or(Err(CounterError::NoEvents));
        let id = first.or_else(|why| places.find_map(Result::ok).ok_or(why)).map_err(failed)?;
        let opened = self.entry(id)?;
        opened.set_group(group, 0);
        let counted = |members: usize| {
            self.members(group).for_each(|(_, entry)| entry.set_group(group, members as u8));
        };
        counted(members + 1);
        self.check_room(group).inspect_err(|_| {
            opened.set_state(EventState::Closed);
            counted(members);
        })?;
        Ok(id)
    }

    /// Checks that the events of a group can be counted together.
    fn check_room(&self, group: GroupId) -> Result<(), EventsError> {
        let (first, _) = self.members(group).next().ok_or_else(|| no_such(group))?;
        // On an empty plan: a group that does not fit alone would never be counted.
        let room = self.planner().try_place(first);
        room.map_err(|no_room| self.error_of(no_room.into()))
    }

    /// Returns the error that names the event for which there is no room.
    fn error_of(&self, PlacementError { event, reason }: PlacementError) -> EventsError {
        let group = self.table().entry(event).and_then(EventEntry::group);
        let member = group.and_then(|group| self.group_events(group).position(|of| of == event));
        let member = member.filter(|_| reason.is_no_room());
        EventsError { events: member.map_or(0, bit_of_member), reason }
    }

    /// Starts the events of a group together, by one write if there is a global control register. The events' totals
    /// continue from their last values. If an event was stopped within a period, the rest of this period continues.
    ///
    /// If too few counters are free, the call tries to free more counters by moving other events. If too few counters
    /// become free, a [rotating](Event::rotating) group waits for its turn, and a non-rotating group takes the counters
    /// of rotating events.
    ///
    /// The call assigns counters and [extra registers](Event::with_extra) to the group's events, and to all running
    /// events that must keep a counter. If an assignment for all these events exists, the call finds it. The search for
    /// a counter visits each counter at most once per event. The events can set the extra registers in different
    /// orders, and the search tries each order at most once. The call accesses registers only after the search.
    ///
    /// ```
    /// # use pmu_core::{CounterError, CounterSession, EventSource, EventsError, GroupId, Platform};
    /// # use pmu_core::msr::MsrBackend;
    /// /// Starts a group. If events of the group find no counter, returns the mask of their indices.
    /// fn start<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
    ///     group: GroupId,
    ///     now: u64,
    /// ) -> Result<u64, EventsError> {
    ///     match counters.start_group(group, now) {
    ///         Err(EventsError { reason: CounterError::NoFreeCounter, events }) => Ok(events),
    ///         started => started.map(|()| 0),
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`NoSuchGroup`](CounterError::NoSuchGroup).
    /// - [`AlreadyStarted`](CounterError::AlreadyStarted): an event of the group is started.
    /// - [`NoFreeCounter`](CounterError::NoFreeCounter), [`ExtraRegisterInUse`](CounterError::ExtraRegisterInUse): the
    ///   group finds too few counters or extra registers, and does not rotate. The error names the first event of the
    ///   group that finds no counter or extra register.
    /// - [`Unchanged`](CounterError::Unchanged).
    /// - [`StateUnknown`](CounterError::StateUnknown): none of the group's events runs.
    pub fn start_group(&mut self, group: GroupId, now: u64) -> Result<(), EventsError> {
        let first = self.first_of(group)?;
        for (member, event) in self.group_events(group).enumerate() {
            if self.is_started(event) {
                return Err(EventsError::of_member(member, CounterError::AlreadyStarted(event)));
            }
        }
        // For all members before any of them starts, so that their times begin together.
        self.members(group).for_each(|(_, entry)| entry.begin_time(now));
        self.give_counters(first, now).map_err(|unplaced| self.error_of(unplaced))
    }

    /// Stops the events of a group together. Pending overflows are not reported. The events' totals include everything
    /// counted until the stop.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventSource, EventsError, GroupId, Platform};
    /// # use pmu_core::msr::MsrBackend;
    /// /// Stops all groups, even after a failure, and returns the first failure.
    /// fn stop_groups<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
    ///     groups: &[GroupId],
    ///     now: u64,
    /// ) -> Result<(), EventsError> {
    ///     let stops = groups.iter().map(|group| counters.stop_group(*group, now));
    ///     stops.fold(Ok(()), Result::and)
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`NoSuchGroup`](CounterError::NoSuchGroup).
    /// - [`NotStarted`](CounterError::NotStarted): none of the group's events is started.
    /// - The errors of [`stop_event`](Self::stop_event), for the first event that could not be stopped. All events
    ///   whose registers can be accessed were stopped.
    pub fn stop_group(&mut self, group: GroupId, now: u64) -> Result<(), EventsError> {
        let first = self.first_of(group)?;
        if !self.group_events(group).any(|event| self.is_started(event)) {
            return Err(EventsError::of_group(CounterError::NotStarted(first)));
        }
        self.bring_up_to(now);
        let on: CounterSet =
            self.group_events(group).filter_map(|of| self.counter_of(of)).collect();
        // A single counter stops by its own control. Pausing it would only add two writes.
        let on = if self.takes_one_counter(first) { CounterSet::NONE } else { on };
        let mut outcome = Ok(());
        EventsError::add(&mut outcome, 0, self.pause(on));
        for (member, (event, entry)) in self.members(group).enumerate() {
            EventsError::add(
                &mut outcome,
                bit_of_member(member),
                self.detach_and_stop(event, entry, now),
            );
        }
        EventsError::add(&mut outcome, 0, self.unpause(on));
        outcome
    }

    /// Reads the counts of a group's events into `counts`, in the group's order, and returns the number of counts
    /// read. If the group is on counters, each count costs one read of a counter. If `counts` has fewer elements than
    /// the group has events, only the group's first events are read.
    ///
    /// The times of all counts are equal, so the ratio of two counts needs no [scaling](EventCount::scaled).
    ///
    /// An interrupt handler, which has no session, reads a group by [`sample_read`](crate::reading::sample_read).
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventCount, EventSource, EventsError, GroupId, Platform};
    /// # use pmu_core::msr::MsrBackend;
    /// /// Returns the percentage of cache references that missed. The group counts misses and references.
    /// fn miss_rate<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &CounterSession<'_, S, M, P>,
    ///     group: GroupId,
    ///     now: u64,
    /// ) -> Result<Option<u64>, EventsError> {
    ///     let mut counts = [EventCount::default(); 2];
    ///     counters.read_group(group, now, &mut counts)?;
    ///     let [misses, references] = counts.map(|count| count.value);
    ///     Ok((misses * 100).checked_div(references))
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`NoSuchGroup`](CounterError::NoSuchGroup).
    /// - [`CounterLost`](CounterError::CounterLost): one of the group's counters failed earlier.
    /// - The errors of [`read_event`](Self::read_event), for the first event that cannot be read.
    pub fn read_group(
        &self,
        group: GroupId,
        now: u64,
        counts: &mut [EventCount],
    ) -> Result<usize, EventsError> {
        self.first_of(group)?;
        let mut read = 0;
        let divided = if S::Facility::DIVIDES { self.read_divided(group, now)? } else { None };
        for (count, event) in counts.iter_mut().zip(self.group_events(group)) {
            let failed = |reason| EventsError::of_member(read, reason);
            let was_read = S::Facility::DIVIDES && (divided == Some(event) || self.is_part(event));
            *count = if was_read {
                // All of them at one moment.
                self.table().entry(event).map(EventEntry::count).unwrap_or_default()
            } else {
                self.read_event(event, now).map_err(failed)?
            };
            read += 1;
        }
        Ok(read)
    }

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
    /// - [`NoSuchEvent`](CounterError::NoSuchEvent).
    /// - [`NoSuchGroup`](CounterError::NoSuchGroup): some events of the group are not on this processor.
    /// - [`StateUnknown`](CounterError::StateUnknown): the count since the last read of the event's counter is lost.
    ///   The event is disabled.
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
            self.count_again(first, now);
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
    /// - [`NoSuchEvent`](CounterError::NoSuchEvent).
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
    pub(super) fn group_and_first(
        &self,
        entry: &EventEntry,
    ) -> Result<Option<(GroupId, EventId)>, CounterError> {
        let Some(group) = entry.group() else { return Ok(None) };
        let first = self.first_of(group).map_err(|error| error.reason)?;
        Ok(Some((group, first)))
    }

    /// Lets an event, or a group by its first one, wait for its turn if nothing keeps it from being counted any longer.
    pub(super) fn count_again(&self, first: EventId, now: u64) {
        if self.state_of(first) == Some(EventState::Uncountable) && self.is_countable(first) {
            // The time so far was not spent waiting.
            self.add_times(now);
            self.change_group(first, EventState::Waiting);
        }
    }

    fn state_of(&self, event: EventId) -> Option<EventState> {
        self.table().entry(event).map(EventEntry::state)
    }

    /// Gives a stopped event a counter beside the rest of its group, which is started.
    fn join(&self, event: EventId, first: EventId, now: u64) -> Result<(), CounterError> {
        if self.takes_no_counter(event) {
            self.change_state(event, EventState::Waiting);
            self.settle_software();
            return Ok(());
        }
        if self.counter_of(first).is_none() && !self.counts_in_software(first) {
            self.change_state(event, self.state_of(first).unwrap_or(EventState::Waiting));
            return Ok(());
        }
        self.add_times(now);
        self.get_ready(first).map_err(|unplaced| unplaced.reason)?;
        let mut planner = self.planner();
        self.present(&mut planner.plan);
        // The group is placed again as a whole: it counts together, or not at all.
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
