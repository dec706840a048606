//! The search for a plan, before any register is accessed.

use crate::branches::filter::PackedFilter;
use crate::counters::control::assignment::plan::{NoRoom, Placement};
use crate::counters::control::assignment::planner::Planner;
use crate::counters::events::membership::Membership;
use crate::counters::names::event_id::EventId;
use crate::counters::shared::entry::EventEntry;

impl Planner<'_> {
    /// Plans for an event: see [`CounterSession::assign`](crate::CounterSession::assign).
    // Inlined into its few callers, for the sake of the stack.
    #[inline(always)]
    pub(crate) fn plan(&mut self, event: EventId, great: Option<u32>) -> Result<(), NoRoom> {
        while let Err(no_room) = self.try_place(event) {
            let first = self.first_to_go(great).ok_or(no_room)?;
            self.table.with_group(first).for_each(|event| self.plan.remove(event));
        }
        // Put back the events whose eviction was unnecessary; the first that was evicted is tried last.
        let mut last = None;
        while let Some(gone) = self.last_gone(last) {
            let _ = self.try_place(gone);
            last = Some(self.rank(gone));
        }
        Ok(())
    }

    /// Adds an event and its group to the plan. Running events move only if there is no room otherwise. After an error
    /// the plan is as it was.
    #[inline(never)]
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
            self.moves = true;
        }
    }

    /// Checks that neither the event nor one of the plan's excludes the other.
    #[inline(never)]
    fn check_alone(&self, event: EventId) -> Result<(), NoRoom> {
        let of = self.membership(event);
        for other in self.plan.events() {
            let with = self.membership(other);
            let excludes = (of.flags | with.flags) & Membership::EXCLUSIVE != 0;
            if excludes && other != event && (of.group == 0 || of.group != with.group) {
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
        filter.is_none() || self.plan.events().map(filter_of).all(agrees)
    }

    /// Adds an event to the plan. Other events keep their counters, unless `moves`. Returns `false` if there is no
    /// counter.
    #[inline(never)]
    fn try_place_one(&mut self, event: EventId) -> bool {
        // The event may have been removed to make room for another.
        let present = self.running(event).filter(|counter| self.plan.at(*counter).is_none());
        let Some(counter) = present.or_else(|| self.make_room(event)) else { return false };
        let encoding = self.table.entry(event).map_or(0, EventEntry::encoding);
        self.plan.set(counter, Some(Placement { event, encoding }));
        true
    }
}
