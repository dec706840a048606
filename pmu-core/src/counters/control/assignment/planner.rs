//! The planner: what an assignment needs on the stack while it is planned and applied.

use core::mem;

use crate::branches::filter::PackedFilter;
use crate::counters::control::assignment::plan::{NoRoom, Placement, PlacementError, Plan};
use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::events::count::Membership;
use crate::counters::names::{CounterId, CounterSet, EventId, MAX_COUNTERS};
use crate::counters::shared::entry::EventEntry;
use crate::counters::shared::memory::CounterMemory;
use crate::counters::shared::slot::CounterSlot;
use crate::counters::shared::table::EventTable;
use crate::platform::Hardware;
use crate::profile::event_source::EventSource;

impl<S: EventSource, H: Hardware> CounterSession<'_, S, H> {
    /// Returns a planner, whose plan is empty.
    #[inline(never)] // 336 bytes of the glue.
    pub(crate) fn planner(&self) -> Planner<'_> {
        Planner {
            table: self.table(),
            memory: self.memory,
            counters: self.not_faulted(),
            plan: Plan::EMPTY,
            before: Plan::EMPTY,
            moves: false,
            moving: [Moving::NONE; 2],
            leaving: CounterSet::NONE,
            failure: None,
            outcome: Ok(()),
        }
    }

    pub(crate) fn get_ready(&self, event: EventId) -> Result<(), PlacementError> {
        self.check_whole(event)?;
        let own = self.outside_guests(self.own());
        let ready = self.check_unmasked().and_then(|()| self.unpark_all(own));
        ready.map_err(|reason| PlacementError { event, reason })
    }
}

/// A row's event that has no counter while it moves: its period, and the remainder. (An opened event's remainder is in
/// its entry of the table.)
#[derive(Clone, Copy)]
pub(crate) struct Moving {
    pub(crate) event: EventId,
    /// 0: there is no such event.
    pub(crate) period: u32,
    pub(crate) rest: u32,
}

impl Moving {
    pub(crate) const NONE: Self = Self { event: EventId::of_row(0), period: 0, rest: 0 };
}

/// A plan in the making, and then what it takes to apply and to undo it. It is one place on the stack, and the
/// functions call each other with little on top of it.
pub(crate) struct Planner<'a> {
    pub(crate) table: &'a EventTable,
    memory: &'a CounterMemory,
    /// The counters that can be used; then, those that events are still to be attached to.
    pub(crate) counters: CounterSet,
    pub(crate) plan: Plan,
    /// While an event is placed, the plan before it; then, the assignment before the change.
    pub(crate) before: Plan,
    /// Events that are placed already may move to other counters.
    pub(crate) moves: bool,
    /// Rows' events without a counter: at most one after a failure, and one in a cycle of moves.
    moving: [Moving; 2],
    /// The counters that events are still to leave.
    pub(crate) leaving: CounterSet,
    /// The failure for which the plan is undone.
    pub(crate) failure: Option<CounterError>,
    /// The first failure of the change, or of undoing it once that began.
    pub(crate) outcome: Result<(), CounterError>,
}

impl Planner<'_> {
    pub(crate) fn table(&self) -> &EventTable {
        self.table
    }

    /// Returns the plan; while it is undone, the assignment before.
    pub(crate) fn target(&self) -> &Plan {
        if self.failure.is_some() { &self.before } else { &self.plan }
    }

    // Linked once: inlined into a loop, the loop is there for each outcome.
    #[inline(never)] // 48 bytes of the glue.
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

    /// Returns the event that gives way first, of the rotating events whose share is at least `great`.
    fn first_to_go(&self, great: Option<u32>) -> Option<EventId> {
        let great = great?;
        // The least rank of an event with this share.
        let mut first = (u64::from(great) << 32, None);
        for event in self.plan.events() {
            let (rank, rotates) =
                (self.rank(event), self.table.entry(event).is_some_and(EventEntry::rotates));
            if rotates && rank >= first.0 {
                first = (rank, Some(event));
            }
        }
        first.1
    }

    /// Returns the event that gave way last, of those that are to lose their counters and rank above `last`, and below
    /// `below`.
    fn last_gone(&self, last: Option<u64>, below: u64) -> Option<EventId> {
        // The counters still have the events of before the plan, so no list of the evicted ones takes stack.
        let mut next: Option<(u64, EventId)> = None;
        for event in self.counters.iter().filter_map(|counter| self.running_on(counter)) {
            let rank = self.rank(event);
            let is_next = rank < below && Some(rank) > last;
            if is_next
                && next.is_none_or(|(least, _)| rank < least)
                && self.plan.find(event).is_none()
            {
                next = Some((rank, event));
            }
        }
        next.map(|(_, event)| event)
    }

    /// Returns the event that is on a counter at present.
    fn running_on(&self, counter: CounterId) -> Option<EventId> {
        self.memory.slot(counter).and_then(CounterSlot::running)
    }

    /// Returns the counter that an event is on at present.
    #[inline(never)] // 80 bytes of the glue, at `opt-level` 3.
    pub(crate) fn running(&self, event: EventId) -> Option<CounterId> {
        self.counters.iter().find(|counter| self.running_on(*counter) == Some(event))
    }

    /// Returns an event's rank: its share, above the number of turns since it got its counter. The greatest gives way
    /// first.
    #[inline(never)] // 864 bytes of the Hermit-like glue, at `opt-level` 3.
    pub(crate) fn rank(&self, event: EventId) -> u64 {
        self.table.entry(event).map_or(0, |entry| {
            u64::from(entry.share()) << 32 | u64::from(self.table.age(entry.turn()))
        })
    }

    /// Returns the counters that an event may have.
    #[inline(never)] // 160 bytes of the glue, at `opt-level` 3.
    pub(crate) fn capable(&self, event: EventId) -> CounterSet {
        match if self.moves { None } else { self.before.find(event) } {
            Some(counter) => counter.only(),
            None => self.table.capable(event) & self.counters,
        }
    }

    /// Plans for an event: see [`CounterSession::assign`](crate::CounterSession::assign). After an error, events are
    /// missing in the plan that were to make room.
    // Inlined into its few callers, for the sake of the stack.
    #[inline(always)]
    pub(crate) fn plan(&mut self, event: EventId, great: Option<u32>) -> Result<(), NoRoom> {
        let mut above_gone = 0;
        // Each round takes an event off the plan. Once none is left that may go, `first_to_go` ends the loop.
        while let Err(no_room) = self.try_place(event) {
            let first = self.first_to_go(great).ok_or(no_room)?;
            above_gone = above_gone.max(self.rank(first).saturating_add(1));
            self.table.with_group(first).for_each(|event| self.plan.remove(event));
        }
        if above_gone != 0 {
            // Those that were evicted for other events of the plan rank above.
            self.put_back(above_gone);
        }
        Ok(())
    }

    /// Puts back the events whose eviction was unnecessary, of those below a rank. The one that was evicted first is
    /// tried last.
    fn put_back(&mut self, below: u64) {
        let mut last = None;
        // Ranks only rise here, so each event is tried once.
        while let Some(gone) = self.last_gone(last, below) {
            // Without room the event stays evicted, and the plan is as it was.
            let _ = self.try_place(gone);
            last = Some(self.rank(gone));
        }
    }

    /// Plans for one of several events. After an error the plan is as it was.
    pub(crate) fn plan_among(&mut self, event: EventId, great: Option<u32>) -> Result<(), NoRoom> {
        // Those that were to make room had counters together, and have them again.
        self.plan(event, great).inspect_err(|_| self.put_back(u64::MAX))
    }

    /// Adds an event and its group to the plan. Running events move only if there is no room otherwise. After an error
    /// the plan is as it was.
    #[inline(never)] // 16 bytes of the Hermit-like glue.
    pub(crate) fn try_place(&mut self, event: EventId) -> Result<(), NoRoom> {
        self.check_alone(event)?;
        self.before = self.plan;
        self.moves = false;
        loop {
            let outcome = self.try_place_all(event);
            if outcome.is_ok() {
                return outcome;
            }
            self.plan = self.before;
            if self.moves {
                return outcome;
            }
            // Only now: an event that moves is stopped for some accesses, and misses occurrences.
            self.moves = true;
        }
    }

    /// Checks that neither the event nor one of the plan's excludes the other.
    fn check_alone(&self, event: EventId) -> Result<(), NoRoom> {
        let of = self.membership(event);
        for other in self.plan.events() {
            let with = self.membership(other);
            let excludes = (of.flags | with.flags) & Membership::EXCLUSIVE != 0;
            if excludes && other != event && (of.group == 0 || of.group != with.group) {
                // As if no counter were free: an event that rotates waits for its turn then.
                return Err(NoRoom { event, register: 0 });
            }
        }
        Ok(())
    }

    fn membership(&self, event: EventId) -> Membership {
        self.table.entry(event).map_or(Membership::unpack(0), EventEntry::membership)
    }

    fn try_place_all(&mut self, event: EventId) -> Result<(), NoRoom> {
        for event in self.table.with_group(event) {
            if self.table.entry(event).is_some_and(EventEntry::is_without_counter) {
                continue;
            }
            if !self.try_place_one(event) {
                return Err(NoRoom { event, register: 0 });
            }
            if !self.shares_branches(event) {
                return Err(NoRoom { event, register: NoRoom::BRANCHES });
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

    /// Returns whether an event and the others of the plan record branches by the same filter, if at all.
    fn shares_branches(&self, event: EventId) -> bool {
        let filter_of =
            |event| self.table.entry(event).map_or(PackedFilter::NONE, EventEntry::branches);
        let filter = filter_of(event);
        let agrees = |other: PackedFilter| other.is_none() || other == filter;
        // The processor has one filter for all its branch records.
        filter.is_none() || self.plan.events().map(filter_of).all(agrees)
    }

    /// Adds an event to the plan. Other events keep their counters, unless `moves`. Returns `false` if there is no
    /// counter.
    fn try_place_one(&mut self, event: EventId) -> bool {
        // The event may have been removed to make room for another.
        let present = self.running(event).filter(|counter| self.plan.at(*counter).is_none());
        let Some(counter) = present.or_else(|| self.make_room(event)) else { return false };
        let encoding = self.table.entry(event).map_or(0, EventEntry::encoding);
        self.plan.set(counter, Some(Placement::new(event, encoding)));
        true
    }

    /// Frees a counter for an event, and returns it. Prefers a counter that is free, and a fixed to a general one,
    /// because fewer events can use it. Otherwise finds the shortest chain of events: each moves to the next one's
    /// counter, and the last to a free counter.
    ///
    /// This is an augmenting path of the bipartite matching of events and counters, searched breadth first: if any
    /// assignment of all these events exists, there is such a path.
    pub(crate) fn make_room(&mut self, event: EventId) -> Option<CounterId> {
        let used = self.plan.counters();
        // Moves alone make no room: each chain of moves ends at a free counter.
        if self.counters.without(used).is_empty() {
            return None;
        }
        let capable = self.capable(event);
        let free = capable.without(used);
        if let Some(counter) = (free & CounterSet::FIXED).first().or(free.first()) {
            return Some(counter);
        }
        // Per counter, the one whose event would move here: the way back along the path.
        let mut taker = [None::<CounterId>; MAX_COUNTERS];
        let (mut reached, mut frontier) = (capable, capable);
        while !frontier.is_empty() {
            let mut farther = CounterSet::NONE;
            for counter in frontier.iter() {
                let Some(placed) = self.plan.at(counter) else { continue };
                // A counter is reached at most once, which bounds the search.
                let next = self.capable(placed.event()).without(reached);
                for alternative in next.iter() {
                    if let Some(taker) = taker.get_mut(alternative.place()) {
                        *taker = Some(counter);
                    }
                }
                if let Some(mut free) = next.without(used).first() {
                    // A counter that the new event itself can use has no taker: there the path ends.
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
