//! Events and their groups are enabled and disabled, also one event of a group that goes on.

use crate::counters::control::assignment::Change;
use crate::counters::control::assignment::plan::PlacementError;
use crate::counters::control::handle::CounterSession;
use crate::counters::error::{CounterError, EventsError, bit_of_member};
use crate::counters::events::event::Event;
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::names::{CounterSet, EventId};
use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::entry::{EventEntry, EventState};
use crate::platform::Hardware;
use crate::profile::event_source::EventSource;

impl<S: EventSource, H: Hardware> CounterSession<'_, S, H> {
    /// [Opens](Self::open) events, and [enables](Self::enable) them. If they cannot be enabled, they are not opened.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, CounterUnit, Event, EventSource, GenericEvent, Hardware};
    /// # use pmu_core::error::EventsError;
    /// /// Counts the instructions of a function.
    /// fn instructions<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     unit: &CounterUnit,
    ///     clock: impl Fn() -> u64,
    ///     function: impl FnOnce(),
    /// ) -> Result<u64, EventsError> {
    ///     let event = counters.start(unit, &[Event::generic(GenericEvent::Instructions)], clock())?;
    ///     function();
    ///     Ok(counters.close(event, clock())?.value)
    /// }
    /// ```
    ///
    /// # Errors
    /// Those of [`open`](Self::open) and [`enable`](Self::enable).
    #[inline] // As `open`.
    pub fn start(
        &mut self,
        processor: &CounterUnit,
        events: &[Event],
        now: u64,
    ) -> Result<EventId, EventsError> {
        let first = self.open(processor, events)?;
        let started = self.start_group(first, now);
        if started.is_err() {
            // None of them is on a counter.
            self.mark_closed(first);
        }
        started.map(|()| first)
    }

    /// Enables an opened event, as `PERF_EVENT_IOC_ENABLE` does: the event counts. Its total continues from its last
    /// value. If the event was disabled within a period, the rest of this period continues. If the event is enabled
    /// already, the call changes nothing. Otherwise the effect depends on the event's group:
    ///
    /// - If the event is in no group, or is the first of its group, all events of the group that were not
    ///   [disabled](Self::disable) themselves start together, by one write if there is a global control register.
    /// - If the event is another one of a group, the event is counted with the group again. If the group is on
    ///   counters, the event gets a counter. The group's other events continue. Their counts have a gap only if these
    ///   events must move to other counters. If there is no counter for the event, and the group
    ///   [rotates](crate::Event::rotating), the whole group leaves its counters and waits for its turn.
    ///
    /// To enable a whole group, as `PERF_IOC_FLAG_GROUP` does, call this for each of its events. The call for the
    /// group's first event comes last.
    ///
    /// If too few counters are free, the call tries to free more by moving other events. If too few become free, a
    /// [rotating](crate::Event::rotating) event or group waits for its turn, and any other takes the counters of
    /// rotating events.
    ///
    /// The call assigns counters and [extra registers](crate::Event::with_extra) to the events, and to all running
    /// events that must keep a counter. If an assignment for all these events exists, the call finds it. The search for
    /// a counter visits each counter at most once per event. The events can set the extra registers in different
    /// orders, and the search tries each order at most once. The call accesses registers only after the search.
    ///
    /// `now` is the time by the caller's clock. The events' times are counted in the units of this clock. All calls for
    /// one [`EventTable`](crate::memory::EventTable) use the same clock, because a call for one event may also advance
    /// the times of other events. If `now` is earlier than in a previous call, the call adds no time. A caller without
    /// a clock always passes 0.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventCount, EventId, EventSource, Hardware};
    /// # use pmu_core::error::{CounterError, EventsError};
    /// /// Counts an event while a function runs.
    /// fn count<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     event: EventId,
    ///     clock: impl Fn() -> u64,
    ///     function: impl FnOnce(),
    /// ) -> Result<EventCount, EventsError> {
    ///     counters.enable(event, clock())?;
    ///     function();
    ///     counters.disable(event, clock())?;
    ///     Ok(counters.read(event, clock())?)
    /// }
    /// /// Enables a group. If events of the group find no counter, returns the mask of their indices.
    /// fn enable<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     group: EventId,
    ///     now: u64,
    /// ) -> Result<u64, EventsError> {
    ///     match counters.enable(group, now) {
    ///         Err(EventsError { reason: CounterError::NoFreeCounter, events }) => Ok(events),
    ///         enabled => enabled.map(|()| 0),
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// The event, or the group of which it is the first, stays disabled. The others of its group go on, unless a fault
    /// of their counters is the reason: see [`restart_faulted`](Self::restart_faulted).
    /// - [`NoSuchEvent`](CounterError::NoSuchEvent), [`GroupElsewhere`](CounterError::GroupElsewhere).
    /// - [`NoFreeCounter`](CounterError::NoFreeCounter), [`ExtraRegisterInUse`](CounterError::ExtraRegisterInUse),
    ///   [`BranchFilterInUse`](CounterError::BranchFilterInUse): the events find too few counters or extra registers,
    ///   or branches are recorded by another filter, and the group does not rotate. The error names the first event of
    ///   the group for which there is no room.
    /// - [`Unchanged`](CounterError::Unchanged).
    /// - [`StateUnknown`](CounterError::StateUnknown): a counter could not be stopped. None of the group's events runs.
    ///
    /// # Limitations
    /// A counter whose control register answers but whose value register faults is not marked as faulted. It is planned
    /// again at each start and rotation, which fails each time.
    pub fn enable(&mut self, event: EventId, now: u64) -> Result<(), EventsError> {
        let first = self.first_of(event)?;
        if first != event {
            return Ok(self.enable_member(event, first, now)?);
        }
        if self.members(event).any(|(member, _)| self.is_enabled(member)) {
            return Ok(());
        }
        self.start_group(event, now)
    }

    /// Starts an event, and its group, none of which is enabled.
    fn start_group(&self, first: EventId, now: u64) -> Result<(), EventsError> {
        // For all members before any of them starts, so that their times begin together.
        self.members(first).for_each(|(_, entry)| self.begin_time(entry, now));
        self.give_counters(first, now).map_err(|unplaced| self.error_of(unplaced))
    }

    /// Enables an event of a group, which is not the group's first event.
    #[inline(never)]
    fn enable_member(&self, event: EventId, first: EventId, now: u64) -> Result<(), CounterError> {
        let entry = self.entry(event)?;
        if !entry.is_disabled() || self.is_part(event) {
            return Ok(());
        }
        entry.set_disabled(false);
        if !self.is_enabled(first) {
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

    #[inline(always)]
    fn begin_time(&self, entry: &EventEntry, now: u64) {
        entry.begin_time(now);
        if self.is_software(entry) {
            // Of an event that was silent: its steps go on.
            entry.end_periods(entry.software_value(now), |_| ());
        }
    }

    /// Starts an event that was just opened, and does not rotate, like [`enable`](Self::enable), on less stack.
    pub(crate) fn start_added(&mut self, event: EventId, now: u64) -> Result<(), CounterError> {
        self.begin_time(self.entry(event)?, now);
        self.assign(event, Some(0), Change::Start).map_err(|unplaced| unplaced.reason)
    }

    /// [Enables](Self::enable) an opened event on a free counter that can count it. No other event moves to another
    /// counter, or loses its counter. If no counter is free, the call fails, even for an event that
    /// [rotates](crate::Event::rotating). If a kernel calls only this method, the code with which `enable` moves events
    /// is not linked.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventId, EventSource, Hardware};
    /// # use pmu_core::error::CounterError;
    /// /// Enables an event if a counter is free, and returns whether the event runs.
    /// fn try_enable<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     event: EventId,
    ///     now: u64,
    /// ) -> Result<bool, CounterError> {
    ///     match counters.enable_if_free(event, now) {
    ///         Err(CounterError::NoFreeCounter) => Ok(false),
    ///         enabled => enabled.map(|()| true),
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// The event stays disabled.
    /// - The errors of [`enable`](Self::enable).
    /// - [`NoCounterForEvent`](CounterError::NoCounterForEvent): only `enable` can enable an event of a group, and an
    ///   event of one of these kinds that is not counted in software: [exclusive](crate::Event::exclusive) events,
    ///   events with an [extra register](crate::Event::with_extra), every event of a
    ///   session with [`OnSharedCore`](crate::shared_core::OnSharedCore), and, on Intel, events that count only [in
    ///   guests](crate::Event::in_guests).
    /// - [`BranchFilterInUse`](CounterError::BranchFilterInUse): an event that runs records
    ///   [branches](crate::Event::with_branches) by another filter.
    /// - [`NoFreeCounter`](CounterError::NoFreeCounter): no counter is free, or an exclusive event runs. On Intel, the
    ///   error is also returned while another event that counts only in guests runs. `enable` does not fail for this
    ///   reason.
    pub fn enable_if_free(&mut self, event: EventId, now: u64) -> Result<(), CounterError> {
        let entry = self.entry(event)?;
        if self.is_enabled(event) {
            return Ok(());
        }
        // Each of these takes a plan, and this call makes none.
        let takes_plan =
            || entry.needs_more_than_a_counter() || self.source.core_thread().is_some();
        if entry.is_grouped() || !self.is_software(entry) && takes_plan() {
            return Err(CounterError::NoCounterForEvent);
        }
        self.begin_time(entry, now);
        if self.start_in_software(event)? {
            return Ok(());
        }
        if self.table().runs_exclusive_or_of_guests() {
            return Err(CounterError::NoFreeCounter);
        }
        self.check_branches(entry)?;
        let state = if entry.is_countable() {
            let room = self.free_counter(entry.counters());
            if S::Facility::OFFERS {
                self.run_settled(room?, event)?;
            } else {
                room.and_then(|counter| self.run(counter, event))?;
            }
            EventState::Counting
        } else {
            EventState::Uncountable
        };
        self.enter_state(entry, state);
        Ok(())
    }

    /// Starts an opened event and its group. If every counter is in use, an event that rotates waits for its turn; any
    /// other takes the counters of events that rotate.
    pub(crate) fn give_counters(&self, event: EventId, now: u64) -> Result<(), PlacementError> {
        let unplaced = |reason| PlacementError { event, reason };
        let entry = self.entry(event).map_err(unplaced)?;
        let (rotates, refused) = (entry.rotates(), entry.state() == EventState::Refused);
        if !self.is_countable(event) {
            self.change_group(event, EventState::Uncountable);
            return Ok(());
        }
        // One of them may have to give way.
        self.add_times(now);
        self.await_group(event);
        let mut outcome = self.assign(event, (!rotates).then_some(0), Change::Start);
        let waits = rotates && outcome.is_err_and(|unplaced| unplaced.reason.is_no_room());
        if outcome.is_err() {
            if S::Facility::OFFERS {
                // Registers of other events' facilities may be at fault.
                let taken_off = self.take_off(event);
                outcome = outcome.map_err(|unplaced| match taken_off {
                    Ok(()) => unplaced,
                    Err(_) => PlacementError { reason: unplaced.reason.faulted(), ..unplaced },
                });
            }
            let state = match (waits, refused) {
                (true, _) => EventState::Waiting,
                (false, true) => EventState::Refused,
                (false, false) => EventState::Stopped,
            };
            self.change_group(event, state);
        }
        if waits { Ok(()) } else { outcome }
    }

    /// Starts each event again, with its group, that lost its counter to a fault, as after a
    /// [`reprogram`](Self::reprogram), which frees the faulted counters. Such an event had the status
    /// [`Error`](crate::EventStatus::Error). Its total lacks what was counted since the counter's last interrupt. If
    /// there is no room for the event, its status stays. So does that of an event of whose group a part is on another
    /// processor, or switched out. An event that was silenced by
    /// [`stop_reporting`](crate::memory::EventTable::stop_reporting) stays silent. The call may be repeated.
    ///
    /// An event of a thread that was refused as it was [switched in](Self::switch_in) has the same status, and is
    /// started, too, if there is room by now.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventSource, Hardware};
    /// # use pmu_core::error::CounterError;
    /// /// Brings back everything on a processor whose registers lost their contents, or did not answer for a while.
    /// fn repair<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     now: u64,
    /// ) -> Result<(), CounterError> {
    ///     counters.reprogram(|_sample| ())?;
    ///     counters.restart_faulted(now)
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Unchanged`](CounterError::Unchanged), [`StateUnknown`](CounterError::StateUnknown): a register still fails.
    /// The events that it concerns do not run, and all others do.
    pub fn restart_faulted(&mut self, now: u64) -> Result<(), CounterError> {
        let mut outcome = Ok(());
        for (event, entry) in self.table().opened() {
            // A software event is started with those of its group.
            let is_refused = entry.state() == EventState::Refused && !self.is_software(entry);
            if !is_refused && self.check_counter(event, entry).is_ok() {
                continue;
            }
            // A group of which a part is elsewhere starts as it is whole again.
            let Ok(first) = self.first_of(event) else { continue };
            // The kernel's calls still count the software events of its group. No other event of the group has a
            // counter.
            let _ = self.stop_those_here(event, now);
            // Before any of them starts, as at a start. An event that is silent or throttled stays so.
            self.members(event).for_each(|(_, entry)| entry.continue_time(now));
            if let Err(unplaced) = self.give_counters(first, now) {
                let state = if is_refused { EventState::Refused } else { EventState::Counting };
                self.change_group(first, state);
                self.settle_software();
                if !unplaced.reason.is_no_room() {
                    outcome = outcome.and(Err(unplaced.reason));
                }
            }
        }
        outcome
    }

    /// Detaches an event and its group, of which the start failed. Fails if other events faulted.
    #[inline(never)] // 32 bytes of the Hermit-like glue.
    fn take_off(&self, event: EventId) -> Result<(), CounterError> {
        for event in self.table().with_group(event) {
            if let Some(counter) = self.counter_of(event) {
                // A counter that does not stop is marked as faulted. The caller gets the failure of the start.
                let _ = self.detach(counter, event);
            }
        }
        self.settle_facilities()
    }

    /// Sets the state of an event and its group, none of which is on a counter.
    #[inline(never)] // 176 bytes of the glue, at `opt-level` 3.
    pub(crate) fn change_group(&self, event: EventId, state: EventState) {
        let off_counters =
            self.table().with_group(event).filter(|event| self.counter_of(*event).is_none());
        off_counters.for_each(|event| self.change_state(event, state));
    }

    /// Disables an opened event, as `PERF_EVENT_IOC_DISABLE` does: the event does not count. Pending overflows are not
    /// reported. The total includes everything counted until the call. If the event is disabled already, the call
    /// changes nothing. Otherwise the effect depends on the event's group:
    ///
    /// - If the event is in no group, the event stops. If it is the first of a group, the whole group stops, together.
    /// - If the event is another one of a group, only this event stops, and the group's other events continue without a
    ///   gap. The event is not counted with the group before [`enable`](Self::enable) is called for it. It can also be
    ///   disabled before the group is enabled.
    ///
    /// The `enabled` and `running` times of a disabled event do not advance.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventCount, EventId, EventSource, Hardware};
    /// # use pmu_core::error::EventsError;
    /// /// Runs a function whose events are not to be counted, of all events of a group or of one.
    /// fn uncounted<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     event: EventId,
    ///     clock: impl Fn() -> u64,
    ///     function: impl FnOnce(),
    /// ) -> Result<(), EventsError> {
    ///     counters.disable(event, clock())?;
    ///     function();
    ///     counters.enable(event, clock()) // The period and the total continue.
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`NoSuchEvent`](CounterError::NoSuchEvent), [`GroupElsewhere`](CounterError::GroupElsewhere).
    /// - [`StateUnknown`](CounterError::StateUnknown): the count since the last read of the event's counter is lost.
    ///   All events whose registers can be accessed were stopped, and all are disabled.
    pub fn disable(&mut self, event: EventId, now: u64) -> Result<(), EventsError> {
        let (entry, first) = (self.entry(event)?, self.first_of(event)?);
        if first == event {
            return self.stop_those_here(event, now);
        }
        entry.set_disabled(true);
        let stopped = self.detach_and_stop(event, entry, now);
        self.count_again(first, now);
        Ok(stopped?)
    }

    /// Stops an opened event and those of its group that are on this processor.
    pub(super) fn stop_those_here(&self, event: EventId, now: u64) -> Result<(), EventsError> {
        let on = self.members(event).filter_map(|(event, _)| self.counter_of(event)).collect();
        // A single counter stops by its own control. Pausing it would only add two writes.
        let paused = if CounterSet::is_one(on) { CounterSet::NONE } else { on };
        self.bring_up_to(now);
        let mut outcome = Ok(());
        EventsError::add(&mut outcome, 0, self.pause(paused));
        for (member, (event, entry)) in self.members(event).enumerate() {
            // One whose counter faulted is not to take a turn again.
            if entry.state() != EventState::Stopped {
                let stopped = self.detach_and_stop(event, entry, now);
                EventsError::add(&mut outcome, bit_of_member(member), stopped);
            }
        }
        if S::Facility::DIVIDES
            && let Some(divided) = self.divided_of(event)
        {
            self.give_times(divided);
        }
        // No event runs on them any more, so this enables them alone: simpler than `unpause`.
        let enabled = self.set_global_enable(paused).map_err(CounterError::faulted);
        EventsError::add(&mut outcome, 0, enabled);
        outcome
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
        let rotates = self.entry(first)?.rotates();
        // The group is placed again as a whole: it counts together, or not at all.
        let state = if self.is_countable(first) {
            match self.assign(first, (!rotates).then_some(0), Change::Join) {
                Err(unplaced) if rotates && unplaced.reason.is_no_room() => EventState::Waiting,
                placed => return placed.map_err(|unplaced| unplaced.reason),
            }
        } else {
            EventState::Uncountable
        };
        self.assign(first, None, Change::Leave).map_err(|unplaced| unplaced.reason)?;
        self.change_group(first, state);
        Ok(())
    }
}
