//! The events of a thread: plain data while the thread is on no processor.

use crate::counters::error::{CounterError, EventsError};
use crate::counters::events::count::Membership;
use crate::counters::events::saved::SavedEvent;
use crate::counters::names::{EventId, GroupId, MAX_COUNTERS};

/// One event of a thread, either open on a processor or switched out.
///
/// This example is the context switch of a perf-like subsystem. Each thread has a slice of events.
///
/// ```
/// use pmu_core::{CounterSession, CounterUnit, Event, EventSource, GenericEvent, Hardware};
/// use pmu_core::error::{CounterError, EventsError};
/// use pmu_core::thread::ThreadEvent;
///
/// /// Opens a group and an event for the running thread. For a thread that does not run, a kernel opens them on any
/// /// processor in the same way, and switches them out at once. A raw event is counted only on that type of core.
/// fn open<S: EventSource, H: Hardware>(
///     counters: &mut CounterSession<'_, S, H>,
///     this: &CounterUnit, // this processor's, of its own type of core
///     alone: Event,
///     now: u64,
/// ) -> Result<[ThreadEvent; 3], EventsError> {
///     let group = [GenericEvent::Instructions, GenericEvent::Cycles].map(Event::generic);
///     let group = counters.start(this, &group, now)?;
///     let alone = match counters.start(this, &[alone], now) {
///         Ok(alone) => alone,
///         Err(error) => {
///             counters.close(group, now)?;
///             return Err(error);
///         }
///     };
///     let mut thread = [ThreadEvent::Opened(alone); 3];
///     for (place, event) in thread.iter_mut().zip(counters.group_events(group)) {
///         *place = ThreadEvent::Opened(event);
///     }
///     Ok(thread)
/// }
///
/// /// The context switch, on each processor with its own counters and unit.
/// fn switch<S: EventSource, H: Hardware>(
///     counters: &mut CounterSession<'_, S, H>,
///     this: &CounterUnit,
///     (old, new): (&mut [ThreadEvent], &mut [ThreadEvent]),
///     now: u64,
/// ) -> Result<(), EventsError> {
///     let taken = counters.switch_out(old, now, |_overflow| { /* a sample of the old thread's */ });
///     // An error concerns single events. So the new thread's events are given to the processor in any case.
///     let given = counters.switch_in(this, new, now);
///     taken.and(given)
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum ThreadEvent {
    /// The slice has no event at this index.
    #[default]
    Unused,
    /// The event is open on the processor on which the thread runs.
    Opened(EventId),
    /// The thread runs on no processor, and the event is switched out.
    SwitchedOut(SavedEvent),
}

impl ThreadEvent {
    /// Puts an event into the group of another event of its thread, as `perf_event_open` does with a `group_fd`. The
    /// event takes the first [unused](Self::Unused) place of `events` behind the group's events; the result is its
    /// index. If the other event is in no group, it becomes the first event of a new one. The group decides whether the
    /// event rotates, whether it is exclusive, and whether it is to be enabled; a [disabled](SavedEvent::disabled)
    /// event stays disabled.
    ///
    /// The thread is on no processor: a task that adds to its own events switches them out before, and in afterwards,
    /// without a pause in between in which another task runs.
    ///
    /// ```
    /// use pmu_core::{CounterUnit, Event};
    /// use pmu_core::error::{CounterError, EventsError};
    /// use pmu_core::thread::{SavedEvent, ThreadEvent};
    /// /// Opens an event beside the first one of a thread.
    /// fn beside(unit: &CounterUnit, thread: &mut [ThreadEvent; 4], event: &Event) -> Result<usize, EventsError> {
    ///     ThreadEvent::join(thread, 0, SavedEvent::new(unit, event)?)
    /// }
    /// # let mut none = [ThreadEvent::Unused; 4];
    /// # let cycles = Event::generic(pmu_core::GenericEvent::Cycles);
    /// # assert!(beside(&CounterUnit::NONE, &mut none, &cycles).is_err());
    /// ```
    ///
    /// # Context
    /// Any context. No register is accessed.
    ///
    /// # Errors
    /// After an error, nothing was changed. Whether counters can count the whole group is found by
    /// [`switch_in`](crate::CounterSession::switch_in).
    /// - [`IsEnabled`](CounterError::IsEnabled): an event of the thread is open on a processor.
    /// - [`NoEvents`](CounterError::NoEvents): there is no event at `other`.
    /// - [`InsufficientMemory`](CounterError::InsufficientMemory): no place behind the group's events is unused.
    /// - [`NoFreeCounter`](CounterError::NoFreeCounter): the group has more events than any processor has counters.
    /// - [`NotReloadable`](CounterError::NotReloadable): the event is to be [reloaded](crate::Event::reloaded_by).
    pub fn join(
        events: &mut [Self],
        other: usize,
        event: SavedEvent,
    ) -> Result<usize, EventsError> {
        let failed = |reason| Err(EventsError::of_group(reason));
        if let Some(event) = events.iter().find_map(Self::opened) {
            return failed(CounterError::IsEnabled(event));
        }
        let Some(of_other) = events.get(other).and_then(Self::membership) else {
            return failed(CounterError::NoEvents);
        };
        let is_new = of_other.group == 0;
        let group = if is_new { GroupId::new().bits() } else { of_other.group };
        let is_member = |(place, event): (usize, &Self)| {
            let is_of_group = event.membership().is_some_and(|found| found.group == group);
            (place == other || is_of_group).then_some(place)
        };
        let members = || events.iter().enumerate().filter_map(is_member);
        let (Some(first), Some(last)) = (members().next(), members().next_back()) else {
            return failed(CounterError::NoEvents);
        };
        let count = members().count();
        if count == MAX_COUNTERS {
            return Err(EventsError::of_member(count, CounterError::NoFreeCounter));
        }
        if Membership::unpack(event.membership).reload != 0 {
            return Err(EventsError::of_member(count, CounterError::NotReloadable));
        }
        let is_unused = |(_, event): &(usize, &mut Self)| **event == Self::Unused;
        let lent = events.len() as u16;
        let no_place = CounterError::InsufficientMemory { needed: lent + 1, lent };
        let (rotates, enabled) = match events.get(first) {
            Some(Self::SwitchedOut(first)) => (first.rotates, first.enabled),
            _ => return failed(CounterError::NoEvents),
        };
        let Some((place, unused)) = events.iter_mut().enumerate().skip(last + 1).find(is_unused)
        else {
            return Err(EventsError::of_member(count, no_place));
        };
        let joined = Membership::unpack(event.membership)
            .with(Membership::FIRST, false)
            .with(Membership::EXCLUSIVE, of_other.has(Membership::EXCLUSIVE));
        let enabled = enabled && !joined.has(Membership::DISABLED);
        let membership = Membership { group, ..joined }.pack();
        *unused = Self::SwitchedOut(SavedEvent { membership, rotates, enabled, ..event });
        for (place, event) in events.iter_mut().enumerate() {
            if is_member((place, event)).is_some()
                && let Self::SwitchedOut(event) = event
            {
                let found = Membership::unpack(event.membership);
                let is_first = found.has(Membership::FIRST) || is_new && place == other;
                let disabled = found.has(Membership::DISABLED) && !is_first;
                let found =
                    found.with(Membership::FIRST, is_first).with(Membership::DISABLED, disabled);
                event.membership = Membership { group, members: count as u8 + 1, ..found }.pack();
            }
        }
        Ok(place)
    }

    /// Enables an event of a thread that is on no processor, as `PERF_EVENT_IOC_ENABLE` does: it counts when the thread
    /// next runs. For the first event of a group, enables the group, without its [disabled](SavedEvent::disabled)
    /// events. A thread that runs is changed by `pmu::Pmu::with_thread`.
    ///
    /// ```
    /// use pmu_core::error::EventsError;
    /// use pmu_core::thread::ThreadEvent;
    /// /// Lets the events of a thread count from the next `exec` on, as `enable_on_exec` says.
    /// fn exec(thread: &mut [ThreadEvent]) -> Result<(), EventsError> {
    ///     let used = |event: &ThreadEvent| *event != ThreadEvent::Unused;
    ///     (0..thread.len()).try_for_each(|index| match used(&thread[index]) {
    ///         true => ThreadEvent::enable(thread, index),
    ///         false => Ok(()),
    ///     })
    /// }
    /// # assert_eq!(exec(&mut [ThreadEvent::Unused]), Ok(()));
    /// ```
    ///
    /// # Errors
    /// - [`IsEnabled`](CounterError::IsEnabled): an event of the thread is open on a processor.
    /// - [`NoEvents`](CounterError::NoEvents): there is no event at `index`.
    pub fn enable(events: &mut [Self], index: usize) -> Result<(), EventsError> {
        let (of, is_first) = Self::group_at(events, index)?;
        let first = Self::members(events, of, index).next().unwrap_or(index);
        let first = events.get(first).and_then(Self::saved).copied().unwrap_or(SavedEvent::NONE);
        Self::change(events, of, index, is_first, |event, itself| match (is_first, itself) {
            (false, true) => event.enabled(&first),
            _ => event.to_be_enabled(true),
        });
        Ok(())
    }

    /// Disables an event of a thread that is on no processor, as `PERF_EVENT_IOC_DISABLE` does. Its count stays. For
    /// the first event of a group, disables the group.
    ///
    /// # Errors
    /// As [`enable`](Self::enable).
    pub fn disable(events: &mut [Self], index: usize) -> Result<(), EventsError> {
        let (of, is_first) = Self::group_at(events, index)?;
        Self::change(events, of, index, is_first, |event, itself| match (is_first, itself) {
            (false, true) => event.disabled(),
            _ => event.to_be_enabled(false),
        });
        Ok(())
    }

    /// Removes an event of a thread that is on no processor, as Linux does when the last descriptor of the event is
    /// closed. The others of its group stay a group, or are in no group if the event was the first of it. Events that
    /// need each other are removed together: the parts of an event with it, and a group with
    /// [reloaded](crate::Event::reloaded_by) events as a whole.
    ///
    /// # Errors
    /// As [`enable`](Self::enable).
    pub fn remove(events: &mut [Self], index: usize) -> Result<(), EventsError> {
        let (of, is_first) = Self::group_at(events, index)?;
        let reloads = |event: &Self| event.membership().is_some_and(|found| found.reload != 0);
        let as_whole = of.group != 0
            && Self::members(events, of, index)
                .any(|member| events.get(member).is_some_and(reloads));
        let left = of.members.saturating_sub(1);
        for (place, event) in events.iter_mut().enumerate() {
            let Self::SwitchedOut(saved) = event else { continue };
            let found = Membership::unpack(saved.membership);
            let is_member = found.is_of_group(of);
            if place == index || is_member && (as_whole || is_first && saved.is_part()) {
                *event = Self::Unused;
            } else if is_member && is_first {
                let flags = found.flags & !(Membership::DISABLED | Membership::EXCLUSIVE);
                saved.membership = Membership::ungrouped(found.name(), flags).pack();
            } else if is_member {
                saved.membership = Membership { members: left, ..found }.pack();
            }
        }
        Ok(())
    }

    /// Makes the events that a new thread inherits from `parent`, at the same indices, with the groups of the parent's.
    /// They are [children](SavedEvent::child): their counts are 0. `tag` returns the child's tag for the parent's. Each
    /// thread is on no processor.
    ///
    /// ```
    /// use pmu_core::error::EventsError;
    /// use pmu_core::thread::ThreadEvent;
    /// /// `fork`: the child has the parent's tags, so its samples are written to the parent's descriptors.
    /// fn fork(parent: &[ThreadEvent; 8]) -> Result<[ThreadEvent; 8], EventsError> {
    ///     let mut child = [ThreadEvent::Unused; 8];
    ///     ThreadEvent::inherit(parent, &mut child, |tag| tag).map(|()| child)
    /// }
    /// /// The exit of a child: its counts are the parent's.
    /// fn exit(child: &[ThreadEvent; 8], parent: &mut [ThreadEvent; 8]) {
    ///     ThreadEvent::add_counts(parent, child);
    /// }
    /// # let mut parent = [ThreadEvent::Unused; 8];
    /// # exit(&fork(&parent).unwrap(), &mut parent);
    /// ```
    ///
    /// # Errors
    /// Nothing was changed.
    /// - [`IsEnabled`](CounterError::IsEnabled): an event of a thread is open on a processor.
    /// - [`InsufficientMemory`](CounterError::InsufficientMemory): `child` has no unused place at the index of an
    ///   event.
    pub fn inherit(
        parent: &[Self],
        child: &mut [Self],
        mut tag: impl FnMut(u64) -> u64,
    ) -> Result<(), EventsError> {
        if let Some(event) = parent.iter().chain(&*child).find_map(Self::opened) {
            return Err(EventsError::of_group(CounterError::IsEnabled(event)));
        }
        let inherited = || parent.iter().enumerate().filter_map(|(at, of)| Some((at, of.saved()?)));
        let has_room = |at: usize| child.get(at) == Some(&Self::Unused);
        if let Some((at, _)) = inherited().find(|(at, _)| !has_room(*at)) {
            let (needed, lent) = (at as u16 + 1, child.len() as u16);
            let reason = CounterError::InsufficientMemory { needed, lent };
            return Err(EventsError::of_member(at, reason));
        }
        for (at, event) in inherited() {
            let of = Membership::unpack(event.membership);
            let sibling =
                inherited().find(|(_, other)| of.group != 0 && other.group() == event.group());
            let group = match sibling {
                None => 0,
                // It was made before.
                Some((first, _)) if first < at => {
                    child.get(first).and_then(Self::membership).map_or(0, |of| of.group)
                }
                Some(_) => GroupId::new().bits(),
            };
            if let Some(place) = child.get_mut(at) {
                let membership = Membership { group, ..of }.pack();
                *place =
                    Self::SwitchedOut(SavedEvent { membership, ..event.child(tag(event.tag)) });
            }
        }
        Ok(())
    }

    /// Adds the counts of a thread that ends to those of its parent, at the same indices:
    /// [`SavedEvent::add_count`]. Events that are not switched out, in either thread, are left out.
    pub fn add_counts(parent: &mut [Self], child: &[Self]) {
        for pair in parent.iter_mut().zip(child) {
            if let (Self::SwitchedOut(parent), Self::SwitchedOut(child)) = pair {
                parent.add_count(child.count());
            }
        }
    }

    /// Returns the membership of an event of a thread that is on no processor, and whether the event stands for its
    /// group, or is in none.
    fn group_at(events: &[Self], index: usize) -> Result<(Membership, bool), EventsError> {
        if let Some(event) = events.iter().find_map(Self::opened) {
            return Err(EventsError::of_group(CounterError::IsEnabled(event)));
        }
        let of = events.get(index).and_then(Self::membership);
        let of = of.ok_or(EventsError::of_group(CounterError::NoEvents))?;
        Ok((of, of.group == 0 || of.has(Membership::FIRST)))
    }

    /// Returns the indices of an event and of the others of its group.
    fn members(events: &[Self], of: Membership, index: usize) -> impl Iterator<Item = usize> {
        let is_member = move |(at, event): (usize, &Self)| {
            let is_of_group = event.membership().is_some_and(|found| found.is_of_group(of));
            (at == index || is_of_group).then_some(at)
        };
        events.iter().enumerate().filter_map(is_member)
    }

    /// Changes an event, or all events of its group. `to` is told whether it is called for the event itself.
    fn change(
        events: &mut [Self],
        of: Membership,
        index: usize,
        group: bool,
        to: impl Fn(SavedEvent, bool) -> SavedEvent,
    ) {
        for (at, event) in events.iter_mut().enumerate() {
            let Self::SwitchedOut(saved) = event else { continue };
            if at == index || group && Membership::unpack(saved.membership).is_of_group(of) {
                *saved = to(*saved, at == index);
            }
        }
    }

    /// Notes that a thread ran while its events were on no processor, or that it runs another program now: its [call
    /// stack](crate::branches::BranchFilter::call_stack), if one was kept, begins anew. If an event is open on a
    /// processor, it is left out.
    ///
    /// [`switch_out`](crate::CounterSession::switch_out) and `pmu::Pmu::switch` do this for events of the thread that
    /// leaves, if they were not switched in.
    pub fn forget_call_stacks(events: &mut [Self]) {
        for event in events {
            if let Self::SwitchedOut(event) = event {
                event.stack = 0;
            }
        }
    }

    const fn saved(&self) -> Option<&SavedEvent> {
        if let Self::SwitchedOut(event) = self { Some(event) } else { None }
    }

    const fn opened(&self) -> Option<EventId> {
        if let Self::Opened(event) = self { Some(*event) } else { None }
    }

    fn membership(&self) -> Option<Membership> {
        self.saved().map(|event| Membership::unpack(event.membership))
    }
}
