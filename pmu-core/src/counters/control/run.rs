//! One counter: programmed for an event, running, released.

use crate::access::backend::AccessFault;
use crate::counters::control::assignment::Change;
use crate::counters::control::handle::{CounterSession, marked_faulted};
use crate::counters::error::CounterError;
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::facility::Facility;
use crate::counters::names::{CounterId, CounterSet, EventId};
use crate::counters::registers::counter::Counter;
use crate::counters::shared::entry::EventEntry;
use crate::counters::shared::period::{Waiting, since_record};
use crate::counters::shared::slot::{CounterSlot, SlotState};
use crate::platform::Hardware;
use crate::profile::event_source::{EventSource, opens_events};

impl<'a, S: EventSource, H: Hardware> CounterSession<'a, S, H> {
    /// Returns a free counter of `capable`. Prefers a fixed counter, because fewer events can use it.
    pub(crate) fn free_counter(&self, capable: CounterSet) -> Result<CounterId, CounterError> {
        self.check_unmasked()?;
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

    /// Reads the total of an event that is on a counter, and the counter's value then.
    pub(crate) fn read_total(
        &self,
        counter: CounterId,
        event: EventId,
        entry: &EventEntry,
    ) -> Result<(u64, u64), CounterError> {
        if self.has_parts(event) {
            return self.harvest(counter, event).map(|()| (entry.count().value, 0));
        }
        let registers = self.registers(counter);
        // An interrupt in between adds to the total, and may load the counter again.
        loop {
            let (mut accumulated, mut counted_to) = entry.accumulated();
            let waiting = self.waiting(counter, entry).map_err(CounterError::Unchanged)?;
            let value = self.read_value(&registers).map_err(CounterError::Unchanged)?;
            let again =
                self.wrapped_again(counter, entry, value).map_err(CounterError::Unchanged)?;
            let still = self.waiting(counter, entry).map_err(CounterError::Unchanged)?;
            if entry.accumulated() != (accumulated, counted_to) || still != waiting {
                continue;
            }
            (accumulated, counted_to) = waiting.added_to((accumulated, counted_to), &registers);
            if registers.has_overflowed(value) {
                self.check_registers(&registers, event)?;
            }
            if again {
                accumulated = accumulated.wrapping_add(registers.mask()).wrapping_add(1);
            }
            let since = match S::Facility::RECORDS && entry.is_precise() {
                true => since_record(value, counted_to, registers.mask()),
                false => value.wrapping_sub(counted_to) & registers.mask(),
            };
            return Ok((accumulated.wrapping_add(since), value));
        }
    }

    /// Returns the records that wait of a counter's event.
    #[inline(always)]
    fn waiting(&self, counter: CounterId, entry: &EventEntry) -> Result<Waiting, AccessFault> {
        if !S::Facility::RECORDS || !entry.is_precise() {
            return Ok(Waiting::NONE);
        }
        self.source.facility().waiting(&self.hardware, counter)
    }

    /// Returns whether a counter that has wrapped since it was loaded, and now reads as `value`, has wrapped once more
    /// without an interrupt so far. Reads the status if the value does not decide.
    pub(crate) fn wrapped_again(
        &self,
        counter: CounterId,
        entry: &EventEntry,
        value: u64,
    ) -> Result<bool, AccessFault> {
        let near = entry.has_wrapped() && self.registers(counter).has_overflowed(value);
        match self.unit().global() {
            Some(global) if near => {
                Ok(self.read_retrying(global.status)? & counter.only().bits() != 0)
            }
            _ => Ok(false),
        }
    }

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
                // `first_load` took the remainder out of the entry: the next start is to find it again.
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
        self.load(registers, value).map_err(CounterError::Unchanged)?;
        self.begin_loaded(counter, registers, event)?;
        // Before the control: once enabled, the counter may interrupt, and the interrupt path finds the event by the
        // slot.
        slot.store(SlotState::Running { event, period });
        let fault = match self.set_control(registers, bits) {
            // An interrupt that met a fault may have marked the counter as faulted meanwhile. If it could not restart
            // the counters, it closed the gate, which was open.
            Ok(())
                if slot.load() != SlotState::Faulted
                    && !self.memory.serving.is_masked()
                    && (is_paused || !self.is_gated(counter)) =>
            {
                return Ok(());
            }
            Ok(()) => marked_faulted(registers.control.register()),
            // The write that failed may have reached the register, so the slot is not free before the counter is
            // stopped.
            Err(fault) => match self.set_control(registers, 0) {
                Ok(()) => {
                    slot.store(SlotState::Free);
                    return Err(CounterError::Unchanged(fault));
                }
                Err(fault) => fault,
            },
        };
        slot.store(SlotState::Faulted);
        Err(CounterError::StateUnknown(fault))
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
        meanwhile: impl FnOnce() -> Result<T, AccessFault>,
    ) -> Result<(u64, u64, T), CounterError> {
        let stop_and_read = || {
            if next == SlotState::Free {
                self.set_control(registers, 0)?;
            }
            let found = meanwhile()?;
            // Before the slot changes: from then on an interrupt of this counter finds no event, and would have no
            // owner.
            self.memory.expect_spurious(1);
            // Until here, an interrupt may have loaded the counter for another period.
            let SlotState::Running { period, .. } = slot.replace(next) else {
                // An interrupt marked the counter as faulted meanwhile.
                return Err(marked_faulted(registers.value_register()));
            };
            Ok((period, self.read_value(registers)?, found))
        };
        stop_and_read().map_err(|fault| {
            slot.store(SlotState::Faulted);
            CounterError::StateUnknown(fault)
        })
    }

    /// Stops a counter and frees its slot. If that fails, it is presumed running.
    #[inline(never)] // 64 bytes of the glue.
    pub(crate) fn stop_and_free(&self, counter: CounterId) -> Result<(), AccessFault> {
        let Some((slot, registers)) = self.place(counter) else { return Ok(()) };
        let stopped = self.set_control(&registers, 0).and_then(|()| match self.unit().global() {
            Some(global) => self.acknowledge(global, counter.only().bits()).map(|_| ()),
            None => {
                let ran = matches!(slot.load(), SlotState::Running { .. });
                let value = self.read_value(&registers)?;
                // Without a status, a pending overflow cannot be acknowledged: its interrupt still comes.
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

    /// Reads the number of a source's events since its counter was last loaded (RDPMC).
    pub(crate) fn read_loaded(&self, event: EventId) -> Result<u64, CounterError> {
        let not_started = CounterError::NotEnabled(event);
        let (counter, period) = self.find(event).ok_or(not_started)?;
        let registers = self.registers(counter);
        let read = || self.read_value(&registers).map_err(CounterError::Unchanged);
        let (mut value, (_, now)) = (read()?, self.find(event).ok_or(not_started)?);
        if now != period {
            // An interrupt came in between, and loaded the counter for another period.
            value = read()?;
        }
        if registers.has_overflowed(value) {
            self.check_registers(&registers, event)?;
        }
        Ok(value.wrapping_sub(registers.preload(now)) & registers.mask())
    }

    /// Checks a counter whose value shows an overflow: its interrupt is pending, or its registers lost their
    /// contents, which is an error.
    pub(crate) fn check_registers(
        &self,
        registers: &Counter,
        event: EventId,
    ) -> Result<(), CounterError> {
        let bits = self.running_bits(registers, event).unwrap_or(0);
        match self.holds(registers, bits).map_err(CounterError::Unchanged)? {
            true => Ok(()),
            false => Err(CounterError::RegistersLost),
        }
    }

    /// Starts a row's event on a free counter, which interrupts once per period.
    pub(crate) fn start_row(&mut self, row: usize) -> Result<(), CounterError> {
        let event = EventId::of_row(row);
        if self.find(event).is_some() {
            return Err(CounterError::IsEnabled(event));
        }
        if !opens_events(&self.source) && self.source.core_thread().is_none() {
            // Row events can run on any counter that another row event can, so moving them makes no room.
            let counter = self.free_counter(CounterSet::GENERAL)?;
            return self.run(counter, event);
        }
        self.assign(event, Some(0), Change::Start).map_err(|unplaced| unplaced.reason)
    }

    /// Stops the counter of a row's event. An overflow that is pending is dropped.
    pub(crate) fn stop_row(&mut self, row: usize) -> Result<(), CounterError> {
        let event = EventId::of_row(row);
        let (counter, _) = self.find(event).ok_or(CounterError::NotEnabled(event))?;
        self.stop_and_free(counter).map_err(CounterError::StateUnknown)
    }
}
