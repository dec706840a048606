//! Groups: events that are counted together, or not at all.

use core::fmt;
use core::num::NonZero;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use crate::counters::entry::EventState;
use crate::counters::plan::Unplaced;
use crate::{
    CounterError, CounterSet, CounterUnit, Counters, Event, EventCount, EventEntry, EventId,
    EventSource, MAX_COUNTERS, MsrBackend, Platform,
};

/// Events that are counted together, or not at all: opened by [`Counters::open_group`].
///
/// The identity is unique in the machine until 2³² groups were opened, and a group keeps it on every processor.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct GroupId(NonZero<u32>);

impl GroupId {
    fn new() -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        loop {
            if let Some(group) = Self::of_bits(LAST.fetch_add(1, Relaxed).wrapping_add(1)) {
                return group;
            }
        }
    }

    /// Returns the group with this number; 0: none.
    pub(crate) fn of_bits(bits: u32) -> Option<Self> {
        NonZero::new(bits).map(Self)
    }

    pub(crate) const fn bits(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Debug for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {}", self.0)
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Error of an operation on a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct GroupError {
    /// Number of the event for which it failed, from 0, in the order in which they were given to
    /// [`open_group`](Counters::open_group); `None`, where it is not one event's: a register failed while the group was
    /// started, or it is the group as a whole.
    pub member: Option<usize>,
    /// Reason.
    pub reason: CounterError,
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.member {
            Some(member) => write!(f, "events[{member}] of the group: {}", self.reason),
            None => fmt::Display::fmt(&self.reason, f),
        }
    }
}

impl core::error::Error for GroupError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.reason)
    }
}

/// An error of the counters, where groups and other events are started by one function: not one event's.
///
/// ```
/// use pmu_core::{CounterError, GroupError};
/// let error = GroupError::from(CounterError::NoFreeCounter);
/// assert_eq!(error, GroupError { member: None, reason: CounterError::NoFreeCounter });
/// ```
impl From<CounterError> for GroupError {
    fn from(reason: CounterError) -> Self {
        Self::of_group(reason)
    }
}

impl GroupError {
    const fn of_group(reason: CounterError) -> Self {
        Self { member: None, reason }
    }

    const fn of_member(member: usize, reason: CounterError) -> Self {
        Self { member: Some(member), reason }
    }
}

/// Returns the error for a group that is not here.
fn no_such(group: GroupId) -> GroupError {
    GroupError::of_group(CounterError::NoSuchGroup(group))
}

impl<S: EventSource, M: MsrBackend, P: Platform> Counters<'_, S, M, P> {
    /// Opens events that are to be counted together, stopped. The group [rotates](Event::rotating) if its first event
    /// does.
    ///
    /// ```
    /// # use pmu_core::{
    /// #     CounterUnit, Counters, Event, EventCount, EventSource, GroupError, MsrBackend, NamedEvent, Platform,
    /// # };
    /// /// Returns the instructions per thousand cycles of a function.
    /// fn instructions_per_kilocycle<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut Counters<'_, S, M, P>,
    ///     unit: &CounterUnit,
    ///     clock: impl Fn() -> u64,
    ///     function: impl FnOnce(),
    /// ) -> Result<Option<u64>, GroupError> {
    ///     let events = [NamedEvent::Instructions, NamedEvent::Cycles].map(Event::named);
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
    /// Those of [`open_event`](Self::open_event), for the first event that has one; then
    /// [`NoFreeCounter`](CounterError::NoFreeCounter) or [`ExtraRegisterInUse`](CounterError::ExtraRegisterInUse) for
    /// the first event that could not be counted beside those before it, on this session's counters without any other
    /// event: such a group never starts, and has to be split; [`NoEvents`](CounterError::NoEvents). Nothing was opened.
    pub fn open_group(
        &mut self,
        processor: &CounterUnit,
        events: &[Event],
    ) -> Result<GroupId, GroupError> {
        if events.is_empty() {
            return Err(GroupError::of_group(CounterError::NoEvents));
        }
        let group = GroupId::new();
        let rotates = events.first().is_some_and(|event| event.rotates);
        let opened = self.open_members(processor, group, events, rotates);
        opened.and_then(|()| self.check_room(group)).inspect_err(|_| {
            for (_, entry) in self.members(group) {
                entry.set_state(EventState::Closed);
            }
        })?;
        Ok(group)
    }

    fn open_members(
        &mut self,
        processor: &CounterUnit,
        group: GroupId,
        events: &[Event],
        rotates: bool,
    ) -> Result<(), GroupError> {
        for (member, event) in events.iter().enumerate() {
            let failed = |reason| GroupError::of_member(member, reason);
            if member == MAX_COUNTERS {
                return Err(failed(CounterError::NoFreeCounter));
            }
            let event = Event { rotates, ..*event };
            let id = self.open_event(processor, &event).map_err(failed)?;
            if let Some(entry) = self.table().entry(id) {
                entry.set_group(group, events.len() as u8);
            }
        }
        Ok(())
    }

    /// Checks that the events of a group can be counted together.
    fn check_room(&self, group: GroupId) -> Result<(), GroupError> {
        let (first, _) = self.members(group).next().ok_or_else(|| no_such(group))?;
        let room = self.planner().admit(first);
        room.map_err(|no_room| self.error_of(no_room.into()))
    }

    pub(crate) fn members(&self, group: GroupId) -> impl Iterator<Item = (EventId, &EventEntry)> {
        self.table().opened().filter(move |(_, entry)| entry.group() == Some(group))
    }

    /// Returns the events of a group, in the order in which they were given to [`open_group`](Self::open_group), or to
    /// [`switch_in`](Self::switch_in).
    pub fn group_events(&self, group: GroupId) -> impl Iterator<Item = EventId> {
        self.members(group).filter(|_| self.is_open()).map(|(event, _)| event)
    }

    /// Returns the error that names the event for which there is no room.
    fn error_of(&self, Unplaced { event, reason }: Unplaced) -> GroupError {
        let group = self.table().entry(event).and_then(EventEntry::group);
        let member = group.and_then(|group| self.group_events(group).position(|of| of == event));
        GroupError { member: member.filter(|_| reason.is_no_room()), reason }
    }

    /// Returns the first event of a group that is whole on this processor.
    fn first_of(&self, group: GroupId) -> Result<EventId, GroupError> {
        let first = self.members(group).next().filter(|_| self.is_open());
        let (first, entry) = first.ok_or_else(|| no_such(group))?;
        let is_whole = self.members(group).count() == usize::from(entry.members());
        if is_whole { Ok(first) } else { Err(no_such(group)) }
    }

    /// Returns whether an event is in no group, or the first one of its group that waits.
    pub(crate) fn is_first(&self, event: EventId) -> bool {
        let group = self.table().entry(event).and_then(EventEntry::group);
        let waits = |(_, entry): &(EventId, &EventEntry)| entry.state() == EventState::Waiting;
        let first = group.and_then(|group| self.members(group).find(waits));
        first.is_none_or(|(first, _)| first == event)
    }

    /// Checks that the group of an event, if it has one, is whole on this processor.
    pub(crate) fn check_whole(&self, event: EventId) -> Result<(), Unplaced> {
        let group = self.table().entry(event).and_then(EventEntry::group);
        let whole = group.map_or(Ok(event), |group| self.first_of(group));
        whole.map(|_| ()).map_err(|error| Unplaced { event, reason: error.reason })
    }

    /// Starts the events of a group together: with a global control register, by one write. Where that makes room,
    /// other events are moved to other counters. Otherwise a group that rotates waits for its turn, and any other one
    /// takes the counters of events that rotate. Totals and periods continue as in
    /// [`start_event`](Self::start_event).
    ///
    /// An assignment is found if there is one: of the group's events, and of those that run and do not give way, to
    /// counters that can count them, and to [extra registers](Event::with_extra). For each event the counters are
    /// searched once, and the extra registers' values at most in every order. No register is accessed before the
    /// assignment is found.
    ///
    /// # Errors
    /// [`NoSuchGroup`](CounterError::NoSuchGroup), [`AlreadyStarted`](CounterError::AlreadyStarted);
    /// [`NoFreeCounter`](CounterError::NoFreeCounter) or [`ExtraRegisterInUse`](CounterError::ExtraRegisterInUse) for
    /// the first event for which there is no room beside those before it;
    /// [`Access`](CounterError::Access), [`Faulted`](CounterError::Faulted). None of its events runs.
    pub fn start_group(&mut self, group: GroupId, now: u64) -> Result<(), GroupError> {
        let first = self.first_of(group)?;
        for (member, event) in self.group_events(group).enumerate() {
            if self.is_started(event) {
                return Err(GroupError::of_member(member, CounterError::AlreadyStarted(event)));
            }
        }
        self.members(group).for_each(|(_, entry)| entry.begin_time(now));
        self.give_counters(first, now).map_err(|unplaced| self.error_of(unplaced))
    }

    /// Stops the events of a group together. Pending overflows are not reported; the totals are complete.
    ///
    /// # Errors
    /// [`NoSuchGroup`](CounterError::NoSuchGroup); [`NotStarted`](CounterError::NotStarted): none of its events is.
    /// Otherwise the first failure, after everything else was stopped: those of [`stop_event`](Self::stop_event).
    pub fn stop_group(&mut self, group: GroupId, now: u64) -> Result<(), GroupError> {
        let first = self.first_of(group)?;
        if !self.group_events(group).any(|event| self.is_started(event)) {
            return Err(GroupError::of_group(CounterError::NotStarted(first)));
        }
        let on: CounterSet =
            self.group_events(group).filter_map(|of| self.counter_of(of)).collect();
        let mut outcome = self.halt(on).map_err(GroupError::of_group);
        for (member, (event, entry)) in self.members(group).enumerate() {
            let taken = self.take_off(event, entry, now);
            outcome = outcome.and(taken.map_err(|reason| GroupError::of_member(member, reason)));
        }
        let going_on = self.go_on(on).map_err(GroupError::of_group);
        outcome.and(going_on)
    }

    /// Stops a group and closes its events: also what of it is on this processor, if other events of it are switched
    /// out. Their identities may be other events' afterwards.
    ///
    /// # Errors
    /// [`NoSuchGroup`](CounterError::NoSuchGroup): none of its events is here; those of
    /// [`stop_group`](Self::stop_group), after which it stays open.
    pub fn close_group(&mut self, group: GroupId, now: u64) -> Result<(), GroupError> {
        self.group_events(group).next().ok_or_else(|| no_such(group))?;
        if self.group_events(group).any(|event| self.is_started(event)) {
            self.stop_group(group, now)?;
        }
        self.members(group).for_each(|(_, entry)| entry.set_state(EventState::Closed));
        Ok(())
    }

    /// Reads the counts of a group's events into `counts`, in their order, one after the other: each
    /// counter once, by RDPMC, if the group is on counters. Returns the number of counts. If `counts` is shorter than
    /// the group, the counts of its other events are left out.
    ///
    /// The times of all of them are the same, so that the ratio of two counts needs no
    /// [scaling](EventCount::scaled).
    ///
    /// An interrupt's handler has no handle to the counters, so that it cannot read a group.
    ///
    /// # Errors
    /// [`NoSuchGroup`](CounterError::NoSuchGroup); those of [`read_event`](Self::read_event), for the first event that
    /// has one: [`CounterLost`](CounterError::CounterLost), where a counter faulted.
    pub fn read_group(
        &self,
        group: GroupId,
        now: u64,
        counts: &mut [EventCount],
    ) -> Result<usize, GroupError> {
        self.first_of(group)?;
        let mut read = 0;
        for (count, event) in counts.iter_mut().zip(self.group_events(group)) {
            let failed = |reason| GroupError::of_member(read, reason);
            *count = self.read_event(event, now).map_err(failed)?;
            read += 1;
        }
        Ok(read)
    }
}
