//! Restoring lent counters.

use core::sync::atomic::Ordering::Relaxed;

use crate::counters::control::handle::CounterSession;
use crate::counters::control::window::error::Failures;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::hooks::facility::Facility;
use crate::counters::names::counter_id::{CounterId, CounterSet, MAX_COUNTERS};
use crate::counters::registers::counter::CounterControl;
use crate::counters::shared::entry::EventEntry;
use crate::counters::shared::slot::SlotState;
use crate::msr::backend::MsrBackend;
use crate::msr::fault::MsrFault;
use crate::platform::Platform;

impl<'a, S: EventSource, M: MsrBackend, P: Platform> CounterSession<'a, S, M, P> {
    /// Returns those of these counters that run.
    pub(crate) fn running(&self, own: CounterSet) -> CounterSet {
        let running =
            self.slots_of(own).filter(|(_, slot)| matches!(slot.load(), SlotState::Running { .. }));
        running.map(|(counter, _)| counter).collect()
    }

    /// Disarms and clears lent counters on which a borrower left something. Acknowledges their overflows, and these
    /// other bits of the `status`.
    pub(crate) fn disarm(&self, lent: CounterSet, status: u64, failures: &mut Failures) {
        let (unit, mut stopped) = (self.unit(), Ok(()));
        if let Some(global) = unit.global() {
            let control = self.memory.global_control.load(Relaxed);
            stopped = self.wrmsr_retrying(global.control, control);
        }
        let stopped = stopped.and_then(|()| self.disarm_fixed(lent & unit.counters()));
        let note = |failures: &mut Failures, counter: CounterId, fault| {
            match self.slot(counter).filter(|_| self.declared.contains(counter)) {
                Some(slot) => failures.note(counter, slot, fault),
                // It was added to the session's.
                None => failures.add(counter, fault),
            }
        };
        for counter in lent.iter() {
            let Some(registers) = unit.counter(counter) else { continue };
            let disarmed = match registers.control {
                CounterControl::Select(select) => {
                    stopped.and_then(|()| self.wrmsr_retrying(select, 0))
                }
                CounterControl::Shared { .. } => stopped,
            };
            let cleared = disarmed.and_then(|()| self.wrmsr_retrying(registers.value, 0));
            if let Err(fault) = cleared {
                note(failures, counter, fault);
            }
        }
        let left = lent.bits() | status;
        let acknowledged =
            unit.global().map_or(Ok(0), |global| self.acknowledge(global, left | global.frozen));
        if let Err(fault) = acknowledged {
            lent.iter().for_each(|counter| note(failures, counter, fault));
        }
    }

    /// Clears the bits of these fixed counters in their common control register. The session's bits are restored
    /// later.
    pub(crate) fn disarm_fixed(&self, lent: CounterSet) -> Result<(), MsrFault> {
        let fixed = lent & CounterSet::FIXED;
        if fixed.is_empty() {
            return Ok(());
        }
        let register = self.unit().fixed_control();
        let known = !self.fixed_of(self.declared).is_empty();
        let mut control = match known {
            true => self.memory.fixed_control.load(Relaxed),
            false => self.rdmsr_retrying(register)?,
        };
        for counter in fixed.iter() {
            control &= !self.unit().registers(counter).control.mask();
        }
        self.wrmsr_retrying(register, control)
    }

    /// Loads the running counters with these values.
    pub(crate) fn restore_values(&self, own: CounterSet, values: &Values, failures: &mut Failures) {
        let full_width = self.memory.full_width.load(Relaxed);
        for (value, (counter, slot)) in values.iter().zip(self.slots_of(own)) {
            let SlotState::Running { event, .. } = slot.load() else { continue };
            let (registers, mut value) = (self.registers(counter), *value);
            if let Some(entry) = self.due_on(counter, value) {
                entry.accumulate_precise(value, registers.mask());
                value = registers.preload(1);
                entry.loaded(value);
            }
            if registers.register_for(value) != registers.value
                && !full_width
                && let Some(entry) = self.table().entry(event)
            {
                // The event is counted only, and no write reaches the value.
                entry.accumulate(value, registers.mask());
                value = registers.rearmed_value(value, full_width);
                entry.loaded(value);
            }
            if let Err(fault) = self.load(&registers, value) {
                failures.note(counter, slot, fault);
            }
        }
    }

    /// Returns the precise event of a counter that has this value, if its record is yet to be written. Another owner of
    /// the counters discards that record: the event's next occurrence is to be recorded instead.
    #[inline(always)]
    pub(crate) fn due_on(&self, counter: CounterId, value: u64) -> Option<&EventEntry> {
        let is_due = S::Facility::RECORDS && self.registers(counter).has_overflowed(value);
        let event = self.slot(counter).filter(|_| is_due)?.running()?;
        self.table().entry(event).filter(|entry| entry.is_precise())
    }

    /// Loads a counter of a precise event whose record is [due](Self::due_on), so that the next occurrence is recorded.
    #[inline(always)]
    pub(crate) fn load_due(&self, counter: CounterId) -> Result<(), MsrFault> {
        if !self.runs_precise(counter.only()) {
            return Ok(());
        }
        let registers = self.registers(counter);
        let value = self.read(&registers)?;
        let Some(entry) = self.due_on(counter, value) else { return Ok(()) };
        entry.accumulate_precise(value, registers.mask());
        let value = registers.preload(1);
        entry.loaded(value);
        self.load(&registers, value)
    }

    /// Programs the controls of the counters that run, and of those that are parked.
    pub(crate) fn restore_controls(&self, own: CounterSet, failures: &mut Failures) {
        let fixed = self.fixed_of(own);
        if !fixed.is_empty() {
            let (register, value) = (self.unit().fixed_control(), &self.memory.fixed_control);
            if let Err(fault) = self.wrmsr_retrying(register, value.load(Relaxed)) {
                let running = self.slots_of(self.running(fixed));
                running.for_each(|(counter, slot)| failures.note(counter, slot, fault));
            }
        }
        for (counter, slot) in self.slots_of(own.without(fixed)) {
            let (SlotState::Running { event, .. } | SlotState::Parked { event }) = slot.load()
            else {
                continue;
            };
            let registers = self.registers(counter);
            let bits = self.running_bits(&registers, event).unwrap_or(0);
            if let Err(fault) = self.set_control(&registers, bits) {
                failures.note(counter, slot, fault);
            }
        }
    }
}

/// The values of a session's counters, in the order of their bits.
pub(crate) type Values = [u64; MAX_COUNTERS];
