//! The events that are opened on a processor.

use core::iter;
use core::ops::Deref;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use crate::counters::error::CounterError;
use crate::counters::events::count::{Membership, Period};
use crate::counters::events::software::SoftwareEvent;
use crate::counters::names::{CounterSet, EventId, GroupId};
use crate::counters::registers::counter::EventSelect;
use crate::counters::shared::entry::{EventEntry, EventState};
use crate::counters::shared::extra_registers::ExtraRegisters;

/// Table of the events that are opened on one processor: 200 bytes per event, plus 224 bytes. The table may have room
/// for more events than there are counters.
///
/// The embedder lends the table to a [`CounterSession`](crate::CounterSession), together with a
/// [`CounterMemory`](crate::memory::CounterMemory), for as long as the processor counts. `&EventTable<[EventEntry; N]>`
/// coerces to `&EventTable`.
///
/// ```
/// use pmu_core::memory::{EventEntry, EventTable};
/// static EVENTS: [EventTable<[EventEntry; 8]>; 2] = [const { EventTable::new() }; 2];
/// let of_processor_0: &EventTable = &EVENTS[0];
/// assert_eq!(of_processor_0.len(), 8);
/// ```
#[derive(Debug)]
pub struct EventTable<E: ?Sized = [EventEntry]> {
    taken: AtomicBool,
    virtualization: AtomicBool,
    /// Number of the last change of an event's turn.
    turn: AtomicU32,
    /// Shortest period. 0 stands for [`DEFAULT_MIN_PERIOD`](EventTable::DEFAULT_MIN_PERIOD), so that a new table is
    /// zeros, which take no room in a kernel's image.
    min_period: AtomicU64,
    /// Nanoseconds of a [`Tick`](crate::thread::Tick); 0: there was none yet.
    pub(crate) tick: AtomicU64,
    /// Samples of an event between two ticks; 0: any number.
    pub(crate) max_samples: AtomicU16,
    /// The number of ticks, in its low bits.
    pub(crate) ticks: AtomicU8,
    pub(crate) extra: ExtraRegisters,
    entries: E,
}

/// The empty table, for sources that open no events.
static NONE: EventTable<[EventEntry; 0]> = EventTable::new();

impl<const N: usize> EventTable<[EventEntry; N]> {
    /// Creates a table for `N` events, of which at most 2,048 can be open at the same time.
    pub const fn new() -> Self {
        Self {
            taken: AtomicBool::new(false),
            virtualization: AtomicBool::new(false),
            turn: AtomicU32::new(0),
            min_period: AtomicU64::new(0),
            tick: AtomicU64::new(0),
            max_samples: AtomicU16::new(0),
            ticks: AtomicU8::new(0),
            extra: ExtraRegisters::new(),
            entries: [const { EventEntry::new() }; N],
        }
    }
}

impl<const N: usize> Default for EventTable<[EventEntry; N]> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Deref for EventTable<[EventEntry; N]> {
    type Target = EventTable;

    fn deref(&self) -> &EventTable {
        self
    }
}

impl EventTable {
    /// Shortest period that a new table accepts, in occurrences of the event: 4,096.
    pub const DEFAULT_MIN_PERIOD: u64 = Period::DEFAULT_MIN;

    /// Returns the empty table, in which no event can be opened.
    #[inline]
    pub const fn none() -> &'static Self {
        &NONE
    }

    /// Returns the table's capacity: the greatest number of events that can be open at the same time.
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether the table's capacity is 0.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Sets the shortest period that the table accepts, instead of
    /// [`DEFAULT_MIN_PERIOD`](Self::DEFAULT_MIN_PERIOD). Events that are already open keep their periods.
    ///
    /// Servicing an interrupt can itself cause occurrences of the event that interrupted. If servicing one interrupt
    /// causes a whole period of occurrences, the next interrupt comes immediately. The processor then does nothing but
    /// service interrupts. Lower the minimum only for events that the kernel's interrupt path does not cause, such as
    /// events that are counted only in user mode.
    ///
    /// ```
    /// # use pmu_core::{Event, GenericEvent};
    /// # use pmu_core::memory::{EventEntry, EventTable};
    /// static EVENTS: EventTable<[EventEntry; 8]> = EventTable::new();
    /// assert_eq!(EventTable::DEFAULT_MIN_PERIOD, 4_096);
    /// EVENTS.set_min_period(500);
    /// // Accepted now. Only user mode is counted, so an interrupt of 1,000 instructions does not cause the next one.
    /// let event = Event::generic(GenericEvent::Instructions).user_only().every(500);
    /// # let _ = event;
    /// ```
    ///
    /// # Context
    /// Any.
    pub fn set_min_period(&self, events: u64) {
        self.min_period.store(events.max(1), Relaxed);
    }

    /// Sets the period of an opened event that interrupts. The new period begins at the event's next overflow. If the
    /// handler of the event's own overflow makes this call, the new period begins at this overflow. A task can make a
    /// shorter period begin earlier: if the new period is shorter than the remainder of the old period, the new period
    /// begins when a task disables and enables the event.
    ///
    /// A throttled event stays throttled until the next [tick](crate::CounterSession::tick), and then has the period.
    ///
    /// If this call follows [`stop_reporting`](Self::stop_reporting) within the handler of the event's overflow, the
    /// event goes on reporting. After the handler, no period is under way that ends. The new period then begins only
    /// when a task enables the event, or when the event is next put on a counter. To begin the period at once, a task
    /// calls [`apply_period`](crate::CounterSession::apply_period).
    ///
    /// ```
    /// # use pmu_core::interrupt::EventOverflow;
    /// # use pmu_core::memory::EventTable;
    /// /// Sets the period for about 1,000 samples per second, at an overflow `elapsed` nanoseconds after the last one.
    /// fn adapt(events: &EventTable, overflow: &EventOverflow, elapsed: u64) {
    ///     let per_millisecond = u128::from(overflow.period) * 1_000_000 / u128::from(elapsed.max(1));
    ///     // If the new period is too short, it is refused, and the present period stays.
    ///     let _ = events.set_period(overflow.event, per_millisecond as u64);
    /// }
    /// ```
    ///
    /// # Context
    /// Any context, including the event's own interrupt.
    ///
    /// # Errors
    /// - [`NoSuchEvent`](CounterError::NoSuchEvent), [`NoPeriod`](CounterError::NoPeriod).
    /// - [`Period`](CounterError::Period): the period is below the [minimum](Self::set_min_period), or does not fit in
    ///   63 bits.
    pub fn set_period(&self, event: EventId, period: u64) -> Result<(), CounterError> {
        let entry = self.named(event).ok_or(CounterError::NoSuchEvent(event))?;
        if !entry.period.reports() {
            return Err(CounterError::NoPeriod(event));
        }
        self.check_period_of(entry, period)?;
        entry.period.change(|before| match entry.rate.is_throttled() {
            true => period | before & Period::SILENT,
            false => period,
        });
        Ok(())
    }

    /// Stops reporting the overflows of an event that has a period, until a task enables the event again. The event
    /// stays on its counter, and counts until a task disables the event.
    ///
    /// After a call from the handler of the event's own overflow, no further overflow is reported. After any other
    /// call, one more overflow may still be reported: the overflow that ends the current period.
    ///
    /// A context switch or a [tick](crate::CounterSession::tick) alone does not make the event report again, also if it
    /// is throttled. The event reports again after any of these calls:
    /// - [`disable`](crate::CounterSession::disable) and then [`enable`](crate::CounterSession::enable);
    /// - [`apply_period`](crate::CounterSession::apply_period);
    /// - [`set_period`](Self::set_period), from when the event is next put on a counter, for instance by a context
    ///   switch;
    /// - [`to_be_enabled`](crate::thread::SavedEvent::to_be_enabled) with `true`.
    ///
    /// ```
    /// use pmu_core::interrupt::EventOverflow;
    /// use pmu_core::memory::EventTable;
    /// /// `PERF_EVENT_IOC_REFRESH`: the event reports `left` more times. Returns whether a task has to stop it now.
    /// fn overflowed(table: &EventTable, overflow: EventOverflow, left: &mut u32) -> bool {
    ///     *left = left.saturating_sub(1);
    ///     *left == 0 && table.stop_reporting(overflow.event).is_ok()
    /// }
    /// # let _ = overflowed;
    /// ```
    ///
    /// # Context
    /// Any context on the table's processor, including the event's own interrupt. The call is wait-free, and accesses
    /// no register.
    ///
    /// # Errors
    /// [`NoSuchEvent`](CounterError::NoSuchEvent), [`NoPeriod`](CounterError::NoPeriod).
    pub fn stop_reporting(&self, event: EventId) -> Result<(), CounterError> {
        let entry = self.named(event).ok_or(CounterError::NoSuchEvent(event))?;
        if !entry.period.reports() {
            return Err(CounterError::NoPeriod(event));
        }
        entry.silence();
        Ok(())
    }

    /// Returns the number of an open event's opening: another event that gets the same [`EventId`] later, on the same
    /// processor, has another number. Returns `None` if no event of this identity is open. A switch of threads opens
    /// and closes events, too.
    ///
    /// ```
    /// # use pmu_core::EventId;
    /// # use pmu_core::memory::EventTable;
    /// /// Tells whether an identity that the kernel kept still means the event that it opened.
    /// fn is_still(table: &EventTable, event: EventId, opening: u64) -> bool {
    ///     table.opening(event) == Some(opening)
    /// }
    /// ```
    ///
    /// # Context
    /// Any context, on any processor.
    pub fn opening(&self, event: EventId) -> Option<u64> {
        self.named(event).map(EventEntry::opening)
    }

    /// Returns the open events that were opened for [RDPMC in user mode](crate::Event::with_user_reads), with their
    /// tags.
    ///
    /// ```
    /// # use pmu_core::memory::EventTable;
    /// /// The events of which threads have pages.
    /// fn pages(table: &EventTable, publish: impl Fn(u64)) {
    ///     table.with_user_reads().for_each(|(_event, tag)| publish(tag));
    /// }
    /// ```
    ///
    /// # Context
    /// Any context on the table's processor.
    pub fn with_user_reads(&self) -> impl Iterator<Item = (EventId, u64)> {
        let is_asked = |entry: &EventEntry| entry.membership().has(Membership::USER_READS);
        let permitted = self.opened().filter(move |(_, entry)| is_asked(entry));
        permitted.map(|(event, entry)| (event, entry.tag()))
    }

    pub(crate) fn check_period(&self, period: u64) -> Result<(), CounterError> {
        let fits = (self.at_least_min(0)..=Period::MAX).contains(&period);
        if fits { Ok(()) } else { Err(CounterError::Period(period)) }
    }

    /// Checks the period of an open event.
    pub(crate) fn check_period_of(
        &self,
        entry: &EventEntry,
        period: u64,
    ) -> Result<(), CounterError> {
        let min = self.min_period_of(entry.members_select());
        let fits = (min..=Period::MAX).contains(&period);
        if fits { Ok(()) } else { Err(CounterError::Period(period)) }
    }

    /// Returns the shortest period of an event with this select.
    #[inline(never)] // 32 bytes of the glue.
    pub(crate) fn min_period_of(&self, select: EventSelect) -> u64 {
        match SoftwareEvent::of_select(select) {
            None => self.at_least_min(0),
            Some(event) => event.min_period(),
        }
    }

    /// Returns a period that is not below the shortest one.
    pub(crate) fn at_least_min(&self, period: u64) -> u64 {
        let min_period = match self.min_period.load(Relaxed) {
            0 => Self::DEFAULT_MIN_PERIOD,
            set => set,
        };
        period.max(min_period)
    }

    /// Returns the entry of an event that a caller names, if its identity is not that of an event that was there
    /// before.
    pub(crate) fn named(&self, event: EventId) -> Option<&EventEntry> {
        self.entry_in_interrupt(event).filter(|entry| event.is_of_opening(entry.opening()))
    }

    /// Returns the entry of the event in a place.
    // Linked once: each operation on an event asks for its entry.
    #[inline(never)] // 1200 bytes of the glue.
    pub(crate) fn entry(&self, event: EventId) -> Option<&EventEntry> {
        self.entry_in_interrupt(event)
    }

    /// Returns the entry of an opened event, as [`entry`](Self::entry) does, in line.
    #[inline]
    pub(crate) fn entry_in_interrupt(&self, event: EventId) -> Option<&EventEntry> {
        let entry = self.entries.get(event.index()?)?;
        (entry.state() != EventState::Closed).then_some(entry)
    }

    /// Returns whether an exclusive event, or one of guests, is on a counter.
    pub(crate) fn runs_exclusive_or_of_guests(&self) -> bool {
        let is_on = |entry: &EventEntry| entry.state() == EventState::Counting;
        let takes_counter = |entry: &EventEntry| !entry.is_without_counter();
        let excludes =
            |entry: &EventEntry| entry.is_exclusive_or_of_guests() && takes_counter(entry);
        self.entries.iter().any(|entry| excludes(entry) && is_on(entry))
    }

    /// Returns whether two events are the same, or of one group.
    pub(crate) fn are_together(&self, event: EventId, other: EventId) -> bool {
        let group = |event| self.entry(event).and_then(EventEntry::group);
        event == other || group(event).is_some_and(|of| group(other) == Some(of))
    }

    /// Returns the opened events.
    pub(crate) fn opened(&self) -> impl Iterator<Item = (EventId, &EventEntry)> {
        self.places().filter(|(_, entry)| entry.state() != EventState::Closed)
    }

    /// Returns the counters that can count an event.
    pub(crate) fn capable(&self, event: EventId) -> CounterSet {
        self.entry(event).map_or(CounterSet::GENERAL, EventEntry::counters)
    }

    /// Returns an event, then the other events of its group that are counted with the group.
    pub(crate) fn with_group(&self, event: EventId) -> impl Iterator<Item = EventId> {
        iter::successors(Some(event), move |last| self.next_of_group(event, *last))
    }

    /// Returns the event behind `last` among an event and then the others of its group.
    #[inline(never)] // 2,128 bytes of the Hermit-like glue, at `opt-level` 3.
    fn next_of_group(&self, event: EventId, last: EventId) -> Option<EventId> {
        let group = self.entry(event)?.membership().group;
        if group == 0 {
            return None;
        }
        let behind = if last == event { None } else { Some(last) };
        let is_next = |(other, entry): &(EventId, &EventEntry)| {
            Some(*other) > behind && *other != event && entry.is_counted_with(group)
        };
        self.opened().find(is_next).map(|(other, _)| other)
    }

    /// Returns an opened event, or all events of its group that are on this processor.
    // Linked once: each operation on a group loops over its members.
    #[inline(never)] // 256 bytes of the glue.
    pub(crate) fn members(&self, of: EventId) -> Members<'_> {
        let group = self.entry(of).and_then(EventEntry::group);
        Members { table: self, of, from: 0, group }
    }

    /// Returns the first event of an event's group, if all of the group's events are on this processor.
    pub(crate) fn first_of(&self, event: EventId) -> Option<EventId> {
        let entry = self.entry(event)?;
        if !entry.is_grouped() {
            return Some(event);
        }
        let (mut first, mut found) = (None, 0_u32);
        for (event, _) in self.members(event) {
            first = first.or(Some(event));
            found += 1;
        }
        first.filter(|_| found == u32::from(entry.members()))
    }

    /// Returns whether an event's own overflow reloads its counter. The status then never has the counter's bit, and an
    /// interrupt would have no owner: it is not enabled.
    pub(crate) fn reloads_itself(&self, event: EventId) -> bool {
        let membership = |event| self.entry(event).map(EventEntry::membership);
        let Some(Membership { reload, group, .. }) = membership(event) else { return false };
        let of_group = |(other, entry): &(EventId, &EventEntry)| {
            *other < event && entry.membership().group == group
        };
        // The bitmap has a place for each of the first eight members. A later one cannot name itself.
        reload != 0
            && reload.checked_shr(self.opened().filter(of_group).count() as u32).unwrap_or(0) & 1
                != 0
    }

    /// Returns a free place behind an event, or the first one.
    pub(crate) fn free(&self, behind: Option<EventId>) -> Option<(EventId, &EventEntry)> {
        let is_free = |entry: &EventEntry| entry.state() == EventState::Closed;
        self.places().find(|(event, entry)| is_free(entry) && Some(*event) > behind)
    }

    fn places(&self) -> impl Iterator<Item = (EventId, &EventEntry)> {
        (0..0x800).map(EventId::of_index).zip(&self.entries)
    }

    /// Takes the table for a processor's session. Returns `false` if another session has it.
    pub(crate) fn take(&self) -> bool {
        // Pairs with the release in `give_back`, so that this session finds all entries closed.
        // A table without entries has nothing to share, so all sources without opened events use one.
        self.is_empty() || !self.taken.swap(true, Acquire)
    }

    /// Closes every event, and gives the table back.
    pub(crate) fn give_back(&self) {
        for entry in &self.entries {
            entry.set_state(EventState::Closed);
        }
        self.virtualization.store(false, Relaxed);
        self.taken.store(false, Release);
    }

    /// Releases the table of a session that ended without [`shut_down`](crate::CounterSession::shut_down): closes all
    /// events, so that another session can take the table. The old session's
    /// [memory](crate::memory::CounterMemory::reclaim) must also be reclaimed. The events' [extra
    /// registers](crate::Event::with_extra) keep their values.
    ///
    /// # Context
    /// Task, on the processor of this table, while no interrupt of this processor is being serviced.
    ///
    /// # Safety
    /// - The old session is not used again. Otherwise the old session and the next session that takes the table would
    ///   share events.
    ///
    /// ```
    /// # use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
    /// # static MEMORY: CounterMemory<[CounterSlot; 8]> = CounterMemory::new();
    /// # static EVENTS: EventTable<[EventEntry; 8]> = EventTable::new();
    /// # let (memory, events): (&CounterMemory, &EventTable) = (&MEMORY, &EVENTS);
    /// // SAFETY: the task that owned the session has ended, and the session with it.
    /// unsafe {
    ///     memory.reclaim();
    ///     events.reclaim();
    /// }
    /// ```
    ///
    /// Wrong: `let mut session = …; events.reclaim(); session.enable(event, now)`.
    pub unsafe fn reclaim(&self) {
        self.extra.clear();
        self.give_back();
    }

    pub(crate) fn virtualization(&self) -> bool {
        self.virtualization.load(Relaxed)
    }

    pub(crate) fn set_virtualization(&self, on: bool) {
        self.virtualization.store(on, Relaxed);
    }

    /// Returns the number of the next change of a turn.
    pub(crate) fn next_turn(&self) -> u32 {
        self.turn.fetch_add(1, Relaxed).wrapping_add(1)
    }

    /// Returns the rank of a turn among those before the turn `begun`; the oldest turn has the least.
    pub(crate) fn rank_before(&self, begun: u32, turn: u32) -> Option<u32> {
        // An event may wait for any number of turns. Since `begun`, few passed.
        let rank = turn.wrapping_sub(begun);
        (rank > self.age(begun)).then_some(rank)
    }

    /// Returns the number of changes of turns since the one with this number.
    pub(crate) fn age(&self, turn: u32) -> u32 {
        self.turn.load(Relaxed).wrapping_sub(turn)
    }
}

/// The opened events of one group, or one that is in none, in the order of their places.
pub(crate) struct Members<'t> {
    table: &'t EventTable,
    of: EventId,
    from: u16,
    group: Option<GroupId>,
}

impl Members<'_> {
    /// Returns the same for an event of this group, which may be closed.
    pub(crate) const fn of_group(table: &EventTable, of: EventId, group: GroupId) -> Members<'_> {
        Members { table, of, from: 0, group: Some(group) }
    }
}

impl<'t> Iterator for Members<'t> {
    type Item = (EventId, &'t EventEntry);

    #[inline(never)] // 2240 bytes of the glue, at `opt-level` 3.
    fn next(&mut self) -> Option<Self::Item> {
        let Some(group) = self.group else {
            let is_first = core::mem::replace(&mut self.from, 1) == 0;
            return self.table.entry(self.of).filter(|_| is_first).map(|entry| (self.of, entry));
        };
        let is_its = |entry: &EventEntry| {
            entry.group() == Some(group) && entry.state() != EventState::Closed
        };
        let mut rest = self.table.places().skip(self.from.into());
        rest.find(|(_, entry)| {
            self.from += 1;
            is_its(entry)
        })
    }
}

impl EventEntry {
    pub(crate) fn set_encoding(&self, encoding: u8) {
        self.set_membership(Membership { encoding, ..self.membership() });
    }

    /// Returns the group of the event.
    pub(crate) fn group(&self) -> Option<GroupId> {
        GroupId::of_bits(self.membership().group)
    }

    pub(crate) fn is_grouped(&self) -> bool {
        self.group().is_some()
    }

    /// Returns the number of events in the event's group.
    pub(crate) fn members(&self) -> u8 {
        self.membership().members
    }

    /// Sets the number of events in the event's group.
    pub(crate) fn set_members(&self, members: u8) {
        self.set_membership(Membership { members, ..self.membership() });
    }

    /// Puts the event into a group with this number of events.
    pub(crate) fn set_group(&self, group: GroupId, members: u8) {
        let group = group.bits();
        self.set_membership(Membership { group, members, ..self.membership() });
    }

    /// Returns whether the event is of the group with this number, and is counted when the group is.
    pub(crate) fn is_counted_with(&self, group: u32) -> bool {
        let membership = self.membership();
        group != 0 && membership.group == group && !membership.has(Membership::DISABLED)
    }

    /// Returns whether the event is not counted with its group.
    pub(crate) fn is_disabled(&self) -> bool {
        self.membership().has(Membership::DISABLED)
    }

    pub(crate) fn set_disabled(&self, disabled: bool) {
        self.set_membership(self.membership().with(Membership::DISABLED, disabled));
    }

    /// Returns whether the event counts in guests only, by the guests' value of the global control register.
    pub(crate) fn is_of_guests(&self) -> bool {
        self.membership().has(Membership::IN_GUESTS)
    }

    /// Returns whether the event's counter is stopped by the global control register while it is programmed.
    pub(crate) fn is_gated(&self) -> bool {
        self.is_grouped() || self.is_of_guests()
    }

    pub(crate) fn has_extra(&self) -> bool {
        self.membership().has(Membership::EXTRA)
    }

    /// Returns whether the event takes more to start than a free counter: an extra register, counters that no other
    /// event uses, or a change of the global control register.
    pub(crate) fn needs_more_than_a_counter(&self) -> bool {
        const MORE: u8 = Membership::EXTRA | Membership::EXCLUSIVE | Membership::IN_GUESTS;
        self.membership().has(MORE)
    }

    /// Returns whether no other event is counted while this one is, except those of its group.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.membership().has(Membership::EXCLUSIVE)
    }

    pub(crate) fn is_exclusive_or_of_guests(&self) -> bool {
        self.membership().has(Membership::EXCLUSIVE | Membership::IN_GUESTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_200_bytes_per_event_and_224_more() {
        assert_eq!(size_of::<EventTable<[EventEntry; 8]>>(), 8 * 200 + 224);
    }

    #[test]
    fn an_event_that_waits_for_however_many_turns_is_the_first_of_those_before() {
        let table = EventTable::<[EventEntry; 0]>::new();
        for age in [1, 5, 1 << 31, (1 << 31) + 1, u32::MAX - 2] {
            table.turn.store(7, Relaxed);
            let begun = table.next_turn();
            let waiting = begun.wrapping_sub(age);
            let given = [begun, table.next_turn(), table.next_turn()];
            let rank = |turn| table.rank_before(begun, turn);
            assert!(rank(waiting).is_some(), "{age:#X}");
            assert!(age == 1 || rank(waiting) < rank(begun - 1), "{age:#X}");
            assert_eq!(given.map(rank), [None; 3], "{age:#X}");
        }
    }
}
