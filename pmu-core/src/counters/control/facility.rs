//! The facilities of a session's events: asked as an event is opened, and settled as events come and go.

use crate::branches::filter::PackedFilter;
use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::events::event::Event;
use crate::counters::events::membership::Membership;
use crate::counters::hooks::event_facility::{Asked, EventFacility, Moment, Running, Unsettled};
use crate::counters::hooks::event_source::EventSource;
use crate::counters::names::counter_id::{CounterId, CounterSet};
use crate::counters::names::event_id::EventId;
use crate::counters::shared::entry::EventEntry;
use crate::counters::shared::slot::SlotState;
use crate::msr::backend::MsrBackend;
use crate::msr::fault::MsrFault;
use crate::platform::Platform;

impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    /// Returns those of `counters` that can do what an event asks for.
    pub(crate) fn resolve(
        &self,
        counters: CounterSet,
        membership: Membership,
        branches: PackedFilter,
    ) -> Result<CounterSet, CounterError> {
        if !S::Facility::OFFERS {
            // Without a facility, nothing of `Asked` is linked.
            return match (membership.reload, branches.is_none()) {
                (0, true) => Ok(counters),
                (0, false) => Err(CounterError::BranchesUnsupported),
                _ => Err(CounterError::NotReloadable),
            };
        }
        let mut asked = Asked::of(membership, branches);
        let counters = self.source.facility().resolve(&mut asked, counters);
        asked.unmet().map(|()| counters)
    }

    /// Checks that no event that runs records branches by another filter than an event that is to run.
    pub(crate) fn check_branches(&self, entry: &EventEntry) -> Result<(), CounterError> {
        let filter = entry.branches();
        if !S::Facility::OFFERS || filter.is_none() {
            return Ok(());
        }
        let running = self.slots().filter_map(|(_, slot)| self.table().entry(slot.running()?));
        let differs = |other: PackedFilter| !other.is_none() && other != filter;
        match running.map(EventEntry::branches).any(differs) {
            true => Err(CounterError::BranchFilterInUse),
            false => Ok(()),
        }
    }

    /// Returns whether a member of a group to be opened reloads others.
    pub(crate) fn reloads_others(
        &self,
        events: &[Event],
        member: usize,
    ) -> Result<bool, CounterError> {
        let Some(event) = events.get(member).filter(|_| S::Facility::OFFERS) else {
            return Ok(false);
        };
        let named = events.iter().map(|event| event.reload);
        let reporting = (event.reporting.period, event.reporting.keeps_total());
        let reloads = Membership::reloads_others(named, member, reporting);
        reloads.ok_or(CounterError::NotReloadable)
    }

    /// Lets an event that was opened in a group be reloaded by the members of the bitmap `named`. `reloads`: another
    /// member names the event.
    pub(crate) fn open_reload(
        &self,
        entry: &EventEntry,
        named: u8,
        reloads: bool,
    ) -> Result<(), CounterError> {
        if !S::Facility::OFFERS || named == 0 && !reloads {
            return Ok(());
        }
        let membership = entry.membership().with(Membership::RELOADS, reloads);
        let membership = Membership { reload: named, ..membership };
        let counters = self.resolve(entry.counters(), membership, PackedFilter::NONE)?;
        if (counters & self.own()).is_empty() {
            return Err(CounterError::NoCounterForEvent);
        }
        entry.set_membership(membership);
        entry.set_counters(counters);
        Ok(())
    }

    fn on_counters(&self, counters: CounterSet, moment: Moment) -> Running<'_> {
        let (unit, memory, table) = (self.unit(), self.memory, self.table());
        Running { unit, memory, table, counters, moment, coming: None }
    }

    /// Starts an event on a free counter, once the facilities are settled on it.
    #[inline(never)]
    pub(crate) fn run_settled(
        &self,
        counter: CounterId,
        event: EventId,
    ) -> Result<(), CounterError> {
        let running = self.on_counters(self.own(), Moment::Changed);
        let running = Running { coming: Some((counter, event)), ..running };
        let settled = self.source.facility().settle(&self.msr, &running);
        let ran = match settled {
            Ok(()) => self.run(counter, event),
            Err(Unsettled { fault, .. }) => Err(CounterError::Access(fault)),
        };
        // On failure, as if there was no such event.
        ran.or_else(|error| self.settle_facilities().and(Err(error)))
    }

    /// Settles the facilities on the events that are on counters now. If registers do not answer, the counters of their
    /// events' groups are stopped.
    pub(crate) fn settle_facilities(&self) -> Result<(), CounterError> {
        self.settle_at(self.own(), Moment::Changed)
    }

    /// Settles the facilities as another thread is about to run.
    pub(crate) fn switch_facilities(&self) -> Result<(), CounterError> {
        self.settle_at(self.own(), Moment::Switched)
    }

    /// Settles the facilities of these counters, which the interrupt path may not know at present. The counters were
    /// another owner's, or their registers were lost.
    pub(crate) fn settle_facilities_of(&self, own: CounterSet) -> Result<(), CounterError> {
        self.settle_at(own, Moment::Returned)
    }

    fn settle_at(&self, own: CounterSet, moment: Moment) -> Result<(), CounterError> {
        if !S::Facility::OFFERS {
            return Ok(());
        }
        let (facility, running) = (self.source.facility(), self.on_counters(own, moment));
        let mut outcome = Ok(());
        // A second time without the events that were stopped.
        for _ in 0..2 {
            let Err(Unsettled { counters, fault }) = facility.settle(&self.msr, &running) else {
                break;
            };
            self.stop_unsettled(counters, own);
            outcome = outcome.and(Err(CounterError::Faulted(fault)));
        }
        outcome
    }

    /// Stops counters whose facilities' registers are unknown, and those of their events' groups. Counters that were
    /// faulted before are not touched: they include those that facilities have reserved.
    fn stop_unsettled(&self, unsettled: CounterSet, own: CounterSet) {
        let faulted = |of: CounterSet| of.retain(|counter| self.is_faulted(counter));
        let before = faulted(own);
        for (_, slot) in self.slots_of((unsettled & own).without(before)) {
            if let SlotState::Running { event, .. } = slot.replace(SlotState::Faulted) {
                self.memory.mark_faulted(Some(event), self.table());
            }
        }
        for counter in faulted(own.without(before)).iter() {
            // Presumed running otherwise.
            let _ = self.set_control(&self.registers(counter), 0);
        }
    }

    /// Clears the facilities' registers, for another owner of the counters.
    pub(crate) fn clear_facilities(&self, counters: CounterSet) -> Result<(), MsrFault> {
        let running = self.on_counters(counters, Moment::Lent);
        self.source.facility().settle(&self.msr, &running).map_err(|unsettled| unsettled.fault)
    }
}
