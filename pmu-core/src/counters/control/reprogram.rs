//! Counters whose registers lost their contents: suspend, hibernation, a processor that was offline.

use core::sync::atomic::Ordering::Relaxed;

use crate::access::backend::RegisterAccess;
use crate::counters::control::handle::{CounterSession, marked_faulted};
use crate::counters::error::CounterError;
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::facility::Facility;
use crate::counters::interrupt::sample::Sample;
use crate::counters::names::CounterSet;
use crate::counters::registers::counter::Counter;
use crate::counters::shared::entry::EventEntry;
use crate::counters::shared::period::Waiting;
use crate::counters::shared::slot::{CounterSlot, SlotState};
use crate::platform::Hardware;
use crate::profile::event_source::EventSource;

impl<S: EventSource, H: Hardware> CounterSession<'_, S, H> {
    /// Programs this processor's counters again after their registers lost their contents, for example in a suspend, in
    /// hibernation, or while the processor was offline. Call this on each processor before the processor's next
    /// performance interrupt can come.
    ///
    /// Returns the counters whose events begin a new period, because the rest of the old period is lost. The totals of
    /// these events lack the counts since the counters' last interrupts. To keep these counts, call
    /// [`suspend`](Self::suspend) before the registers lose their contents, and later [`resume`](Self::resume) instead
    /// of this method.
    ///
    /// A counter whose registers kept their contents continues. If an overflow of this counter is pending, the call
    /// reports the overflow to `overflowed`, because the interrupt may be lost. The overflow's interrupted address is
    /// unknown. A sampler should therefore ignore the overflow. A waiting sample of a
    /// [precise](crate::Event::precise) event has its [instruction](Sample::instruction).
    ///
    /// The call does not start events that were not running, or counters that were [saved](Self::save). Events can use
    /// faulted counters again, but the events that were on these counters do not run. A
    /// [rotating](crate::Event::rotating) event waits for its turn. A non-rotating event is enabled again by
    /// [`restart_faulted`](Self::restart_faulted).
    ///
    /// ```
    /// # use pmu_core::{CounterSession, CounterSet, EventSource, Hardware};
    /// # use pmu_core::error::CounterError;
    /// /// Resumes from suspend on one processor. Returns the counters whose sampling began anew, for the log.
    /// fn resume<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    /// ) -> Result<CounterSet, CounterError> {
    ///     counters.reprogram(|_sample| { /* without an instruction, its interrupted address is not known */ })
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`StateUnknown`](CounterError::StateUnknown): the error names the first register that failed. All other
    ///   registers were programmed. If an event's counter cannot be programmed, or its [extra
    ///   register](crate::Event::with_extra) cannot be written, neither the event nor its group runs.
    /// - [`NotAvailable`](CounterError::NotAvailable): the session's counters are [lent](Self::lend).
    ///
    /// # Limitations
    /// Zhaoxin's ZX-C takes an acknowledgement only while the global control enables a counter. For leftover overflows,
    /// this call acknowledges without enabling one.
    pub fn reprogram(
        &mut self,
        overflowed: impl FnMut(Sample<'_, S::Facility>),
    ) -> Result<CounterSet, CounterError> {
        let own = self.own();
        if own.is_empty() {
            return if self.memory.is_lent() {
                Err(CounterError::NotAvailable(own))
            } else {
                Ok(own)
            };
        }
        self.program_again(own, false, overflowed)
    }

    /// Programs these counters again: those whose registers lost their contents, or all.
    pub(crate) fn program_again(
        &mut self,
        own: CounterSet,
        all: bool,
        mut overflowed: impl FnMut(Sample<'_, S::Facility>),
    ) -> Result<CounterSet, CounterError> {
        // Until they are programmed, the interrupt path is to leave the counters alone.
        self.memory.unpublish();
        // Records are neither disabled nor read while their counters count.
        let precise = self.precise_of(own);
        let mut outcome = self.pause(precise).map_err(CounterError::faulted);
        if S::Facility::UNITS {
            // A unit whose entry of the local vector table cannot be unmasked does not hold its control.
            let units = self.source.facility().unmask_units(&self.hardware);
            outcome = outcome.and(units.map(drop).map_err(CounterError::StateUnknown));
        }
        outcome = outcome.and(self.restore_fixed_control(own));
        let changed = self.count_waiting(own);
        let (lost, parked, stopped) = self.stop_lost(own, if all { own } else { changed });
        outcome = outcome.and(stopped);
        outcome = outcome.and(self.clear_stale(own, lost));
        outcome = outcome.and(self.restore_extra(own));
        outcome = outcome.and(self.program(lost));
        self.source.facility().lose();
        outcome = outcome.and(self.settle_facilities_of(own));
        outcome = outcome.and(self.enable_counters(own.without(parked | precise)));
        // Before the interrupt is unmasked, so that an interrupt from then on is served.
        self.memory.publish(own);
        let anew = lost.retain(|counter| self.is_running(counter));
        self.hardware.unmask_performance_interrupt();
        // The interrupts that came meanwhile were not served.
        let served = self.serve_samples(&mut overflowed);
        match served {
            Ok(serviced) => self.memory.expect_spurious(serviced.overflows),
            Err(error) => outcome = outcome.and(Err(CounterError::StateUnknown(error.fault))),
        }
        // Not earlier: the next record would be written over the first of those that were just reported.
        outcome = outcome.and(self.unpause(precise));
        self.settle_software();
        outcome.map(|()| anew)
    }

    /// Adds what was counted up to records that wait: their counters may have lost their values, and begin new periods.
    /// The records are reported later. Returns the counters that are to be loaded anew.
    fn count_waiting(&self, own: CounterSet) -> CounterSet {
        let mut changed = CounterSet::NONE;
        if !S::Facility::RECORDS {
            return changed;
        }
        for (counter, slot) in self.slots_of(own) {
            let Some(event) = slot.running() else { continue };
            if let Some(entry) = self.table().entry(event).filter(|entry| entry.is_precise())
                // Records that cannot be found are lost.
                && let Ok(waiting) = self.leave_facilities(counter, event)
            {
                entry.accumulate_records(waiting, &self.registers(counter));
                if waiting != Waiting::NONE && entry.recorded(waiting.reloaded) {
                    // The next part of the period, or a period of another length, begins.
                    entry.period.end_chunk();
                    changed = changed | counter.only();
                }
            }
        }
        changed
    }

    /// Restores the other owners' bits of the fixed counters' control register, and clears the session's bits that
    /// lost their value.
    fn restore_fixed_control(&self, own: CounterSet) -> Result<(), CounterError> {
        if self.fixed_of(own).is_empty() {
            return Ok(());
        }
        let register = self.unit().fixed_control();
        let found = self.read_retrying(register).map_err(CounterError::StateUnknown)?;
        let written = self.memory.fixed_control.load(Relaxed);
        if found == written {
            return Ok(());
        }
        // Each counter's own bits are checked, and written, below.
        let mask = self.fixed_control_of(own);
        let value = written & !mask | found & mask;
        self.memory.fixed_control.store(value, Relaxed);
        self.write_retrying(register, value).map_err(CounterError::StateUnknown)
    }

    /// Stops the counters whose control registers lost their value, and those of `anyway`, and returns them, and the
    /// saved ones among the others. So nothing that firmware left in these registers counts.
    fn stop_lost(
        &self,
        own: CounterSet,
        anyway: CounterSet,
    ) -> (CounterSet, CounterSet, Result<(), CounterError>) {
        let (mut lost, mut parked, mut outcome) = (CounterSet::NONE, CounterSet::NONE, Ok(()));
        for (counter, slot) in self.slots_of(own) {
            let registers = self.registers(counter);
            if !anyway.contains(counter)
                && let SlotState::Running { event, .. } | SlotState::Parked { event } = slot.load()
                && let Some(bits) = self.running_bits(&registers, event)
                && self.holds(&registers, bits) == Ok(true)
                && (bits != 0 || self.keeps_value(&registers))
            {
                if let SlotState::Parked { .. } = slot.load() {
                    parked = parked | counter.only();
                }
                // The sample of a unit that holds its control is yet to interrupt.
                if !registers.is_unit()
                    && let Err(fault) = self.load_due(counter)
                {
                    self.mark_faulted(slot);
                    outcome = outcome.and(Err(CounterError::StateUnknown(fault)));
                }
                continue;
            }
            lost = lost | counter.only();
            if let Err(fault) = self.set_control(&registers, 0) {
                self.mark_faulted(slot);
                outcome = outcome.and(Err(CounterError::StateUnknown(fault)));
            } else if !matches!(slot.load(), SlotState::Running { .. }) {
                slot.store(SlotState::Free);
            }
        }
        (lost, parked, outcome)
    }

    /// Returns whether a counter whose control is clear kept its registers: a counter that lost them holds 0.
    fn keeps_value(&self, registers: &Counter) -> bool {
        self.read_value(registers).is_ok_and(|value| !registers.has_overflowed(value))
    }

    /// Disables precise sampling, and acknowledges leftover overflows, except of counters that kept their registers.
    fn clear_stale(&self, own: CounterSet, lost: CounterSet) -> Result<(), CounterError> {
        // The source's unit may describe another type of core. `take` noted what this processor declares.
        let declared = self.memory.precise.load(Relaxed);
        if let Some(precise) = self.unit().precise().filter(|_| declared) {
            for (_, slot) in self.slots_of(precise.disable(&self.hardware, own)) {
                self.mark_faulted(slot);
            }
        }
        let Some(global) = self.unit().global() else { return Ok(()) };
        let control = self.memory.global_control.load(Relaxed);
        let left = lost.bits() | self.unowned(own, control);
        self.acknowledge(global, left).map(|_| ()).map_err(CounterError::StateUnknown)
    }

    /// Writes the extra registers again. If one does not answer, the events that use it do not run.
    fn restore_extra(&self, own: CounterSet) -> Result<(), CounterError> {
        let extra = &self.table().extra;
        extra.write_again(&self.hardware).map_err(|fault| {
            for (counter, slot) in self.slots_of(own) {
                if let SlotState::Running { event, .. } = slot.load()
                    && let Some(register) = self.table().entry(event).and_then(EventEntry::register)
                    && !extra.is_known(register)
                {
                    let stopped = self.set_control(&self.registers(counter), 0);
                    self.mark_faulted(slot);
                    if stopped.is_ok() {
                        slot.store(SlotState::Free);
                    }
                }
            }
            CounterError::StateUnknown(fault)
        })
    }

    /// Marks a counter and those of the rest of its event's group as faulted.
    fn mark_faulted(&self, slot: &CounterSlot) {
        if let SlotState::Running { event, .. } = slot.replace(SlotState::Faulted) {
            self.memory.mark_faulted(Some(event), self.table());
        }
    }

    /// Loads these counters, and programs their controls again.
    fn program(&self, lost: CounterSet) -> Result<(), CounterError> {
        let mut outcome = Ok(());
        for (counter, slot) in self.slots_of(lost) {
            let SlotState::Running { event, .. } = slot.load() else { continue };
            let registers = self.registers(counter);
            let Some(bits) = self.running_bits(&registers, event) else { continue };
            let Some((value, period)) = self.first_load(&registers, event) else { continue };
            slot.store(SlotState::Running { event, period });
            let programmed = self
                .load(&registers, value)
                .and_then(|()| {
                    let begun = self.begin_loaded(counter, &registers, event);
                    let unknown = marked_faulted(registers.value_register());
                    begun.map_err(|error| error.fault().unwrap_or(unknown))
                })
                .and_then(|()| self.set_control(&registers, bits));
            if let Err(fault) = programmed {
                self.mark_faulted(slot);
                outcome = outcome.and(Err(CounterError::StateUnknown(fault)));
            }
        }
        outcome
    }

    /// Restores freezing and, last, the control register: with the bits of these counters, because a failed restart may
    /// have cleared them.
    fn enable_counters(&self, counters: CounterSet) -> Result<(), CounterError> {
        let Some(global) = self.unit().global() else { return Ok(()) };
        let mut outcome = Ok(());
        if let Some(freeze) = global.freeze.filter(|_| self.memory.freezes.load(Relaxed)) {
            outcome = self.hardware.update_retrying(freeze.set_to(freeze.bits())).map(|_| ());
        }
        let resumed = self.global_bits(self.outside_guests(counters));
        let control = self.memory.global_control.fetch_or(resumed, Relaxed) | resumed;
        let enabled = self.write_retrying(global.control, control);
        if enabled.is_err() {
            // The register's value is unknown: the next start is to write it.
            self.memory.global_control.fetch_and(!counters.bits(), Relaxed);
            self.memory.mark_faulted(None, self.table());
        }
        outcome.and(enabled).map_err(CounterError::StateUnknown)
    }

    fn is_running(&self, counter: crate::registers::CounterId) -> bool {
        let slot = self.slot(counter);
        slot.is_some_and(|slot| matches!(slot.load(), SlotState::Running { .. }))
    }
}
