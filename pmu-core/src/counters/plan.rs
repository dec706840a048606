//! The plan of an assignment: which event is to be on which counter, found before any register is accessed.

use core::iter;

use crate::counters::extra::Encodings;
use crate::counters::slot::SlotState;
use crate::{
    CounterError, CounterId, CounterSet, Counters, EventEntry, EventId, EventSource, MAX_COUNTERS,
    MsrBackend, Platform,
};

/// One more than the last bit of a counter.
const BITS: usize = CounterSet::ALL.bits().ilog2() as usize + 1;

/// An event on a counter, counted by one of its encodings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) event: EventId,
    pub(crate) encoding: u8,
}

/// The event that each counter has, or is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    on: [Option<Placed>; BITS],
}

/// The event of a group for which there is no room, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unplaced {
    pub(crate) event: EventId,
    pub(crate) reason: CounterError,
}

impl Plan {
    pub(crate) const EMPTY: Self = Self { on: [None; BITS] };

    pub(crate) fn at(&self, counter: CounterId) -> Option<Placed> {
        self.on.get(usize::from(counter.bit())).copied().flatten()
    }

    fn set(&mut self, counter: CounterId, placed: Option<Placed>) {
        if let Some(on) = self.on.get_mut(usize::from(counter.bit())) {
            *on = placed;
        }
    }

    /// Returns the counters that have an event.
    pub(crate) fn counters(&self) -> CounterSet {
        CounterSet::ALL.retain(|counter| self.at(counter).is_some())
    }

    /// Returns the events with their counters.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (CounterId, Placed)> {
        CounterSet::ALL.iter().filter_map(|counter| Some((counter, self.at(counter)?)))
    }

    pub(crate) fn events(&self) -> impl Iterator<Item = EventId> {
        self.iter().map(|(_, placed)| placed.event)
    }

    /// Returns an event's counter.
    pub(crate) fn find(&self, event: EventId) -> Option<CounterId> {
        self.iter().find_map(|(counter, placed)| (placed.event == event).then_some(counter))
    }

    /// Returns the part of the plan that another plan does not have.
    pub(crate) fn without(mut self, other: &Self) -> Self {
        for (counter, placed) in other.iter() {
            if self.at(counter) == Some(placed) {
                self.set(counter, None);
            }
        }
        self
    }

    /// Returns the part of the plan on these counters.
    pub(crate) fn on(mut self, counters: CounterSet) -> Self {
        for counter in self.counters().without(counters).iter() {
            self.set(counter, None);
        }
        self
    }

    /// Gives an event another encoding.
    fn encode(&mut self, placed: Placed) {
        if let Some(counter) = self.find(placed.event) {
            self.set(counter, Some(placed));
        }
    }

    fn remove(&mut self, event: EventId) {
        if let Some(counter) = self.find(event) {
            self.set(counter, None);
        }
    }
}

impl<S: EventSource, M: MsrBackend, P: Platform> Counters<'_, S, M, P> {
    /// Returns the present assignment.
    pub(crate) fn present(&self) -> Plan {
        let mut plan = Plan::EMPTY;
        for (counter, slot) in self.slots() {
            if let SlotState::Running { event, .. } = slot.load() {
                let encoding = self.table().entry(event).map_or(0, EventEntry::encoding);
                plan.set(counter, Some(Placed { event, encoding }));
            }
        }
        plan
    }

    /// Returns the counters that can be used.
    pub(crate) fn usable(&self) -> CounterSet {
        self.own().retain(|counter| {
            self.slot(counter).is_some_and(|slot| slot.load() != SlotState::Faulted)
        })
    }

    /// Returns the counters that can count an event.
    fn capable(&self, event: EventId) -> CounterSet {
        self.table().entry(event).map_or(CounterSet::GENERAL, EventEntry::counters)
    }

    /// Returns an event, then the others of its group.
    pub(crate) fn group_of(&self, event: EventId) -> impl Iterator<Item = EventId> {
        let group = self.table().entry(event).and_then(EventEntry::group);
        let others = self.table().opened().filter_map(move |(other, entry)| {
            (other != event && group.is_some() && entry.group() == group).then_some(other)
        });
        iter::once(event).chain(others)
    }

    /// Plans counters for an event and its group: all of them, or none. Where that makes room, other events move, and
    /// rotating events that `may_give_way` lose their counters, beginning with the one that had its counter longest.
    pub(crate) fn plan(
        &self,
        event: EventId,
        may_give_way: impl Fn(&EventEntry) -> bool,
    ) -> Result<Plan, Unplaced> {
        self.check_whole(event)?;
        let ready = self.check_unmuted().and_then(|()| self.leave_switch());
        ready.map_err(|reason| Unplaced { event, reason })?;
        let mut plan = self.present();
        // One more than can go.
        let mut gone = [None; MAX_COUNTERS + 1];
        for place in &mut gone {
            match self.admit(&plan, event) {
                Ok(with) => {
                    plan = with;
                    break;
                }
                Err(unplaced) => {
                    let oldest = self.oldest(&plan, &may_give_way).ok_or(unplaced)?;
                    self.group_of(oldest).for_each(|event| plan.remove(event));
                    *place = Some(oldest);
                }
            }
        }
        // Those that need not have given way stay.
        for event in gone.into_iter().flatten().rev() {
            plan = self.admit(&plan, event).unwrap_or(plan);
        }
        Ok(plan)
    }

    /// Returns the event that had its counter longest, of the rotating ones that may give way.
    fn oldest(&self, plan: &Plan, may_give_way: &impl Fn(&EventEntry) -> bool) -> Option<EventId> {
        let rotating = plan.iter().filter_map(|(_, placed)| {
            let entry = self.table().entry(placed.event)?;
            (entry.rotates() && may_give_way(entry)).then_some((placed.event, entry))
        });
        let oldest = rotating.max_by_key(|(_, entry)| self.table().age(entry.turn()));
        oldest.map(|(event, _)| event)
    }

    /// Adds an event and its group to a plan. Events that run move only if there is no room otherwise.
    pub(crate) fn admit(&self, plan: &Plan, event: EventId) -> Result<Plan, Unplaced> {
        self.admit_beside(plan, event, false).or_else(|_| self.admit_beside(plan, event, true))
    }

    fn admit_beside(&self, plan: &Plan, event: EventId, moves: bool) -> Result<Plan, Unplaced> {
        let mut with = *plan;
        let usable = self.usable();
        let capable = |of| match plan.find(of) {
            Some(counter) if !moves => counter.only(),
            _ => self.capable(of) & usable,
        };
        for event in self.group_of(event) {
            let unplaced = |reason| Unplaced { event, reason };
            // It may have been removed for another's sake.
            let present = self.counter_of(event).filter(|counter| with.at(*counter).is_none());
            let counter = present.or_else(|| make_room(&mut with, capable(event), capable));
            let counter = counter.ok_or(unplaced(CounterError::NoFreeCounter))?;
            let encoding = self.table().entry(event).map_or(0, EventEntry::encoding);
            with.set(counter, Some(Placed { event, encoding }));
            if let Some(extra) = self.table().entry(event).and_then(EventEntry::extra) {
                let register = extra.first_register();
                let reason = CounterError::ExtraRegisterInUse(register);
                with = self.choose_encodings(with).ok_or(unplaced(reason))?;
            }
        }
        Ok(with)
    }

    /// Chooses encodings for the events of a plan such that no two need different values of one extra register. Those
    /// on counters keep theirs, if that is possible.
    fn choose_encodings(&self, plan: Plan) -> Option<Plan> {
        let (mut encodings, mut running) = (Encodings::new(), 0);
        for on_counters in [true, false] {
            for (_, placed) in plan.iter() {
                let extra = self.table().entry(placed.event).and_then(EventEntry::extra);
                if let Some(extra) = extra
                    && self.counter_of(placed.event).is_some() == on_counters
                {
                    encodings.add(placed, extra);
                    running += usize::from(on_counters);
                }
            }
        }
        let mut encoded = plan;
        encodings.choose(running)?.for_each(|placed| encoded.encode(placed));
        Some(encoded)
    }
}

/// Makes one of these counters free in a plan, and returns it: a free one, fixed rather than general, because fewer
/// events can be on it; else by the shortest chain of events each of which moves to the next one's counter, the last
/// one to a free one.
///
/// This is an augmenting path of the bipartite matching of events and counters, searched breadth first: if any
/// assignment of all these events exists, there is such a path.
fn make_room(
    plan: &mut Plan,
    capable: CounterSet,
    capable_of: impl Fn(EventId) -> CounterSet,
) -> Option<CounterId> {
    let is_free = |counter: CounterId| plan.at(counter).is_none();
    let free = capable.retain(is_free);
    let mut preferred = (free & CounterSet::FIXED).iter().chain(free.iter());
    if let Some(counter) = preferred.next() {
        return Some(counter);
    }
    let mut taker = [None::<CounterId>; BITS];
    let (mut reached, mut frontier) = (capable, capable);
    while !frontier.is_empty() {
        let mut farther = CounterSet::NONE;
        for counter in frontier.iter() {
            let Some(placed) = plan.at(counter) else { continue };
            let next = capable_of(placed.event).without(reached);
            for alternative in next.iter() {
                if let Some(taker) = taker.get_mut(usize::from(alternative.bit())) {
                    *taker = Some(counter);
                }
            }
            if let Some(mut free) = next.iter().find(|counter| is_free(*counter)) {
                while let Some(Some(from)) = taker.get(usize::from(free.bit())) {
                    plan.set(free, plan.at(*from));
                    free = *from;
                }
                plan.set(free, None);
                return Some(free);
            }
            reached = reached | next;
            farther = farther | next;
        }
        frontier = farther;
    }
    None
}
