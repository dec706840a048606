//! One counter: programmed for an event, running, released.

use crate::counters::control::handle::{CounterSession, marked_faulted};
use crate::counters::error::CounterError;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::names::counter_id::{CounterId, CounterSet};
use crate::counters::names::event_id::EventId;
use crate::counters::registers::counter::Counter;
use crate::counters::shared::slot::{CounterSlot, SlotState};
use crate::msr::backend::MsrBackend;
use crate::msr::fault::MsrFault;
use crate::platform::Platform;

impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    /// Returns a free counter of `capable`. Prefers a fixed counter, because fewer events can use it.
    pub(crate) fn free_counter(&self, capable: CounterSet) -> Result<CounterId, CounterError> {
        self.check_unmuted()?;
        // No event of guests is on a counter.
        self.unpark_all(self.own())?;
        self.first_free(capable)
    }

    /// Returns a free counter of `capable`, while no counter is parked.
    pub(crate) fn first_free(&self, capable: CounterSet) -> Result<CounterId, CounterError> {
        let own = self.own() & capable;
        let mut preferred =
            (own & CounterSet::FIXED).iter().chain((own & CounterSet::GENERAL).iter());
        let is_free = |counter: &CounterId| {
            self.slot(*counter).is_some_and(|slot| slot.load() == SlotState::Free)
        };
        preferred.find(is_free).ok_or(CounterError::NoFreeCounter)
    }
}

impl<'a, S: EventSource, M: MsrBackend, P: Platform> CounterSession<'a, S, M, P> {
    /// Loads a free counter for an event, and starts it.
    pub(crate) fn run(&self, counter: CounterId, event: EventId) -> Result<(), CounterError> {
        self.run_for(counter, event, None, false)
    }

    /// Loads a free counter for an event, and enables it: for the remainder of a period (the period, and what is left
    /// of it), or from its beginning. `is_paused`: the global control register stops the counter until the caller
    /// resumes it.
    pub(crate) fn run_for(
        &self,
        counter: CounterId,
        event: EventId,
        rest: Option<(u32, u32)>,
        is_paused: bool,
    ) -> Result<(), CounterError> {
        let slot = self.slot(counter).ok_or(CounterError::NoFreeCounter)?;
        let registers = self.registers(counter);
        let load = match rest {
            Some((period, rest)) => Some((registers.preload(rest.into()), period.into())),
            None => self.first_load(&registers, event),
        };
        let (value, period) = load.ok_or(CounterError::NoSuchEvent(event))?;
        self.run_from((counter, slot, &registers), event, (value, period), is_paused).inspect_err(
            |_| {
                if let Some(entry) = self.table().entry(event) {
                    entry.period.set_resume(period);
                }
            },
        )
    }

    /// Loads a free counter with a value, and starts it.
    fn run_from(
        &self,
        (counter, slot, registers): (CounterId, &CounterSlot, &Counter),
        event: EventId,
        (value, period): (u64, u64),
        is_paused: bool,
    ) -> Result<(), CounterError> {
        let bits = self.running_bits(registers, event).ok_or(CounterError::NoSuchEvent(event))?;
        self.load(registers, value).map_err(CounterError::Access)?;
        self.begin_loaded(counter, registers, event)?;
        slot.store(SlotState::Running { event, period });
        let fault = match self.set_control(registers, bits) {
            // An interrupt that met a fault may have marked the counter as faulted meanwhile. If it could not restart
            // the counters, it closed the gate, which was open.
            Ok(())
                if slot.load() != SlotState::Faulted
                    && !self.memory.is_muted()
                    && (is_paused || !self.is_gated(counter)) =>
            {
                return Ok(());
            }
            Ok(()) => marked_faulted(registers.control.register()),
            Err(fault) => match self.set_control(registers, 0) {
                Ok(()) => {
                    slot.store(SlotState::Free);
                    return Err(CounterError::Access(fault));
                }
                Err(fault) => fault,
            },
        };
        slot.store(SlotState::Faulted);
        Err(CounterError::Faulted(fault))
    }

    /// Detaches a counter from its event, and reads it. Returns the period for which it was loaded, its value, and
    /// what `meanwhile` reads once it has stopped. `next` is the slot's new state: [`Free`](SlotState::Free), or
    /// [`Parked`](SlotState::Parked) where the closed gate has stopped the counter.
    ///
    /// From here on the interrupt path leaves the counter alone, and the caller reports its overflow. Its interrupt is
    /// expected as a spurious one; if the counter had not overflowed, the caller cancels that.
    pub(crate) fn stop_and_read<T>(
        &self,
        slot: &CounterSlot,
        registers: &Counter,
        next: SlotState,
        meanwhile: impl FnOnce() -> Result<T, MsrFault>,
    ) -> Result<(u64, u64, T), CounterError> {
        let stop_and_read = || {
            if next == SlotState::Free {
                self.set_control(registers, 0)?;
            }
            let found = meanwhile()?;
            self.memory.expect_spurious(1);
            // Until here, an interrupt may have loaded the counter for another period.
            let SlotState::Running { period, .. } = slot.replace(next) else {
                // An interrupt marked the counter as faulted meanwhile.
                return Err(marked_faulted(registers.value_register()));
            };
            Ok((period, self.read(registers)?, found))
        };
        stop_and_read().map_err(|fault| {
            slot.store(SlotState::Faulted);
            CounterError::Faulted(fault)
        })
    }

    /// Stops a counter and frees its slot. If that fails, it is presumed running.
    pub(crate) fn release(&self, counter: CounterId) -> Result<(), MsrFault> {
        let Some((slot, registers)) = self.place(counter) else { return Ok(()) };
        let stopped = self.set_control(&registers, 0).and_then(|()| match self.unit().global() {
            Some(global) => self.acknowledge(global, counter.only().bits()).map(|_| ()),
            None => {
                let ran = matches!(slot.load(), SlotState::Running { .. });
                let value = self.read(&registers)?;
                if ran && registers.has_overflowed(value) {
                    self.memory.expect_spurious(1);
                }
                Ok(())
            }
        });
        slot.store(if stopped.is_ok() { SlotState::Free } else { SlotState::Faulted });
        self.settle_core();
        stopped
    }
}
