//! The planner: what an assignment needs on the stack while it is planned and applied.

use core::mem;

use crate::counters::control::assignment::plan::{PlacementError, Plan};
use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::names::counter_id::{CounterId, CounterSet};
use crate::counters::names::event_id::EventId;
use crate::counters::shared::entry::EventEntry;
use crate::counters::shared::memory::CounterMemory;
use crate::counters::shared::slot::CounterSlot;
use crate::counters::shared::table::EventTable;
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    /// Returns a planner, whose plan is empty.
    #[inline(never)]
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

    // Nothing of it is to be on the stack while a plan is made.
    #[inline(never)]
    pub(crate) fn get_ready(&self, event: EventId) -> Result<(), PlacementError> {
        self.check_whole(event)?;
        let own = self.outside_guests(self.own());
        let ready = self.check_unmuted().and_then(|()| self.unpark_all(own));
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

    #[inline(never)] // Linked once: inlined into a loop, the loop is there for each outcome.
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
    pub(crate) fn first_to_go(&self, great: Option<u32>) -> Option<EventId> {
        let great = great?;
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

    /// Returns the event that gave way last, of those that are to lose their counters and rank above `last`.
    pub(crate) fn last_gone(&self, last: Option<u64>) -> Option<EventId> {
        let mut first: Option<(u64, EventId)> = None;
        for event in self.counters.iter().filter_map(|counter| self.running_on(counter)) {
            let rank = self.rank(event);
            let is_next = Some(rank) > last && first.is_none_or(|(least, _)| rank < least);
            if is_next && self.plan.find(event).is_none() {
                first = Some((rank, event));
            }
        }
        first.map(|(_, event)| event)
    }

    /// Returns the event that is on a counter at present.
    fn running_on(&self, counter: CounterId) -> Option<EventId> {
        self.memory.slot(counter).and_then(CounterSlot::running)
    }

    /// Returns the counter that an event is on at present.
    pub(crate) fn running(&self, event: EventId) -> Option<CounterId> {
        self.counters.iter().find(|counter| self.running_on(*counter) == Some(event))
    }

    /// Returns an event's rank: its share, above the number of turns since it got its counter. The greatest gives way
    /// first.
    #[inline(never)]
    pub(crate) fn rank(&self, event: EventId) -> u64 {
        self.table.entry(event).map_or(0, |entry| {
            u64::from(entry.share()) << 32 | u64::from(self.table.age(entry.turn()))
        })
    }

    /// Returns the counters that an event may have.
    pub(crate) fn capable(&self, event: EventId) -> CounterSet {
        match self.before.find(event) {
            Some(counter) if !self.moves => counter.only(),
            _ => self.table.capable(event) & self.counters,
        }
    }
}
