//! The plan of an assignment: which event is to be on which counter, found before any register is accessed.
//!
//! A context switch and an interrupt's handler plan on the kernel's stack. So a plan has two bytes per counter, and the
//! searches change it in place.

use core::mem;

use crate::counters::slot::SlotState;
use crate::{
    CounterError, CounterId, CounterMemory, CounterSet, CounterSlot, Counters, EventEntry, EventId,
    EventSource, EventTable, MAX_COUNTERS, MsrBackend, Platform,
};

/// An event on a counter, counted by one of its encodings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) event: EventId,
    /// Below 4.
    pub(crate) encoding: u8,
}

impl Placed {
    const PRESENT: u16 = 1 << 15;
    /// Below it lies the event's identity, of 12 bits.
    const FIRST_OF_ENCODING: u32 = 12;

    const fn pack(self) -> u16 {
        let encoding = (self.encoding & 3) as u16;
        Self::PRESENT | encoding << Self::FIRST_OF_ENCODING | self.event.bits()
    }

    fn unpack(bits: u16) -> Option<Self> {
        let encoding = (bits >> Self::FIRST_OF_ENCODING & 3) as u8;
        (bits & Self::PRESENT != 0).then(|| Self { event: EventId::of_bits(bits), encoding })
    }
}

/// The event that each counter has, or is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// 0: none.
    on: [u16; MAX_COUNTERS],
}

/// The event of a group for which there is no room, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unplaced {
    pub(crate) event: EventId,
    pub(crate) reason: CounterError,
}

impl Plan {
    pub(crate) const EMPTY: Self = Self { on: [0; MAX_COUNTERS] };

    pub(crate) fn at(&self, counter: CounterId) -> Option<Placed> {
        self.on.get(counter.place()).copied().and_then(Placed::unpack)
    }

    pub(crate) fn set(&mut self, counter: CounterId, placed: Option<Placed>) {
        if let Some(on) = self.on.get_mut(counter.place()) {
            *on = placed.map_or(0, Placed::pack);
        }
    }

    /// Returns the counters that have an event.
    pub(crate) fn counters(&self) -> CounterSet {
        self.besides(&Self::EMPTY)
    }

    /// Returns the counters that have an event which another plan does not have there, or has with another encoding.
    pub(crate) fn besides(&self, other: &Self) -> CounterSet {
        CounterSet::ALL.retain(|counter| {
            let placed = self.at(counter);
            placed.is_some() && placed != other.at(counter)
        })
    }

    /// Returns the events.
    pub(crate) fn events(&self) -> impl Iterator<Item = EventId> {
        self.on.iter().filter_map(|on| Placed::unpack(*on)).map(|placed| placed.event)
    }

    /// Returns an event's counter.
    pub(crate) fn find(&self, event: EventId) -> Option<CounterId> {
        let is_it = |on: &u16| Placed::unpack(*on).is_some_and(|placed| placed.event == event);
        // All counters, in the order of their places.
        CounterSet::ALL.nth(self.on.iter().position(is_it)?)
    }

    fn remove(&mut self, event: EventId) {
        if let Some(counter) = self.find(event) {
            self.set(counter, None);
        }
    }
}

impl<S: EventSource, M: MsrBackend, P: Platform> Counters<'_, S, M, P> {
    /// Writes the present assignment into `plan`.
    #[inline(never)]
    pub(crate) fn present(&self, plan: &mut Plan) {
        *plan = Plan::EMPTY;
        for (counter, slot) in self.slots() {
            if let Some(event) = slot.running() {
                let encoding = self.table().entry(event).map_or(0, EventEntry::encoding);
                plan.set(counter, Some(Placed { event, encoding }));
            }
        }
    }

    /// Returns the counters that can be used.
    pub(crate) fn usable(&self) -> CounterSet {
        self.own().retain(|counter| {
            self.slot(counter).is_some_and(|slot| slot.load() != SlotState::Faulted)
        })
    }

    /// Returns a planner, whose plan is empty.
    pub(crate) fn planner(&self) -> Planner<'_> {
        Planner {
            table: self.table(),
            memory: self.memory,
            counters: self.usable(),
            plan: Plan::EMPTY,
            before: Plan::EMPTY,
            moving: [Moving::NONE; 2],
            leaving: CounterSet::NONE,
            failure: None,
            outcome: Ok(()),
        }
    }

    // Nothing of it is to be on the stack while a plan is made.
    #[inline(never)]
    fn get_ready(&self, event: EventId) -> Result<(), Unplaced> {
        self.check_whole(event)?;
        let ready = self.check_unmuted().and_then(|()| self.leave_switch());
        ready.map_err(|reason| Unplaced { event, reason })
    }

    /// Plans counters for an event and its group: all of them, or none. Where that makes room, other events move, and
    /// rotating events lose their counters whose share is at least so `great`: first the one with the greatest, and of
    /// several the one that had its counter longest. `None`: no event loses its counter. Then gives every event its
    /// planned counter.
    #[inline(never)]
    pub(crate) fn assign(&self, event: EventId, great: Option<u32>) -> Result<(), Unplaced> {
        self.get_ready(event)?;
        let mut planner = self.planner();
        self.present(&mut planner.plan);
        planner.plan(event, great)?;
        self.carry_out(&mut planner).map_err(|reason| Unplaced { event, reason })
    }
}

/// The event of a group for which there is no room.
#[derive(Clone, Copy)]
pub(crate) struct NoRoom {
    event: EventId,
    /// Address of the extra register that it cannot have; 0: a counter is lacking.
    register: u32,
}

impl From<NoRoom> for Unplaced {
    fn from(NoRoom { event, register }: NoRoom) -> Self {
        let reason = match register {
            0 => CounterError::NoFreeCounter,
            register => CounterError::ExtraRegisterInUse(register),
        };
        Self { event, reason }
    }
}

/// A row's event that has no counter while it moves: its period, and what is left of it. (An opened event's remainder
/// is in its entry.)
#[derive(Clone, Copy)]
pub(crate) struct Moving {
    pub(crate) event: EventId,
    /// 0: there is no such event.
    pub(crate) period: u32,
    pub(crate) rest: u32,
}

impl Moving {
    const NONE: Self = Self { event: EventId::of_row(0), period: 0, rest: 0 };
}

/// A plan in the making, and then what it takes to carry it out and to undo it. It is one place on the stack, and the
/// functions call each other with little on top of it.
pub(crate) struct Planner<'a> {
    table: &'a EventTable,
    memory: &'a CounterMemory,
    /// The counters that can be used; then, those that events are still to enter.
    pub(crate) counters: CounterSet,
    pub(crate) plan: Plan,
    /// The plan before the event was admitted that is being admitted; then, the assignment before the change.
    pub(crate) before: Plan,
    /// Of those that one failure leaves without a counter, and that a circle of moves does, there is one each.
    moving: [Moving; 2],
    /// The counters that events are still to lose.
    pub(crate) leaving: CounterSet,
    /// The failure for which the plan is undone.
    pub(crate) failure: Option<CounterError>,
    /// The first failure of the change; of undoing it, once that began.
    pub(crate) outcome: Result<(), CounterError>,
}

impl Planner<'_> {
    pub(crate) fn table(&self) -> &EventTable {
        self.table
    }

    /// Returns the plan, or what it is undone to.
    pub(crate) fn target(&self) -> &Plan {
        if self.failure.is_some() { &self.before } else { &self.plan }
    }

    pub(crate) fn note(&mut self, outcome: Result<(), CounterError>) {
        self.outcome = self.outcome.and(outcome);
    }

    pub(crate) fn put_moving(&mut self, moving: Moving) {
        if let Some(place) = self.moving.iter_mut().find(|place| place.period == 0) {
            *place = moving;
        }
    }

    pub(crate) fn take_moving(&mut self, event: EventId) -> Option<Moving> {
        let is_it = |place: &&mut Moving| place.period != 0 && place.event == event;
        self.moving.iter_mut().find(is_it).map(|place| mem::replace(place, Moving::NONE))
    }

    /// Plans for an event: see [`Counters::assign`].
    // Inlined into its few callers, for the sake of the stack.
    #[inline(always)]
    fn plan(&mut self, event: EventId, great: Option<u32>) -> Result<(), NoRoom> {
        while let Err(no_room) = self.admit(event) {
            let first = self.first_to_go(great).ok_or(no_room)?;
            self.table.with_group(first).for_each(|event| self.plan.remove(event));
        }
        // Those that need not have given way stay, last of all the one that was the first to go.
        let mut last = None;
        while let Some(gone) = self.last_gone(last) {
            let _ = self.admit(gone);
            last = Some(self.rank(gone));
        }
        Ok(())
    }

    /// Returns the event that gives way first, of the rotating ones whose share is at least so `great`.
    fn first_to_go(&self, great: Option<u32>) -> Option<EventId> {
        let great = great?;
        let may_go = |event: &EventId| {
            let rotates = self.table.entry(*event).is_some_and(EventEntry::rotates);
            rotates && self.rank(*event) >> 32 >= u64::from(great)
        };
        self.plan.events().filter(may_go).max_by_key(|event| self.rank(*event))
    }

    /// Returns the event that gave way last, of those that are to lose their counters and rank above `last`.
    fn last_gone(&self, last: Option<u64>) -> Option<EventId> {
        let is_gone =
            |event: &EventId| self.plan.find(*event).is_none() && Some(self.rank(*event)) > last;
        let running = self.counters.iter().filter_map(|counter| self.running_on(counter));
        running.filter(is_gone).min_by_key(|event| self.rank(*event))
    }

    /// Returns the event that is on a counter at present.
    fn running_on(&self, counter: CounterId) -> Option<EventId> {
        self.memory.slot(counter).and_then(CounterSlot::running)
    }

    /// Returns the counter that an event is on at present.
    pub(crate) fn running(&self, event: EventId) -> Option<CounterId> {
        self.counters.iter().find(|counter| self.running_on(*counter) == Some(event))
    }

    /// Returns an event's share above the number of turns since it had its counter: the greatest gives way first.
    #[inline(never)]
    fn rank(&self, event: EventId) -> u64 {
        self.table.entry(event).map_or(0, |entry| {
            u64::from(entry.share()) << 32 | u64::from(self.table.age(entry.turn()))
        })
    }

    /// Adds an event and its group to the plan. Events that run move only if there is no room otherwise. After an error
    /// the plan is as it was.
    #[inline(never)]
    pub(crate) fn admit(&mut self, event: EventId) -> Result<(), NoRoom> {
        self.before = self.plan;
        let mut moves = false;
        loop {
            let outcome = self.admit_all(event, moves);
            if outcome.is_ok() {
                return outcome;
            }
            self.plan = self.before;
            if moves {
                return outcome;
            }
            moves = true;
        }
    }

    fn admit_all(&mut self, event: EventId, moves: bool) -> Result<(), NoRoom> {
        for event in self.table.with_group(event) {
            if !self.admit_one(event, moves) {
                return Err(NoRoom { event, register: 0 });
            }
            let extra = self.table.entry(event).and_then(|entry| entry.extra_register(0));
            if let Some(register) = extra
                && !self.choose_encodings()
            {
                return Err(NoRoom { event, register: register.get() });
            }
        }
        Ok(())
    }

    /// Adds an event to the plan, beside what was there before, unless that `moves`. `false`: there is no counter.
    #[inline(never)]
    fn admit_one(&mut self, event: EventId, moves: bool) -> bool {
        // It may have been removed for another's sake.
        let present = self.running(event).filter(|counter| self.plan.at(*counter).is_none());
        let Some(counter) = present.or_else(|| self.make_room(event, moves)) else { return false };
        let encoding = self.table.entry(event).map_or(0, EventEntry::encoding);
        self.plan.set(counter, Some(Placed { event, encoding }));
        true
    }

    /// Returns the counters that an event may have.
    fn capable(&self, event: EventId, moves: bool) -> CounterSet {
        match self.before.find(event) {
            Some(counter) if !moves => counter.only(),
            _ => self.table.capable(event) & self.counters,
        }
    }

    /// Makes a counter free for an event, and returns it: a free one, fixed rather than general, because fewer events
    /// can be on it; else by the shortest chain of events each of which moves to the next one's counter, the last one
    /// to a free one.
    ///
    /// This is an augmenting path of the bipartite matching of events and counters, searched breadth first: if any
    /// assignment of all these events exists, there is such a path.
    #[inline(never)]
    fn make_room(&mut self, event: EventId, moves: bool) -> Option<CounterId> {
        let used = self.plan.counters();
        let capable = self.capable(event, moves);
        let free = capable.without(used);
        if let Some(counter) = (free & CounterSet::FIXED).first().or(free.first()) {
            return Some(counter);
        }
        let mut taker = [None::<CounterId>; MAX_COUNTERS];
        let (mut reached, mut frontier) = (capable, capable);
        while !frontier.is_empty() {
            let mut farther = CounterSet::NONE;
            for counter in frontier.iter() {
                let Some(placed) = self.plan.at(counter) else { continue };
                let next = self.capable(placed.event, moves).without(reached);
                for alternative in next.iter() {
                    if let Some(taker) = taker.get_mut(alternative.place()) {
                        *taker = Some(counter);
                    }
                }
                if let Some(mut free) = next.without(used).first() {
                    while let Some(Some(from)) = taker.get(free.place()) {
                        self.plan.set(free, self.plan.at(*from));
                        free = *from;
                    }
                    self.plan.set(free, None);
                    return Some(free);
                }
                reached = reached | next;
                farther = farther | next;
            }
            frontier = farther;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_gives_back_what_was_placed_in_two_bytes_per_counter() {
        assert_eq!(size_of::<Plan>(), 2 * MAX_COUNTERS);
        let mut plan = Plan::EMPTY;
        let counters = [CounterId::general(0), CounterId::general(15), CounterId::fixed(7)];
        let events = [EventId::of_row(0), EventId::of_place(0x7FF), EventId::of_place(0)];
        for encoding in 0..4 {
            for (counter, event) in counters.into_iter().flatten().zip(events) {
                let placed = Placed { event, encoding };
                plan.set(counter, Some(placed));
                assert_eq!((plan.at(counter), plan.find(event)), (Some(placed), Some(counter)));
            }
        }
        assert_eq!(plan.counters().bits(), 1 << 39 | 1 << 15 | 1);
        assert_eq!(plan.events().count(), 3);
        let mut other = plan;
        other.remove(events[1]);
        assert_eq!(plan.besides(&other).bits(), 1 << 15);
        assert_eq!(other.besides(&plan), CounterSet::NONE);
    }
}
