//! A processor's counters taken, verified, and given back.

use core::mem;
use core::sync::atomic::Ordering::Relaxed;

use crate::access::backend::AccessFault;
use crate::counters::control::handle::{CounterSession, too_little_memory};
use crate::counters::error::CounterError;
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::facility::Facility;
use crate::counters::hooks::running::Moment;
use crate::counters::names::{CounterId, CounterSet};
use crate::counters::registers::hybrid::HybridDelta;
use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::memory::CounterMemory;
use crate::counters::shared::slot::{CounterSlot, SlotState};
use crate::platform::Hardware;
use crate::profile::event_source::{EventSource, divided_by, opens_events};

impl<'a, S: EventSource, H: Hardware> CounterSession<'a, S, H> {
    /// Takes ownership of counters, and returns a session for these counters. The call takes each counter of `only`
    /// that exists both in `processor` and in the [`CounterUnit`] of `source`. `processor` describes the processor that
    /// executes the call. The session keeps `source`, and does not access counters outside `only`.
    ///
    /// The call stops each counter, verifies that RDMSR and RDPMC read a written value back, and leaves the counter at
    /// 0. The call then prepares the processor:
    /// - The call disables precise sampling that firmware left enabled. The call does not clear the
    ///   [`UnusedRegisters`](crate::registers::UnusedRegisters) of Intel's architectural version 6.
    /// - The call enables the counters in the global control register, if there is one.
    /// - The call acknowledges overflow bits that were left set, and unmasks the interrupt.
    ///
    /// If a counter fails the verification, or has no slot in the memory, the session does not take the counter, and
    /// does not access it again. If the source's table has no room for opened events, the call takes no fixed counter,
    /// because only opened events use fixed counters. [`counters`](Self::counters) returns the counters that were
    /// taken, and the counters that were not.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, CounterSet, CounterUnit, Events, Hardware};
    /// # use pmu_core::error::CounterError;
    /// # use pmu_core::memory::{CounterMemory, CounterSlot};
    /// # use pmu_core::registers::MAX_COUNTERS;
    /// static COUNTERS: CounterMemory<[CounterSlot; MAX_COUNTERS]> = CounterMemory::new(); // one per processor
    ///
    /// /// Takes the counters that another owner does not have.
    /// fn take<'a, H: Hardware>(
    ///     events: Events<'a>,
    ///     this_processor: &CounterUnit,
    ///     others: CounterSet,
    ///     hardware: H,
    /// ) -> Result<CounterSession<'a, Events<'a>, H>, CounterError> {
    ///     let own = CounterSet::ALL.without(others);
    ///     CounterSession::take(events, this_processor, own, hardware, &COUNTERS)
    /// }
    /// ```
    ///
    /// # Context
    /// Task. The session stays on the processor that executes the call. An interrupt may come at any time.
    ///
    /// # Errors
    /// - [`MemoryInUse`](CounterError::MemoryInUse): another processor's session, or a session dropped without
    ///   [`shut_down`](Self::shut_down), uses the memory or the source's table of events.
    /// - [`NoCounters`](CounterError::NoCounters): the source's unit has no counters, for the reason in the error.
    /// - [`OtherProcessor`](CounterError::OtherProcessor): the processor has none of the requested counters.
    /// - [`InsufficientMemory`](CounterError::InsufficientMemory): the memory has no slot for any requested counter.
    /// - [`Unresponsive`](CounterError::Unresponsive): none of the requested counters could be verified.
    /// - [`Unchanged`](CounterError::Unchanged): the register is a global one.
    ///
    /// After an error, none of the requested counters runs. If an interrupt came during the call, the interrupt may be
    /// masked. If the interrupt belongs to another owner of counters, that owner must unmask the entry.
    ///
    /// # Limitations
    /// Auto counter reload and architectural PEBS that a predecessor left enabled (version 6) stay enabled: the kernel
    /// calls `pmu_intel::clear_stale` first. A status bit that belongs to no counter is left to its owner;
    /// [`acknowledge_others`](Self::acknowledge_others) clears bits that have none.
    pub fn take(
        source: S,
        processor: &CounterUnit,
        only: CounterSet,
        hardware: H,
        memory: &'a CounterMemory,
    ) -> Result<Self, CounterError> {
        let only = if !opens_events(&source) { only & CounterSet::GENERAL } else { only };
        let mut declared = source.unit().shared_with(processor) & only;
        if S::Facility::UNITS {
            declared = declared | source.facility().units() & only;
        }
        if S::Facility::DIVIDES && !(declared & CounterSet::FIXED).is_empty() {
            // The first processor's unit may lack it. Its registers are where those of the shared counters are.
            declared = declared | divided_by(&source) & processor.counters() & only;
        }
        let mut counters = Self::unopened(source, declared, hardware, memory);
        let candidates = counters.candidates();
        if declared.is_empty() {
            let absent = counters.unit().why_absent();
            return Err(absent.map_or(CounterError::OtherProcessor, CounterError::NoCounters));
        }
        if candidates.is_empty() {
            return Err(too_little_memory(
                counters.unit().slots_needed(declared),
                memory.counters(),
            ));
        }
        if !memory.take() {
            return Err(CounterError::MemoryInUse);
        }
        if !counters.source.opened().take() {
            memory.give_back();
            return Err(CounterError::MemoryInUse);
        }
        memory.precise.store(processor.precise().is_some(), Relaxed);
        let first_fixed = counters.unit().first_fixed_slot() as u8;
        memory.first_fixed.store(first_fixed, Relaxed);
        counters.hybrid = HybridDelta::between(counters.unit(), processor);
        // The facilities' registers have unknown values, of firmware or of a predecessor.
        counters.source.facility().lose();
        if let Err(error) = counters.take_counters(processor, candidates) {
            counters.source.opened().give_back();
            memory.give_back();
            return Err(error);
        }
        Ok(counters)
    }

    fn take_counters(
        &mut self,
        processor: &CounterUnit,
        candidates: CounterSet,
    ) -> Result<(), CounterError> {
        let memory = self.memory;
        // A session before may have left slots that faulted.
        for slot in memory.slots() {
            slot.store(SlotState::Free);
        }
        if opens_events(&self.source) && !self.fixed_of(self.declared).is_empty() {
            self.find_fixed_control()?;
        }
        // A source with rows has the documents' rule: all selects are cleared, also those without a slot.
        let rows = if self.source.table_id() == 0 { CounterSet::NONE } else { CounterSet::GENERAL };
        let units = self.units_of(candidates);
        let usable = self.take_units(units).map_err(CounterError::Unchanged)?;
        let (stopped, probed) = (self.declared & rows | candidates, candidates.without(units));
        let verified = match self.probe(processor, stopped.without(units), probed) {
            // The units alone are asked for.
            Err(CounterError::Unresponsive) if S::Facility::UNITS && probed.is_empty() => {
                CounterSet::NONE
            }
            verified => verified?,
        };
        memory.full_width.store(processor.has_full_width(&self.hardware), Relaxed);
        if let Some(global) = self.unit().global() {
            // Read, not assumed: the bits of other owners' counters stay as they are.
            let found = self.read_retrying(global.control);
            let found = found.map_err(CounterError::Unchanged)?;
            let left = verified.bits() | global.frozen | self.unowned(verified, found);
            let control = found | verified.bits();
            memory.global_control.store(control, Relaxed);
            // Before the acknowledgement, which ZX-C takes only while counters are enabled here. The counters are
            // stopped.
            let enabled = self.write_retrying(global.control, control);
            let cleared = enabled.and_then(|()| self.acknowledge(global, left));
            cleared.map_err(|fault| {
                // The first failure is the error. A second one changes nothing for the caller, who gets no session.
                let _ = self.write_retrying(global.control, found);
                CounterError::Unchanged(fault)
            })?;
            self.before = CounterSet::from_bits(found) & verified;
        } else {
            // Without a status, the predecessor's overflows are unknown.
            memory.expect_spurious(1);
        }
        memory.publish(verified | usable);
        // After the counters were published, so that an interrupt from here on is served.
        self.hardware.unmask_performance_interrupt();
        Ok(())
    }

    /// Stops the sampling units, and lets them interrupt. Returns those that can be used.
    fn take_units(&self, units: CounterSet) -> Result<CounterSet, AccessFault> {
        if !S::Facility::UNITS || units.is_empty() {
            return Ok(CounterSet::NONE);
        }
        let usable = self.source.facility().unmask_units(&self.hardware)? & units;
        let mut stopped = Ok(());
        for unit in usable.iter() {
            stopped = stopped.and(self.set_control(&self.registers(unit), 0));
        }
        stopped.map(|()| usable)
    }

    /// Clears the controls of the counters in `stopped`, and returns those candidates that answer and interrupt.
    fn probe(
        &self,
        processor: &CounterUnit,
        stopped: CounterSet,
        candidates: CounterSet,
    ) -> Result<CounterSet, CounterError> {
        let mut verified = self.probe_counters(stopped, candidates);
        if let Some(precise) = processor.precise() {
            verified = verified.without(precise.disable(&self.hardware, verified));
        }
        if verified.is_empty() { Err(CounterError::Unresponsive) } else { Ok(verified) }
    }

    /// Writes a different value to each counter, then reads all of them back both ways. This finds registers that
    /// ignore writes, and two addresses of one register. RDPMC comes second: an emulator without counters, to which
    /// RDPMC is an undefined opcode, is found out by RDMSR.
    #[inline(never)] // Inlined, it takes more text, and runs once per processor. 148 bytes of `pmu-small`.
    fn probe_counters(&self, stopped: CounterSet, candidates: CounterSet) -> CounterSet {
        // Below 2^31, so that a write that is extended by its sign reads back the same; another value for each counter,
        // so that two addresses of one register differ.
        let pattern = |counter: CounterId| 0x0135_7AC0 + u64::from(counter.bit());
        let write = |counter: CounterId, value: u64| {
            let register = self.registers(counter).value_register();
            self.write_retrying(register, value).is_ok()
        };
        let echoes = |counter: CounterId| {
            let registers = self.registers(counter);
            let echoed = Ok(pattern(counter));
            self.read_retrying(registers.value_register()) == echoed
                && self.read_value(&registers) == echoed
        };
        let stopped =
            stopped.retain(|counter| self.set_control(&self.registers(counter), 0).is_ok());
        let written = (stopped & candidates).retain(|counter| write(counter, pattern(counter)));
        let verified = written.retain(echoes);
        for counter in written.iter() {
            // A counter that does not answer keeps its value.
            let _ = write(counter, 0);
        }
        verified
    }

    /// Extends the session by counters that another owner gave up, and returns the counters that were added. Counters
    /// that the session already has are not changed. After the call, the other owner must not enable the added counters
    /// in the global control register.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, CounterUnit, EventSource, Hardware};
    /// # use pmu_core::error::CounterError;
    /// # use pmu_core::registers::CounterId;
    /// /// Tries to take a counter over from a watchdog that was stopped.
    /// fn take_over<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     this_processor: &CounterUnit,
    ///     watchdog: CounterId,
    /// ) -> Result<bool, CounterError> {
    ///     match counters.take_more(this_processor, watchdog.only()) {
    ///         Err(CounterError::Unresponsive) => Ok(false), // a hypervisor's or firmware's
    ///         taken => Ok(!taken?.is_empty()),
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`NotAvailable`](CounterError::NotAvailable): this processor lacks one of the counters, the memory has no
    ///   slot for one of the counters, or the session's counters are [lent](Self::lend).
    /// - [`Unresponsive`](CounterError::Unresponsive): none of the counters could be verified.
    /// - [`Unchanged`](CounterError::Unchanged): no counter was added.
    /// - [`StateUnknown`](CounterError::StateUnknown): the global control register failed. No counter was added. The
    ///   session's events may no longer run.
    ///
    /// # Limitations
    /// Zhaoxin's ZX-C takes an acknowledgement only while the global control enables a counter. While the counters are
    /// saved, this call acknowledges without enabling one.
    pub fn take_more(
        &mut self,
        processor: &CounterUnit,
        counters: CounterSet,
    ) -> Result<CounterSet, CounterError> {
        let more = counters.without(self.own());
        let lent = self.unit().addressable_with(self.memory.counters());
        let there = self.unit().shared_with(processor) & lent;
        let there = if !opens_events(&self.source) { there & CounterSet::GENERAL } else { there };
        if !self.is_open() || self.own().is_empty() || !more.without(there).is_empty() {
            return Err(CounterError::NotAvailable(counters));
        }
        if more.is_empty() {
            return Ok(more);
        }
        if !(more & CounterSet::FIXED).is_empty() {
            self.find_fixed_control()?;
        }
        let verified = self.probe(processor, more, more)?;
        for (_, slot) in self.slots_of(verified) {
            slot.store(SlotState::Free);
        }
        if let Some(global) = self.unit().global() {
            self.acknowledge(global, verified.bits()).map_err(CounterError::Unchanged)?;
            self.change_global(global, (0, verified.bits()))?;
        }
        self.declared = self.declared | more;
        // Last: from here on interrupts serve these counters, whose slots are free and whose status is clear.
        self.memory.set_verified(self.memory.verified(CounterSet::ALL) | verified);
        Ok(verified)
    }

    /// Gives some of the session's counters to another owner. The call stops the counters and clears their bits in the
    /// global control register. The session does not access these counters again.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventId, EventSource, Hardware};
    /// # use pmu_core::error::EventsError;
    /// # use pmu_core::registers::{CounterId, MAX_FIXED};
    /// /// Gives fixed counter 1 to a watchdog. An event that runs on this counter is restarted on another one.
    /// fn give_to_watchdog<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     events: &[EventId],
    ///     now: u64,
    /// ) -> Result<(), EventsError> {
    ///     let wanted = CounterId::fixed(1).expect("below MAX_FIXED");
    ///     let on_it = |event: &&EventId| counters.counter_of(**event) == Some(wanted);
    ///     let moved = events.iter().find(on_it).copied();
    ///     moved.map_or(Ok(()), |event| counters.disable(event, now))?;
    ///     counters.give_back(wanted.only())?;
    ///     moved.map_or(Ok(()), |event| counters.enable(event, now))
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`NotAvailable`](CounterError::NotAvailable): one of the counters is in use, has faulted, or does not belong
    ///   to the session; or the session would keep no counter.
    /// - [`Unchanged`](CounterError::Unchanged): the session keeps the counters. The failed access was to the global
    ///   control register, or to a counter's control register that [`save`](Self::save) left programmed.
    /// - [`StateUnknown`](CounterError::StateUnknown): the global control register failed. The session keeps the
    ///   counters, but its events may no longer run.
    pub fn give_back(&mut self, counters: CounterSet) -> Result<(), CounterError> {
        let rest = self.own().without(counters);
        let in_use = |slot: &CounterSlot| {
            matches!(slot.load(), SlotState::Running { .. } | SlotState::Faulted)
        };
        let used = self.slots_of(counters).any(|(_, slot)| in_use(slot));
        if !counters.without(self.own()).is_empty() || rest.is_empty() || used {
            return Err(CounterError::NotAvailable(counters));
        }
        // A parked counter's select is still enabled: it would count as soon as the next owner sets the counter's bit
        // of the global control register.
        self.unpark_all(self.outside_guests(self.own()))?;
        if let Some(global) = self.unit().global() {
            self.change_global(global, (self.global_bits(counters), 0))?;
        }
        self.memory.set_verified(rest);
        self.declared = self.declared.without(counters);
        Ok(())
    }

    /// Ends the session: stops all its counters, including faulted ones, and releases its memory. The call restores the
    /// session's bits of the global control register to their values from before the session. The call closes all
    /// opened events, and no event can start afterwards. Samples that wait in memory are dropped, as by
    /// [`close`](Self::close).
    ///
    /// After the call, an interrupt without an overflow may still arrive. [`service`](crate::service) claims the first
    /// of these interrupts, so that the kernel does not report an unknown NMI.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventSource, Hardware};
    /// # use pmu_core::error::CounterError;
    /// /// Unloads a driver. If a register does not answer, all else is stopped, and the call is tried once more.
    /// fn unload<S: EventSource, H: Hardware>(
    ///     mut counters: CounterSession<'_, S, H>,
    /// ) -> Result<(), CounterError> {
    ///     counters.shut_down().or_else(|_| counters.shut_down())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`StateUnknown`](CounterError::StateUnknown): the error names the first register that failed. All other counters
    /// were stopped. The session stays open, and `shut_down` may be called again.
    pub fn shut_down(&mut self) -> Result<(), CounterError> {
        if S::Facility::SOFTWARE && mem::take(&mut self.has_table_alone) {
            self.is_paused_alone = false;
            self.table().give_back();
        }
        if !self.is_open() {
            return Ok(());
        }
        let lent = self.memory.is_lent();
        let (own, mut outcome) = (if lent { self.candidates() } else { self.own() }, Ok(()));
        for (counter, slot) in self.slots_of(own) {
            // A borrower may have left a counter running that is free here.
            if lent || slot.load() != SlotState::Free {
                outcome = outcome.and(self.stop_and_free(counter));
            }
        }
        if lent {
            let _ = self.memory.take_back(own);
            // The borrower may have changed the facilities' registers.
            self.source.facility().lose();
        }
        let of_facilities = self.source.facility().status_bits();
        outcome = outcome.and(self.clear_facilities(own, Moment::GivenUp));
        outcome = outcome.and(self.table().extra.restore(&self.hardware));
        // While the processor freezes counters, a spurious interrupt would stop the other owners' by the control
        // register.
        outcome = outcome.and(self.stop_freezing());
        if let Some(global) = self.unit().global().filter(|_| !own.is_empty()) {
            // An interrupt that is yet to come may have frozen the counters. The overflow of a counter whose events are
            // recorded raises no interrupt, which would have acknowledged it.
            let silent = if S::Facility::RECORDS { own.bits() | of_facilities } else { 0 };
            if global.frozen | silent != 0 {
                outcome = outcome.and(self.acknowledge(global, global.frozen | silent).map(|_| ()));
            }
            // First the value that the interrupt path restores, then the register.
            let control = &self.memory.global_control;
            let before = self.before & own;
            let bits = own.bits() | self.division_bits();
            let restored = control.load(Relaxed) & !bits | before.bits();
            control.store(restored, Relaxed);
            outcome = outcome.and(self.write_retrying(global.control, restored));
        }
        if outcome.is_ok() {
            self.declared = CounterSet::NONE;
            self.source.opened().give_back();
            self.memory.expect_spurious_after_shut_down();
            self.memory.give_back();
        }
        outcome.map_err(CounterError::StateUnknown)
    }
}
