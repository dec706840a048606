//! The global control register as a gate: one write stops several counters, and another write resumes these counters.

use core::sync::atomic::Ordering::Relaxed;

use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::hooks::event_source::{EventSource, opens_events};
use crate::counters::names::counter_id::CounterSet;
use crate::counters::shared::slot::SlotState;
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    /// Stops these counters by the global control register, if there is one.
    #[inline(never)]
    pub(crate) fn pause(&self, counters: CounterSet) -> Result<(), CounterError> {
        match self.unit().global().filter(|_| !counters.is_empty()) {
            Some(global) => self.change_global(global, (counters.bits(), 0)),
            None => Ok(()),
        }
    }

    /// Resumes these counters. If that fails, they are presumed running.
    #[inline(never)]
    pub(crate) fn resume(&self, counters: CounterSet) -> Result<(), CounterError> {
        let Some(global) = self.unit().global().filter(|_| !counters.is_empty()) else {
            return Ok(());
        };
        match self.change_global(global, (0, counters.bits())) {
            Err(CounterError::Access(fault)) => {
                for (_, slot) in self.slots_of(counters) {
                    if let Some(event) = slot.running() {
                        self.memory.mark_faulted(Some(event), self.table());
                    }
                }
                Err(CounterError::Faulted(fault))
            }
            outcome => outcome,
        }
    }

    /// Stops the free counters and those that run for rows, by the global control register. Returns `false` if there
    /// is none.
    pub(crate) fn close_gate(&self) -> Result<bool, CounterError> {
        let Some(global) = self.unit().global().filter(|_| self.is_open()) else {
            return Ok(false);
        };
        let gated = self.own().without(self.of_opened_events()).bits();
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

    /// Resumes the counters if they are [stopped](Self::close_gate).
    pub(crate) fn open_gate(&self) -> Result<(), CounterError> {
        let own = self.own().bits();
        let closed = self.memory.global_control.load(Relaxed);
        match self.unit().global().filter(|_| closed & own != own) {
            Some(global) => self.change_global(global, (0, own)),
            None => Ok(()),
        }
    }

    /// Prepares a session whose counters were saved for starting others: no counter parked, the gate open.
    pub(crate) fn unpark_all(&self) -> Result<(), CounterError> {
        // Only rows' counters are saved: for a source without rows, this is not linked.
        let parked = if self.source.table_id() == 0 { CounterSet::NONE } else { self.own() };
        for (counter, slot) in self.slots_of(parked) {
            if let SlotState::Parked { .. } = slot.load() {
                let registers = self.registers(counter);
                self.set_control(&registers, 0).map_err(CounterError::Access)?;
                slot.store(SlotState::Free);
            }
        }
        self.open_gate()
    }
}
