//! The global control register as a gate: one write stops several counters, and another write resumes these counters.

use core::sync::atomic::Ordering::Relaxed;

use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::event_source::{EventSource, opens_events};
use crate::counters::hooks::facility::Facility;
use crate::counters::names::counter_id::{CounterId, CounterSet};
use crate::counters::shared::entry::EventEntry;
use crate::counters::shared::slot::{CounterSlot, SlotState};
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    /// Stops these counters by the global control register, if there is one.
    #[inline(never)]
    pub(crate) fn pause(&self, counters: CounterSet) -> Result<(), CounterError> {
        let bits = self.global_bits(counters);
        match self.unit().global().filter(|_| bits != 0) {
            Some(global) => self.change_global(global, (bits, 0)),
            None => Ok(()),
        }
    }

    /// Resumes those of these counters that are stopped. If that fails, they are presumed running.
    #[inline(never)]
    pub(crate) fn unpause(&self, counters: CounterSet) -> Result<(), CounterError> {
        let counters = self.outside_guests(counters);
        self.open_gate(counters).map_err(|error| {
            for (_, slot) in self.slots_of(counters) {
                if let Some(event) = slot.running() {
                    self.memory.mark_faulted(Some(event), self.table());
                }
            }
            error.faulted()
        })
    }

    /// Stops the free counters and those that run for rows, by the global control register.
    /// Returns `false` if there is no such register.
    pub(crate) fn close_gate(&self) -> Result<bool, CounterError> {
        let Some(global) = self.unit().global().filter(|_| self.is_open()) else {
            return Ok(false);
        };
        let gated = self.global_bits(self.not_faulted().without(self.of_opened_events()));
        self.change_global(global, (gated, 0)).map(|()| true)
    }

    /// Returns the counters that run for opened events.
    fn of_opened_events(&self) -> CounterSet {
        if !opens_events(&self.source) {
            return CounterSet::NONE;
        }
        let opened = self.slots().filter(|(_, slot)| match slot.load() {
            SlotState::Running { event, .. } => event.row().is_none(),
            _ => false,
        });
        opened.map(|(counter, _)| counter).collect()
    }

    /// Resumes these counters if some are stopped: by [`close_gate`](Self::close_gate), by [`pause`](Self::pause), or
    /// by an interrupt that could not restart them.
    pub(crate) fn open_gate(&self, counters: CounterSet) -> Result<(), CounterError> {
        // One whose registers did not answer may have those of a plain event and of records at once.
        let counters = match S::Facility::RECORDS {
            true => counters.retain(|counter| !self.is_faulted(counter)),
            false => counters,
        };
        let own = self.global_bits(counters);
        let closed = self.memory.global_control.load(Relaxed);
        match self.unit().global().filter(|_| closed & own != own) {
            Some(global) => self.change_global(global, (0, own)),
            None => Ok(()),
        }
    }

    /// Returns whether the global control register stops a counter that its own control enables.
    pub(crate) fn is_gated(&self, counter: CounterId) -> bool {
        if S::Facility::UNITS && !self.units_of(counter.only()).is_empty() {
            return false;
        }
        let enabled = self.memory.global_control.load(Relaxed);
        self.unit().global().is_some() && enabled & counter.only().bits() == 0
    }

    /// Returns these counters except those that run for events of guests, by the guests' value of the global control
    /// register: in the host's value their bits stay clear.
    pub(crate) fn outside_guests(&self, counters: CounterSet) -> CounterSet {
        let in_guests = |counter| {
            let event = self.slot(counter).and_then(CounterSlot::running);
            event.and_then(|event| self.table().entry(event)).is_some_and(EventEntry::is_of_guests)
        };
        if opens_events(&self.source) {
            counters.retain(|counter| !in_guests(counter))
        } else {
            counters
        }
    }

    /// Prepares a session whose counters were saved for starting others: no counter is parked, and the gate is open for
    /// these counters.
    pub(crate) fn unpark_all(&self, open: CounterSet) -> Result<(), CounterError> {
        // Only rows' counters are saved: for a source without rows, this is not linked.
        let parked = if self.source.table_id() == 0 { CounterSet::NONE } else { self.own() };
        for (counter, slot) in self.slots_of(parked) {
            if let SlotState::Parked { .. } = slot.load() {
                let registers = self.registers(counter);
                self.set_control(&registers, 0).map_err(CounterError::Access)?;
                slot.store(SlotState::Free);
            }
        }
        self.open_gate(open)
    }
}
