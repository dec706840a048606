//! Opening: events alone, in groups, and as further members of a group.

use crate::counters::control::assignment::plan::PlacementError;
use crate::counters::control::handle::CounterSession;
use crate::counters::error::{CounterError, EventsError, bit_of_member};
use crate::counters::events::count::Membership;
use crate::counters::events::event::Event;
use crate::counters::events::software::SoftwareEvent;
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::running::Asked;
use crate::counters::names::{EventId, GroupId, MAX_COUNTERS};
use crate::counters::registers::counter::EventSelect;
use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::entry::EventState;
use crate::platform::Hardware;
use crate::profile::event_source::EventSource;

impl<S: EventSource, H: Hardware> CounterSession<'_, S, H> {
    /// Opens events, which are counted together or not at all, but does not enable them. Returns the first one, which
    /// leads the group; [`group_events`](Self::group_events) returns the others. A single event is a group of one.
    /// `processor` describes the events and counters of the processor that executes the call.
    ///
    /// The first event decides whether the group [rotates](Event::rotating), and whether it is
    /// [exclusive](Event::exclusive).
    ///
    /// ```
    /// # use pmu_core::{CounterSession, CounterUnit, Event, EventId, EventSource, GenericEvent, Hardware};
    /// # use pmu_core::error::EventsError;
    /// /// Opens a sampler of user mode's mispredicted branches. Its overflows carry the sampler's number.
    /// fn sample<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     this_processor: &CounterUnit,
    ///     sampler: u64,
    /// ) -> Result<EventId, EventsError> {
    ///     let event = Event::generic(GenericEvent::BranchMisses).user_only().every(100_003);
    ///     counters.open(this_processor, &[event.tagged(sampler)])
    /// }
    /// ```
    ///
    /// # Errors
    /// The error names the first event that cannot be opened. After an error, none of the events is open.
    /// - [`OtherProcessor`](CounterError::OtherProcessor): `processor` differs from the session's processor in its
    ///   generic events or in its select bits. A difference only in [`core_type`](CounterUnit::core_type) is no error:
    ///   a [raw](Event::raw) event then belongs to the core type of `processor`.
    /// - [`Unsupported`](CounterError::Unsupported): this processor lacks the generic event.
    /// - [`IllegalBits`](CounterError::IllegalBits): the event's select has bits that are illegal on this processor.
    /// - [`GuestModeUnsupported`](CounterError::GuestModeUnsupported): this processor cannot separate guests and host.
    /// - [`NeedsCounterPair`](CounterError::NeedsCounterPair): only a pair of counters counts the event.
    /// - [`NotReloadable`](CounterError::NotReloadable): an event that is to be [reloaded](Event::reloaded_by) must be
    ///   opened in a group of several.
    /// - [`BranchesUnsupported`](CounterError::BranchesUnsupported): the samples of the event cannot have the
    ///   [branches](Event::with_branches) that it asks for.
    /// - [`NotPrecise`](CounterError::NotPrecise): the event cannot be sampled as [precisely](Event::precise) as it
    ///   asks.
    /// - [`NotDivided`](CounterError::NotDivided): the event is a [part](Event::part), and no event before it in its
    ///   group is divided into this part.
    /// - [`SoftwareUnsupported`](CounterError::SoftwareUnsupported): the session counts no
    ///   [software events](Event::software).
    /// - [`NoCounterForEvent`](CounterError::NoCounterForEvent): no counter of this session can count the event.
    /// - [`Period`](CounterError::Period).
    /// - [`InsufficientMemory`](CounterError::InsufficientMemory): the session's table of opened events is full.
    /// - [`NoFreeCounter`](CounterError::NoFreeCounter), [`ExtraRegisterInUse`](CounterError::ExtraRegisterInUse): the
    ///   session has too few counters or extra registers for the whole group, even if no other event runs. The error
    ///   names the first event of the group that finds no counter or extra register. A smaller group may fit.
    /// - [`NoEvents`](CounterError::NoEvents): `events` is empty.
    ///
    /// # Limitations
    /// The events start and stop by one write if the processor has a global control register. Without one (AMD before
    /// PerfMonV2, Intel's version 1), they start and stop one after the other.
    // Inlined, so that a caller of one event alone does not link the plan for several.
    #[inline(always)]
    pub fn open(
        &mut self,
        processor: &CounterUnit,
        events: &[Event],
    ) -> Result<EventId, EventsError> {
        match events {
            [event] => self.open_alone(processor, event),
            events => self.open_group(processor, events),
        }
    }

    fn open_alone(
        &mut self,
        processor: &CounterUnit,
        event: &Event,
    ) -> Result<EventId, EventsError> {
        self.open_after(processor, event, &[], None)
            .map_err(|reason| EventsError::of_member(0, reason))
    }

    #[inline(never)] // 48 bytes of the glue.
    fn open_group(
        &mut self,
        processor: &CounterUnit,
        events: &[Event],
    ) -> Result<EventId, EventsError> {
        let group = GroupId::new();
        let mut first = None;
        let opened = self.open_members(processor, group, events, &mut first);
        let Some(first) = first else {
            return opened.and(Err(EventsError::of_group(CounterError::NoEvents)));
        };
        opened.and_then(|()| self.check_room(first)).inspect_err(|_| {
            for (_, entry) in self.members(first) {
                entry.set_state(EventState::Closed);
            }
        })?;
        Ok(first)
    }

    /// Opens an event that comes after others in its group, in a place behind an opened one.
    #[inline(never)] // 94 bytes of counters alone.
    pub(crate) fn open_after(
        &self,
        processor: &CounterUnit,
        event: &Event,
        before: &[Event],
        behind: Option<EventId>,
    ) -> Result<EventId, CounterError> {
        self.check_processor(processor)?;
        if let Some(software) = event.software_event() {
            return self.open_software(processor, event, software, behind);
        }
        let (select, counters) = match S::Facility::UNITS {
            true => processor.resolve_with_units(event)?,
            false => processor.resolve(event)?,
        };
        if event.reload != 0 {
            return Err(CounterError::NotReloadable);
        }
        let here = if S::Facility::OFFERS {
            let is_it = |other: u16| move |of: EventSelect| of.select_bits() == other.into();
            let is_beside =
                |other| before.iter().any(|event| event.select().is_some_and(is_it(other)));
            Some(self.resolve(Asked::of_event(event, select), counters, is_beside)?)
        } else {
            Self::check_plain(0, event.branches, event.precise)?;
            None
        };
        let usable = here.map_or(counters, |here| here.counters);
        let is_part = S::Facility::DIVIDES && event.is_part();
        if is_part {
            self.check_part(processor, event, before)?;
        } else if (usable & self.own()).is_empty() {
            return Err(CounterError::NoCounterForEvent);
        }
        if let Some(period) = event.period().filter(|_| event.frequency().is_none()) {
            self.table().check_period(period)?;
        }
        let (id, entry) = self.free_entry(behind)?;
        entry.open(event, processor, (select, counters));
        // Raised instead of refused: the first period of a frequency is a guess, which the samples correct.
        if entry.rate.has_frequency() {
            entry.period.set(self.table().at_least_min(entry.period.every()));
        }
        if let Some(here) = here {
            entry.adapt(&here);
        }
        if is_part {
            // Its group is counted without a counter for it.
            entry.set_disabled(true);
        }
        Ok(id)
    }

    fn open_software(
        &self,
        processor: &CounterUnit,
        event: &Event,
        software: SoftwareEvent,
        behind: Option<EventId>,
    ) -> Result<EventId, CounterError> {
        if !S::Facility::SOFTWARE {
            return Err(CounterError::SoftwareUnsupported);
        }
        let event = &event.checked_software(software)?;
        let resolved = processor.resolve(event)?;
        let (id, entry) = self.free_entry(behind)?;
        entry.open(event, processor, resolved);
        // A clock that does not run has the same count at any time, so 0 will do.
        entry.begin_software(0);
        Ok(id)
    }

    fn open_members(
        &self,
        processor: &CounterUnit,
        group: GroupId,
        events: &[Event],
        first: &mut Option<EventId>,
    ) -> Result<(), EventsError> {
        let of_first = |event: &Event| (event.rotates, event.flags & Membership::EXCLUSIVE);
        let (rotates, exclusive) = events.first().map(of_first).unwrap_or_default();
        for (member, event) in events.iter().enumerate() {
            let failed = |reason| EventsError::of_member(member, reason);
            if member == MAX_COUNTERS {
                return Err(failed(CounterError::NoFreeCounter));
            }
            let reloads = self.reloads_others(events, member).map_err(failed)?;
            let as_first = if member == 0 { Membership::FIRST } else { 0 };
            // Rotation and exclusiveness are properties of the whole group: its first event decides for all.
            let alone = Event {
                rotates,
                flags: event.flags & !Membership::EXCLUSIVE | exclusive | as_first,
                // The bitmap names members that are not open yet: `open_reload` stores it, and `open_after` would
                // refuse it.
                reload: if S::Facility::OFFERS { 0 } else { event.reload },
                ..*event
            };
            let before = events.get(..member).unwrap_or_default();
            let id = self.open_after(processor, &alone, before, None).map_err(failed)?;
            *first = first.or(Some(id));
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
    /// # use pmu_core::{CounterSession, CounterUnit, Event, EventId, EventSource, GenericEvent, Hardware};
    /// # use pmu_core::error::EventsError;
    /// /// Opens the cycles beside an event that was opened alone.
    /// fn beside<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
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
    /// - [`GroupElsewhere`](CounterError::GroupElsewhere).
    /// - [`IsEnabled`](CounterError::IsEnabled): the group is enabled. It is to be disabled before.
    /// - [`NotReloadable`](CounterError::NotReloadable): the event is to be [reloaded](Event::reloaded_by).
    /// - [`InsufficientMemory`](CounterError::InsufficientMemory): the table of opened events has no free place behind
    ///   those of the group.
    /// - The other errors of [`open`](Self::open).
    pub fn open_member(
        &mut self,
        processor: &CounterUnit,
        other: EventId,
        event: &Event,
    ) -> Result<EventId, EventsError> {
        self.first_of(other)?;
        let entry = self.entry(other)?;
        let found = entry.membership();
        let group = entry.group().unwrap_or_else(GroupId::new);
        if entry.group().is_none() {
            entry.set_membership(found.with(Membership::FIRST, true));
            entry.set_group(group, 1);
        }
        let rotates = entry.rotates();
        let flags = event.flags & !Membership::EXCLUSIVE | found.flags & Membership::EXCLUSIVE;
        let joined = self.open_behind(processor, other, &Event { rotates, flags, ..*event });
        if let (Err(_), Ok(entry)) = (&joined, self.entry(other)) {
            entry.set_membership(found);
        }
        joined
    }

    fn open_behind(
        &self,
        processor: &CounterUnit,
        other: EventId,
        event: &Event,
    ) -> Result<EventId, EventsError> {
        let group = self.entry(other)?.group().ok_or(CounterError::NoSuchEvent(other))?;
        let started = self.group_events(other).find(|event| self.is_enabled(*event));
        if let Some(started) = started {
            return Err(EventsError::of_group(CounterError::IsEnabled(started)));
        }
        let members = self.members(other).count();
        let failed = |reason| EventsError::of_member(members, reason);
        if members == MAX_COUNTERS {
            return Err(failed(CounterError::NoFreeCounter));
        }
        // Only a part and a latency ask which events are before them, and each of them for one event.
        let last = self.group_events(other).last();
        let mut places = self
            .members(other)
            .map(|(_, entry)| self.open_after(processor, event, &[entry.extract().event()], last));
        let first = places.next().unwrap_or(Err(CounterError::NoEvents));
        let id = first.or_else(|why| places.find_map(Result::ok).ok_or(why)).map_err(failed)?;
        let opened = self.entry(id)?;
        opened.set_group(group, 0);
        let counted = |members: usize| {
            self.members(other).for_each(|(_, entry)| entry.set_group(group, members as u8));
        };
        counted(members + 1);
        self.check_room(other).inspect_err(|_| {
            opened.set_state(EventState::Closed);
            counted(members);
        })?;
        Ok(id)
    }

    /// Checks that the events of a group can be counted together.
    fn check_room(&self, event: EventId) -> Result<(), EventsError> {
        let first = self.first_of(event)?;
        // On an empty plan: a group that does not fit alone would never be counted.
        let room = self.planner().try_place(first);
        room.map_err(|no_room| self.error_of(no_room.into()))
    }

    /// Returns the error that names the event for which there is no room.
    #[inline(never)] // 32 bytes of the glue, at `opt-level` 3.
    pub(super) fn error_of(&self, PlacementError { event, reason }: PlacementError) -> EventsError {
        let member = self.group_events(event).position(|of| of == event);
        let member = member.filter(|_| reason.is_no_room());
        EventsError { events: member.map_or(0, bit_of_member), reason }
    }
}
