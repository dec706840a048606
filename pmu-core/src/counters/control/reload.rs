//! Counters that overflows reload: programmed for the groups that are on counters.

use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::events::event::Event;
use crate::counters::events::membership::Membership;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::names::counter_id::CounterSet;
use crate::counters::names::event_id::EventId;
use crate::counters::shared::entry::EventEntry;
use crate::counters::shared::slot::{CounterSlot, SlotState};
use crate::msr::backend::MsrBackend;
use crate::msr::fault::MsrFault;
use crate::platform::Platform;

impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    /// Returns those of `counters` that can be reloaded as an event asks, and whose overflow can reload others where
    /// another event asks for that. `None` if the event asks for what this source cannot do.
    pub(crate) fn reloadable(
        &self,
        counters: CounterSet,
        membership: Membership,
    ) -> Option<CounterSet> {
        let Some((reload, _)) = self.source.counter_reload() else {
            return (membership.reload == 0).then_some(counters);
        };
        let is_reloaded = membership.reload != 0;
        if is_reloaded && membership.group == 0 {
            return None;
        }
        let reloaded = if is_reloaded { reload.reloaded } else { CounterSet::ALL };
        let causes = membership.has(Membership::RELOADS);
        let causing = if causes { reload.causing } else { CounterSet::ALL };
        Some(counters & reloaded & causing)
    }

    /// Returns whether one of the events of a group to be opened reloads others.
    pub(crate) fn reloads_others(
        &self,
        events: &[Event],
        member: usize,
    ) -> Result<bool, CounterError> {
        let Some(event) = events.get(member).filter(|_| self.source.counter_reload().is_some())
        else {
            return Ok(false);
        };
        let named = events.iter().map(|event| event.reload);
        let reporting = (event.reporting.period, event.reporting.keeps_total());
        let reloads = Membership::reloads_others(named, member, reporting);
        reloads.ok_or(CounterError::NotReloadable)
    }

    /// Returns what an event names, unless this source can let it be reloaded.
    pub(crate) fn unless_reloading(&self, named: u8) -> u8 {
        if self.source.counter_reload().is_some() { 0 } else { named }
    }

    /// Lets an event that was opened in a group be reloaded by the members of the bitmap `named`. `reloads`: another
    /// member names the event.
    pub(crate) fn open_reload(
        &self,
        entry: &EventEntry,
        named: u8,
        reloads: bool,
    ) -> Result<(), CounterError> {
        if self.source.counter_reload().is_none() || named == 0 && !reloads {
            return Ok(());
        }
        let membership = entry.membership().with(Membership::RELOADS, reloads);
        let membership = Membership { reload: named, ..membership };
        let counters = self.reloadable(entry.counters(), membership);
        let counters = counters.ok_or(CounterError::NotReloadable)?;
        if (counters & self.own()).is_empty() {
            return Err(CounterError::NoCounterForEvent);
        }
        entry.set_membership(membership);
        entry.set_counters(counters);
        Ok(())
    }

    /// Returns the events of an entry's group that a bitmap names.
    fn named(&self, entry: &EventEntry, named: u8) -> impl Iterator<Item = EventId> {
        let group = entry.group().into_iter().flat_map(|group| self.members(group)).enumerate();
        group
            .filter(move |(member, _)| *member < 8 && named >> member & 1 != 0)
            .map(|(_, (event, _))| event)
    }

    /// Programs the reload registers for the events that are on counters now, and clears them elsewhere. If a register
    /// faults, the counters of its event's group are stopped.
    pub(crate) fn settle_reloads(&self) -> Result<(), CounterError> {
        self.settle_reloads_of(self.own())
    }

    /// Programs the reload registers of these counters, which the interrupt path may not know at present.
    pub(crate) fn settle_reloads_of(&self, own: CounterSet) -> Result<(), CounterError> {
        let Some((reload, memory)) = self.source.counter_reload() else { return Ok(()) };
        let mut outcome = Ok(());
        for (counter, slot) in self.slots_of(own) {
            let running = slot.running().and_then(|event| self.table().entry(event));
            let wanted = running.map_or((CounterSet::NONE, 0), |entry| {
                let named = self.named(entry, entry.membership().reload);
                let on = named.filter_map(|event| {
                    let mut slots = self.slots_of(own);
                    slots.find(|(_, slot)| slot.running() == Some(event)).map(|(on, _)| on)
                });
                let period = entry.period.every().min(Membership::MAX_RELOAD) as u32;
                (on.collect(), period.wrapping_neg())
            });
            let registers = self.registers(counter);
            if let Err(fault) = memory.set(&self.msr, reload, (counter, &registers), wanted) {
                self.stop_reloaded(slot, own);
                outcome = outcome.and(Err(CounterError::Faulted(fault)));
            }
        }
        outcome
    }

    /// Stops a counter whose reload registers are unknown, and those of its event's group. Counters that were faulted
    /// before are not touched: they include those that facilities have reserved.
    fn stop_reloaded(&self, slot: &CounterSlot, own: CounterSet) {
        let event = slot.running();
        let others = self.slots_of(own).filter(|(_, slot)| slot.load() == SlotState::Faulted);
        let others: CounterSet = others.map(|(counter, _)| counter).collect();
        slot.store(SlotState::Faulted);
        if let Some(event) = event {
            self.memory.mark_faulted(Some(event), self.table());
        }
        for (counter, slot) in self.slots_of(own) {
            if slot.load() == SlotState::Faulted && !others.contains(counter) {
                // Presumed running otherwise.
                let _ = self.set_control(&self.registers(counter), 0);
            }
        }
    }

    /// Clears the reload registers of all counters, for another owner of the counters.
    pub(crate) fn clear_reloads(&self, counters: CounterSet) -> Result<(), MsrFault> {
        let Some((reload, memory)) = self.source.counter_reload() else { return Ok(()) };
        let mut outcome = Ok(());
        for (counter, _) in self.slots_of(counters) {
            let registers = self.registers(counter);
            let none = (CounterSet::NONE, 0);
            outcome = outcome.and(memory.set(&self.msr, reload, (counter, &registers), none));
        }
        outcome
    }

    /// Notes that the reload registers hold unknown values.
    pub(crate) fn forget_reloads(&self) {
        if let Some((_, memory)) = self.source.counter_reload() {
            memory.forget();
        }
    }
}
