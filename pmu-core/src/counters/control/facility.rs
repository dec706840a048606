//! The facilities of a session's events: asked as an event is opened, and settled as events come and go.

use crate::access::backend::AccessFault;
use crate::branches::filter::PackedFilter;
use crate::counters::control::handle::{CounterSession, marked_faulted};
use crate::counters::error::{CounterError, ServiceError};
use crate::counters::events::count::Membership;
use crate::counters::events::event::Event;
use crate::counters::events::saved::SavedEvent;
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::facility::Facility;
use crate::counters::hooks::running::{Asked, Moment, Running, RunningEvent, Unsettled};
use crate::counters::interrupt::sample::Sample;
use crate::counters::interrupt::service::{Serviced, serve, serve_records};
use crate::counters::names::{CounterId, CounterSet, EventId};
use crate::counters::shared::entry::{EventEntry, OnProcessor};
use crate::counters::shared::period::Waiting;
use crate::counters::shared::slot::SlotState;
use crate::platform::Hardware;
use crate::precise::request::{NotPrecise, PackedPrecise};
use crate::profile::event_source::EventSource;

impl<S: EventSource, H: Hardware> CounterSession<'_, S, H> {
    /// Checks that an event asks for nothing, where the session has no facility.
    pub(crate) const fn check_plain(
        reload: u8,
        branches: PackedFilter,
        precise: PackedPrecise,
    ) -> Result<(), CounterError> {
        match (reload, branches.is_none(), precise.is_none()) {
            (0, true, true) => Ok(()),
            (0, true, false) => Err(CounterError::NotPrecise(NotPrecise::NoFacility)),
            (0, false, _) => Err(CounterError::BranchesUnsupported),
            _ => Err(CounterError::NotReloadable),
        }
    }

    /// Returns an event as data, as it was asked for.
    pub(crate) fn extract(&self, entry: &EventEntry) -> SavedEvent {
        let mut event = entry.extract();
        if self.is_software(entry) {
            event.period.resume = entry.left_of_period();
        }
        if S::Facility::OFFERS { event.as_asked() } else { event }
    }

    /// Returns what the facilities make of an event on this processor. `is_beside` says whether another event is
    /// counted beside it.
    pub(crate) fn resolve(
        &self,
        mut asked: Asked,
        counters: CounterSet,
        is_beside: impl FnOnce(u16) -> bool,
    ) -> Result<OnProcessor, CounterError> {
        if asked.reloaded && asked.precision.is_some() {
            // Its counter would begin periods that no record ends, and counter reload and the records share a register.
            return Err(CounterError::NotReloadable);
        }
        let counters = self.source.facility().resolve(&mut asked, counters)?;
        asked.unmet()?;
        if S::Facility::DIVIDES && self.is_undivided(&asked, counters) {
            return Err(CounterError::NotDivided);
        }
        if let Some(other) = asked.beside.filter(|other| !is_beside(*other)) {
            return Err(CounterError::NotPrecise(NotPrecise::NeedsBeside(other)));
        }
        Ok(OnProcessor { select: asked.select, counters, latency: asked.latency_register })
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
        let event = SavedEvent { membership: membership.pack(), ..self.extract(entry) };
        // The event's other requests are met already.
        let OnProcessor { counters, .. } =
            self.resolve(Asked::of_saved(&event), entry.counters(), |_| true)?;
        if (counters & self.own()).is_empty() {
            return Err(CounterError::NoCounterForEvent);
        }
        entry.set_membership(membership);
        entry.narrow(counters);
        Ok(())
    }

    /// Tells the facilities that a counter is about to stop. An interrupt that they delay comes before.
    #[inline(always)]
    pub(crate) fn before_stop(&self, counter: CounterId) {
        if S::Facility::OFFERS {
            self.source.facility().before_stop(&self.hardware, counter);
        }
    }

    /// Tells the facilities that a precise event is about to leave its counter, which is stopped.
    #[inline(always)]
    pub(crate) fn leave_facilities(
        &self,
        counter: CounterId,
        event: EventId,
    ) -> Result<Waiting, AccessFault> {
        if !S::Facility::RECORDS {
            return Ok(Waiting::NONE);
        }
        let event = RunningEvent::of(self.table(), event);
        let Some(event) = event.filter(|event| event.precision().is_some()) else {
            return Ok(Waiting::NONE);
        };
        self.source.facility().leave(&self.hardware, counter, &event)
    }

    /// Tells the facilities that an event was closed.
    #[inline(never)] // 48 bytes of the Hermit-like glue.
    pub(crate) fn forget_in_facilities(&self, event: EventId) {
        if S::Facility::RECORDS {
            self.source.facility().forget(event);
        }
    }

    /// Discards the call stack that is kept for a thread's event, unless it has this number: see
    /// [`EventFacility::claim`].
    // Linked once: as a thread leaves, comes and runs.
    #[inline(never)]
    pub(crate) fn claim_stack(&self, branches: PackedFilter, tag: u64, number: u32) -> u32 {
        let has_stack = S::Facility::KEEPS && branches.is_call_stack();
        if has_stack { self.source.facility().claim(tag, number) } else { 0 }
    }

    #[inline(never)] // 80 bytes of the Hermit-like glue.
    fn on_counters(&self, counters: CounterSet, moment: Moment) -> Running<'_> {
        let (unit, memory, table) = (self.unit(), self.memory, self.table());
        Running { unit, memory, table, counters, moment, coming: None }
    }

    /// Starts an event on a free counter, once the facilities are settled on it.
    pub(crate) fn run_settled(
        &self,
        counter: CounterId,
        event: EventId,
    ) -> Result<(), CounterError> {
        let ran = self.settle_on_coming(counter, event).and_then(|()| self.run(counter, event));
        // On failure, as if there was no such event.
        self.settle_facilities().and(ran)
    }

    /// Settles the facilities on an event that is about to be started on a free counter.
    pub(crate) fn settle_on_coming(
        &self,
        counter: CounterId,
        event: EventId,
    ) -> Result<(), CounterError> {
        let running = self.on_counters(self.own(), Moment::Changed);
        let running = Running { coming: Some((counter, event)), ..running };
        let settled = self.settle_stopped(&running);
        settled.map_err(|Unsettled { fault, .. }| CounterError::Unchanged(fault))
    }

    /// Settles the facilities on the events that are on counters now. If registers do not answer, the counters of their
    /// events' groups are stopped.
    pub(crate) fn settle_facilities(&self) -> Result<(), CounterError> {
        self.settle_at(self.own(), Moment::Changed)
    }

    /// Programs the registers of the source's facilities for what no event asked of them, such as a branch trace. While
    /// the counters are [lent](Self::lend), the facilities are programmed when they return. Facilities call this
    /// method.
    ///
    /// # Errors
    /// [`StateUnknown`](CounterError::StateUnknown): the events that depend on it were stopped.
    pub fn settle_requests(&mut self) -> Result<(), CounterError> {
        if self.has_own() { self.settle_facilities() } else { Ok(()) }
    }

    /// Settles the facilities once more if these counters, to which events are to come, may still write records of
    /// events that left.
    #[inline(always)]
    pub(crate) fn settle_left_over(&self, counters: CounterSet) -> Result<(), CounterError> {
        if !S::Facility::RECORDS {
            return Ok(());
        }
        let facility = self.source.facility();
        let left_over = || {
            let running = self.on_counters(self.own(), Moment::Changed);
            facility.left_over(&running) & counters
        };
        if left_over().is_empty() {
            return Ok(());
        }
        self.settle_facilities()?;
        // A counter that still writes records would write them of the event that comes, which may have asked for none.
        match left_over().iter().next() {
            None => Ok(()),
            Some(counter) => {
                let register = self.registers(counter).control.register();
                Err(CounterError::Unchanged(marked_faulted(register)))
            }
        }
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
        let running = self.on_counters(own, moment);
        let mut outcome = Ok(());
        // A second time without the events that were stopped.
        for _ in 0..2 {
            let Err(Unsettled { counters, fault }) = self.settle_stopped(&running) else {
                break;
            };
            self.stop_unsettled(counters, own);
            outcome = outcome.and(Err(CounterError::StateUnknown(fault)));
        }
        outcome
    }

    /// Settles the facilities. Counters that must not count meanwhile are stopped by the global control register.
    fn settle_stopped(&self, running: &Running<'_>) -> Result<(), Unsettled> {
        let facility = self.source.facility();
        if !S::Facility::RECORDS {
            return facility.settle(&self.hardware, running);
        }
        let counters = facility.needs_stopped(running);
        let counters = counters.retain(|counter| !self.is_gated(counter));
        let unsettled = |error: CounterError| {
            let fault = error.fault().unwrap_or(marked_faulted(self.unit().fixed_control()));
            Unsettled { counters, fault }
        };
        self.pause(counters).map_err(unsettled)?;
        let settled = facility.settle(&self.hardware, running);
        self.unpause(counters).map_err(unsettled).and(settled)
    }

    /// Stops counters whose facilities' registers are unknown, and those of their events' groups. Counters that were
    /// faulted before are not touched.
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

    /// Reports the samples of [precise](Event::precise) events whose records wait in memory. With a threshold of many
    /// records, samples may wait for a long time. Their addresses belong to the memory mappings that the process had
    /// when they were recorded. So call this method before the process ends or maps other files, and before an event is
    /// closed. While the counters are [lent](Self::lend), no record waits: `lend` reported them.
    ///
    /// # Errors
    /// - [`Unchanged`](CounterError::Unchanged): the call can be repeated.
    /// - [`StateUnknown`](CounterError::StateUnknown): counters faulted, as in [`service`](crate::service()), now or in
    ///   a call before that left the interrupt masked.
    pub fn report_samples(
        &mut self,
        mut report: impl FnMut(Sample<'_, S::Facility>),
    ) -> Result<(), CounterError> {
        if !S::Facility::RECORDS || !self.has_own() {
            return Ok(());
        }
        // No pass is made while the interrupt is masked, so the records would wait on without an error.
        if self.memory.serving.is_masked() {
            let unit = self.unit();
            let register = unit.global().map_or(unit.fixed_control(), |global| global.status);
            return Err(CounterError::StateUnknown(marked_faulted(register)));
        }
        self.report_waiting(&mut report)
    }

    /// Returns the counters that count precise events.
    #[inline(always)]
    pub(crate) fn precise_of(&self, counters: CounterSet) -> CounterSet {
        let is_precise = |counter: CounterId| self.runs_precise(counter.only());
        if S::Facility::RECORDS { counters.retain(is_precise) } else { CounterSet::NONE }
    }

    /// Returns whether a precise event is on one of these counters.
    #[inline(always)]
    pub(crate) fn runs_precise(&self, counters: CounterSet) -> bool {
        S::Facility::RECORDS
            && self.slots_of(counters).any(|(_, slot)| {
                let entry = slot.running().and_then(|event| self.table().entry(event));
                entry.is_some_and(EventEntry::is_precise)
            })
    }

    /// Reports the samples whose records wait. All counters of precise events are stopped meanwhile: the next record is
    /// written over the first one that is reported.
    #[inline(always)]
    pub(crate) fn report_waiting(
        &self,
        report: &mut impl FnMut(Sample<'_, S::Facility>),
    ) -> Result<(), CounterError> {
        if !self.source.facility().has_waiting(&self.hardware).map_err(CounterError::Unchanged)? {
            return Ok(());
        }
        let recording = self.precise_of(self.own()).retain(|counter| !self.is_gated(counter));
        self.pause(recording)?;
        let served = self.serve_samples(report);
        let served = served.map_err(|error| match error.counters.is_empty() && !error.masked {
            true => CounterError::Unchanged(error.fault),
            false => CounterError::StateUnknown(error.fault),
        });
        // The interrupts of what was served here are still to come, and then find no overflow.
        let served = served.map(|served| self.memory.expect_spurious(served.claim.interrupts()));
        served.and(self.unpause(recording))
    }

    /// Serves the counters and the facilities as in an interrupt, with all records that wait.
    #[inline]
    pub(crate) fn serve_samples(
        &self,
        report: &mut dyn FnMut(Sample<'_, S::Facility>),
    ) -> Result<Serviced, ServiceError> {
        let (source, facility) = (&self.source, self.source.facility().collecting_all());
        let mut overflowed = |overflow, facility: &S::Facility| {
            report(Sample::new(source, overflow, Some(facility)));
        };
        if S::Facility::RECORDS {
            serve_records(source, &self.hardware, self.memory, facility, &mut overflowed)
        } else {
            serve(source, &self.hardware, self.memory, facility, overflowed)
        }
    }

    /// Clears the facilities' registers, for another owner of the counters.
    pub(crate) fn clear_facilities(
        &self,
        counters: CounterSet,
        moment: Moment,
    ) -> Result<(), AccessFault> {
        let running = self.on_counters(counters, moment);
        self.source.facility().settle(&self.hardware, &running).map_err(|unsettled| unsettled.fault)
    }
}
