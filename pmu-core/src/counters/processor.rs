//! The counters of one processor: taken, started, stopped, and given back.
//!
//! The control path shares a [`CounterMemory`] and the registers with the interrupt path, and the interrupt may come
//! between any two instructions. So a counter's slot is set *after* the counter was loaded and *before* it can run,
//! and cleared *after* it was stopped.

use core::marker::PhantomData;
use core::sync::atomic::Ordering::Relaxed;

use crate::counters::difference::EventDifference;
use crate::counters::slot::SlotState;
use crate::msr::MsrAccess;
use crate::{
    Counter, CounterError, CounterId, CounterMemory, CounterSet, CounterSlot, CounterUnit, EventId,
    EventSelect, EventSource, MsrAddress, MsrBackend, MsrErrorKind, MsrFault, MsrOperation,
    Platform,
};

/// The control handle to the counters of one processor.
///
/// It cannot move to another thread, and dropping it accesses no register: [shut it down](Self::shut_down) on its
/// processor. A handle that is dropped without a shutdown leaves its counters running and its [`CounterMemory`] in
/// use: [`service`](crate::service) keeps reporting, and the memory can only be [reclaimed](CounterMemory::reclaim).
///
/// # Context
/// Every method: task, on the processor whose counters these are. The performance interrupt may come at any
/// time.
///
/// ```compile_fail,E0277
/// fn needs_send<T: Send>() {}
/// needs_send::<pmu_core::Counters<'static, pmu_core::OpenedEvents<'static>, (), ()>>();
/// ```
#[derive(Debug)]
pub struct Counters<'a, S, M, P> {
    pub(crate) source: S,
    pub(crate) msr: M,
    pub(crate) platform: P,
    pub(crate) memory: &'a CounterMemory,
    /// The counters that were enabled in the global control register before, packed.
    before: [u8; 3],
    /// Requested counters that this processor shares with the unit, packed; empty after shutdown.
    declared: [u8; 3],
    not_send: PhantomData<*mut ()>,
}

/// Result of taking a processor's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SessionCounters {
    /// Counters that answered, on which events run. A later fault does not show here: its counter is not used again
    /// until [`reprogram`](Counters::reprogram) or [`shut_down`](Counters::shut_down).
    pub usable: CounterSet,
    /// Counters that did not read back the value written to them, or faulted: another owner's, or absent.
    pub unresponsive: CounterSet,
    /// Counters for which no [`CounterSlot`] was lent.
    pub without_slot: CounterSet,
}

impl<'a, S: EventSource, M: MsrBackend, P: Platform> Counters<'a, S, M, P> {
    /// Takes the counters of `only` of the processor that executes the call, which `processor` describes: those that
    /// it shares with the source's unit. The source is kept; an [`OpenedEvents`](crate::OpenedEvents) is two
    /// references.
    ///
    /// Stops each of them, proves it by writing and reading it back (by RDMSR and then, of those that agreed, by
    /// RDPMC), and leaves it zero. Then
    /// acknowledges overflows that a predecessor left, disables precise sampling (`IA32_PEBS_ENABLE`; version 6 has
    /// [other registers](crate::UnusedRegisters)), enables their bits of the global control register where there is
    /// one, and unmasks the local APIC's entry.
    ///
    /// A counter that does not answer, or for which no slot was lent, is left out and untouched from then on: see
    /// [`counters`](Self::counters). So is every counter that is not in `only`, and every fixed counter if the source
    /// has no table of events to open, since only opened events use fixed counters.
    ///
    /// # Context
    /// Task, on the processor on which the handle then lives. An interrupt may come at any time.
    ///
    /// # Errors
    /// - [`MemoryInUse`](CounterError::MemoryInUse): another handle has this memory or this table of events,
    ///   another processor's for instance, or one that was dropped without [`shut_down`](Self::shut_down).
    /// - [`NoCounters`](CounterError::NoCounters): the source's unit has none, with the reason.
    /// - [`OtherProcessor`](CounterError::OtherProcessor): the processor has none of these counters.
    /// - [`InsufficientMemory`](CounterError::InsufficientMemory): no slot was lent for any of them.
    /// - [`Unresponsive`](CounterError::Unresponsive): no counter answers.
    /// - [`Access`](CounterError::Access): a global register faulted.
    ///
    /// After an error no counter runs. An interrupt that came meanwhile may have left the local APIC's entry masked:
    /// its other owner unmasks it.
    pub fn take(
        source: S,
        processor: &CounterUnit,
        only: CounterSet,
        msr: M,
        platform: P,
        memory: &'a CounterMemory,
    ) -> Result<Self, CounterError> {
        let only = if source.opened().is_empty() { only & CounterSet::GENERAL } else { only };
        let declared = source.unit().shared_with(processor) & only;
        let mut counters = Self::unopened(source, declared, msr, platform, memory);
        let candidates = counters.candidates();
        if declared.is_empty() {
            let absent = counters.unit().why_absent();
            return Err(absent.map_or(CounterError::OtherProcessor, CounterError::NoCounters));
        }
        if candidates.is_empty() {
            return Err(too_little_memory(counters.places(declared), memory.counters()));
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
        memory.set_difference(EventDifference::between(counters.unit(), processor));
        if let Err(error) = counters.open(processor, candidates) {
            counters.source.opened().give_back();
            memory.give_back();
            return Err(error);
        }
        Ok(counters)
    }

    /// Creates a handle to counters that are not taken.
    pub(crate) fn unopened(
        source: S,
        declared: CounterSet,
        msr: M,
        platform: P,
        memory: &'a CounterMemory,
    ) -> Self {
        let declared = declared.pack();
        Self { source, msr, platform, memory, before: [0; 3], declared, not_send: PhantomData }
    }

    fn open(
        &mut self,
        processor: &CounterUnit,
        candidates: CounterSet,
    ) -> Result<(), CounterError> {
        let memory = self.memory;
        for slot in memory.slots() {
            slot.store(SlotState::Free);
        }
        if !self.table().is_empty() && !(self.declared() & CounterSet::FIXED).is_empty() {
            self.find_fixed_control()?;
        }
        let proven = self.prove(processor, candidates)?;
        memory.full_width.store(processor.has_full_width(&self.msr), Relaxed);
        if let Some(global) = self.unit().global() {
            let found = self.rdmsr_retrying(global.control);
            let found = found.map_err(CounterError::Access)?;
            let left = proven.bits() | global.frozen | self.unowned(proven, found);
            let control = found | proven.bits();
            memory.global_control.store(control, Relaxed);
            // Before the acknowledgement, which ZX-C takes only while counters are enabled here. They are stopped.
            let enabled = self.wrmsr_retrying(global.control, control);
            let cleared = enabled.and_then(|()| self.acknowledge(global, left));
            cleared.map_err(|fault| {
                let _ = self.wrmsr_retrying(global.control, found);
                CounterError::Access(fault)
            })?;
            self.before = (CounterSet::from_bits(found) & proven).pack();
        } else {
            // Without a status, the predecessor's overflows are unknown.
            memory.expect_late(1);
        }
        memory.publish(proven);
        self.platform.unmask_performance_interrupt();
        Ok(())
    }

    /// Stops these counters, and returns those that answer and interrupt.
    fn prove(
        &self,
        processor: &CounterUnit,
        candidates: CounterSet,
    ) -> Result<CounterSet, CounterError> {
        let mut proven = self.prove_counters(candidates);
        if let Some(precise) = processor.precise() {
            proven = proven.without(precise.disable(&self.msr, proven));
        }
        if proven.is_empty() { Err(CounterError::Unresponsive) } else { Ok(proven) }
    }

    /// Writes a different value to each counter, then reads all of them back both ways. This finds registers that
    /// ignore writes, and two addresses of one register. RDPMC comes second: an emulator that has no counters, and
    /// to which it is an undefined opcode, is found out by RDMSR.
    fn prove_counters(&self, candidates: CounterSet) -> CounterSet {
        let pattern = |counter: CounterId| 0x0135_7AC0 + u64::from(counter.bit());
        let write = |counter: CounterId, value: u64| {
            let register = self.registers(counter).value_register();
            self.wrmsr_retrying(register, value).is_ok()
        };
        let echoes = |counter: CounterId| {
            let registers = self.registers(counter);
            let echoed = Ok(pattern(counter));
            self.rdmsr_retrying(registers.value_register()) == echoed
                && self.read(&registers) == echoed
        };
        let stopped =
            candidates.retain(|counter| self.set_control(&self.registers(counter), 0).is_ok());
        let written = stopped.retain(|counter| write(counter, pattern(counter)));
        let proven = written.retain(echoes);
        for counter in written.iter() {
            // One that does not answer keeps its value.
            let _ = write(counter, 0);
        }
        proven
    }

    /// Takes more counters, which another owner gave up, and returns those that answered. Counters that are the
    /// session's already stay as they are. Where there are global registers, the other owner does not enable these
    /// counters' bits any more.
    ///
    /// # Errors
    /// [`NotAvailable`](CounterError::NotAvailable): this processor lacks one of them, no slot was lent for it, or the
    /// session's are [lent](Self::lend). [`Unresponsive`](CounterError::Unresponsive): none answers.
    /// [`Access`](CounterError::Access),
    /// [`Faulted`](CounterError::Faulted): the global control register does not answer.
    pub fn take_more(
        &mut self,
        processor: &CounterUnit,
        counters: CounterSet,
    ) -> Result<CounterSet, CounterError> {
        let more = counters.without(self.own());
        let lent = self.unit().within(self.memory.counters());
        let there = self.unit().shared_with(processor) & lent;
        let there = if self.table().is_empty() { there & CounterSet::GENERAL } else { there };
        if !self.is_open() || self.own().is_empty() || !more.without(there).is_empty() {
            return Err(CounterError::NotAvailable(counters));
        }
        if more.is_empty() {
            return Ok(more);
        }
        if !(more & CounterSet::FIXED).is_empty() {
            self.find_fixed_control()?;
        }
        let proven = self.prove(processor, more)?;
        for (_, slot) in self.slots_of(proven) {
            slot.store(SlotState::Free);
        }
        if let Some(global) = self.unit().global() {
            self.acknowledge(global, proven.bits()).map_err(CounterError::Access)?;
            self.change_global(global, (0, proven.bits()))?;
        }
        self.declared = (self.declared() | more).pack();
        self.memory.set_proven(self.memory.proven(CounterSet::ALL) | proven);
        Ok(proven)
    }

    /// Gives counters to another owner: stops them, clears their bits of the global control register, and no longer
    /// accesses them.
    ///
    /// # Errors
    /// [`NotAvailable`](CounterError::NotAvailable): one of them is not the session's, is in use, or is the last.
    /// [`Access`](CounterError::Access), [`Faulted`](CounterError::Faulted): the global control register, or a
    /// counter's control that [`save`](Self::save) left programmed, does not answer.
    pub fn give_back(&mut self, counters: CounterSet) -> Result<(), CounterError> {
        let rest = self.own().without(counters);
        let in_use = |slot: &CounterSlot| {
            matches!(slot.load(), SlotState::Running { .. } | SlotState::Faulted)
        };
        let used = self.slots_of(counters).any(|(_, slot)| in_use(slot));
        if !counters.without(self.own()).is_empty() || rest.is_empty() || used {
            return Err(CounterError::NotAvailable(counters));
        }
        self.leave_switch()?;
        if let Some(global) = self.unit().global() {
            self.change_global(global, (counters.bits(), 0))?;
        }
        self.memory.set_proven(rest);
        self.declared = self.declared().without(counters).pack();
        Ok(())
    }

    /// Returns the requested counters that this processor shares with the unit.
    pub(crate) fn declared(&self) -> CounterSet {
        CounterSet::unpack(self.declared)
    }

    /// Replaces the declared counters, packed, and returns the ones before.
    pub(crate) fn replace_declared(&mut self, declared: [u8; 3]) -> [u8; 3] {
        core::mem::replace(&mut self.declared, declared)
    }

    /// Returns the declared counters for which a slot was lent.
    pub(crate) fn candidates(&self) -> CounterSet {
        self.declared() & self.unit().within(self.memory.counters())
    }

    /// Returns whether the session was not shut down.
    pub(crate) fn is_open(&self) -> bool {
        self.declared != [0; 3] && self.memory.counters() != 0
    }

    /// Returns the usable counters, and those that were left out.
    pub fn counters(&self) -> SessionCounters {
        let (usable, candidates) = (self.own(), self.candidates());
        SessionCounters {
            usable,
            unresponsive: candidates.without(usable),
            without_slot: self.declared().without(candidates),
        }
    }

    /// Returns the source's description of the counters.
    pub(crate) fn unit(&self) -> &CounterUnit {
        self.source.unit()
    }

    /// Returns the source's unit, with the events of this processor.
    pub(crate) fn unit_here(&self) -> CounterUnit {
        self.memory.difference().applied_to(self.unit())
    }

    /// Checks that a unit is not that of another type of core than the session's processor.
    pub(crate) fn check_processor(&self, processor: &CounterUnit) -> Result<(), CounterError> {
        let difference = EventDifference::between(self.unit(), processor);
        let same = !self.is_open() || difference == self.memory.difference();
        if same { Ok(()) } else { Err(CounterError::OtherProcessor) }
    }

    /// Returns the select of a row's event on a counter, if this processor has the event.
    pub(crate) fn row_select(&self, row: usize) -> Option<EventSelect> {
        let select = self.source.row_select(row)?;
        let (difference, bit) = (self.memory.difference(), self.source.row_event_bit(row));
        let lacks = bit.is_some_and(|bit| difference.lacks(bit));
        let has = select.select_bits() & !difference.event_bits(self.unit()) == 0 && !lacks;
        has.then(|| select.without_user_rdpmc(difference.user_rdpmc_control(self.unit())))
    }

    /// Returns the registers of one of the unit's counters. Without a table of events there are general ones only,
    /// and the code for the others is not linked.
    pub(crate) fn registers(&self, counter: CounterId) -> Counter {
        let unit = self.unit();
        if self.table().is_empty() { unit.general(counter) } else { unit.registers(counter) }
    }

    /// Returns a counter's slot, if the memory has room for it.
    pub(crate) fn slot(&self, counter: CounterId) -> Option<&'a CounterSlot> {
        if !self.table().is_empty() {
            return self.memory.slot(counter);
        }
        self.memory.slots().get(usize::from(counter.bit()))
    }

    /// Returns the session's counters. One without candidates did not take the memory, and has none of its present
    /// owner's.
    pub(crate) fn own(&self) -> CounterSet {
        self.memory.proven(self.declared())
    }

    /// Checks that an overflow would interrupt.
    pub(crate) fn check_unmuted(&self) -> Result<(), CounterError> {
        if self.memory.is_muted() { Err(CounterError::NoFreeCounter) } else { Ok(()) }
    }

    /// Returns these counters with their slots.
    pub(crate) fn slots_of(
        &self,
        counters: CounterSet,
    ) -> impl Iterator<Item = (CounterId, &'a CounterSlot)> {
        counters.iter().filter_map(move |counter| Some((counter, self.slot(counter)?)))
    }

    /// Returns the session's counters with their slots.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (CounterId, &'a CounterSlot)> {
        self.slots_of(self.own())
    }

    /// Returns the counter that runs for an event, and the period that it was loaded for.
    pub(crate) fn find(&self, event: EventId) -> Option<(CounterId, u64)> {
        self.slots().find_map(|(counter, slot)| match slot.load() {
            SlotState::Running { event: of, period } if of == event => Some((counter, period)),
            _ => None,
        })
    }

    /// Returns the event select that an event has on a counter at present; `None`: there is no such event.
    pub(crate) fn select(&self, event: EventId) -> Option<EventSelect> {
        match event.row() {
            Some(row) => self.row_select(row),
            None => self.opened_select(event),
        }
    }

    /// Returns the value of a counter's own bits of its control while it counts an event.
    pub(crate) fn running_bits(&self, counter: &Counter, event: EventId) -> Option<u64> {
        let select = self.select(event)?;
        // One that counts in guests only has no bits while there are none.
        let halted = select.select_bits() == 0 && event.row().is_none();
        Some(if halted { 0 } else { counter.control.running(select) })
    }

    /// Returns the value with which a counter is loaded for an event, and the period until it overflows.
    pub(crate) fn first_load(&self, counter: &Counter, event: EventId) -> Option<(u64, u64)> {
        let period = match event.row() {
            Some(row) => self.source.row_period(row)?.into(),
            None => {
                let reach = counter.reach(self.memory.full_width.load(Relaxed));
                self.source.opened().entry(event)?.first_piece(reach)
            }
        };
        Some((counter.preload(period), period))
    }

    /// Starts a row's event on a free counter, which interrupts once per period.
    pub(crate) fn start_row(&mut self, row: usize) -> Result<(), CounterError> {
        let event = EventId::of_row(row);
        if self.find(event).is_some() {
            return Err(CounterError::AlreadyStarted(event));
        }
        if self.table().is_empty() {
            // Row events can run on any counter that another row event can, so moving them makes no room.
            let counter = self.free_counter(CounterSet::GENERAL)?;
            return self.run(counter, event);
        }
        self.assign(event, Some(0)).map_err(|unplaced| unplaced.reason)
    }

    /// Loads a free counter for an event, and lets it run.
    pub(crate) fn run(&self, counter: CounterId, event: EventId) -> Result<(), CounterError> {
        self.run_for(counter, event, None)
    }

    /// Loads a free counter for an event, and lets it run: for the remainder of a period (the period, and what is left
    /// of it), or from its beginning.
    pub(crate) fn run_for(
        &self,
        counter: CounterId,
        event: EventId,
        rest: Option<(u64, u64)>,
    ) -> Result<(), CounterError> {
        let slot = self.slot(counter).ok_or(CounterError::NoFreeCounter)?;
        let registers = self.registers(counter);
        let load = match rest {
            Some((period, rest)) => Some((registers.preload(rest), period)),
            None => self.first_load(&registers, event),
        };
        let (value, period) = load.ok_or(CounterError::NoSuchEvent(event))?;
        let entry = self.table().entry(event);
        self.run_from(slot, &registers, event, value, period).inspect_err(|_| {
            if let Some(entry) = entry {
                entry.set_resume(period);
            }
        })
    }

    /// Loads a free counter with a value, and lets it run.
    fn run_from(
        &self,
        slot: &CounterSlot,
        registers: &Counter,
        event: EventId,
        value: u64,
        period: u64,
    ) -> Result<(), CounterError> {
        let bits = self.running_bits(registers, event).ok_or(CounterError::NoSuchEvent(event))?;
        self.msr
            .wrmsr_retrying(registers.register_for(value), value)
            .map_err(CounterError::Access)?;
        if let Some(entry) = self.table().entry(event) {
            entry.loaded(value);
        }
        slot.store(SlotState::Running { event, period });
        let Err(fault) = self.set_control(registers, bits) else {
            // An interrupt that met a fault may have marked it meanwhile.
            if slot.load() != SlotState::Faulted && !self.memory.is_muted() {
                return Ok(());
            }
            slot.store(SlotState::Faulted);
            return Err(CounterError::Faulted(marked_faulted(registers.control.register())));
        };
        match self.set_control(registers, 0) {
            Ok(()) => {
                slot.store(SlotState::Free);
                Err(CounterError::Access(fault))
            }
            Err(fault) => {
                slot.store(SlotState::Faulted);
                Err(CounterError::Faulted(fault))
            }
        }
    }

    /// Stops the counter of a row's event. An overflow that is pending is dropped.
    pub(crate) fn stop_row(&mut self, row: usize) -> Result<(), CounterError> {
        let event = EventId::of_row(row);
        let (counter, _) = self.find(event).ok_or(CounterError::NotStarted(event))?;
        self.release(counter).map_err(CounterError::Faulted)
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
                    self.memory.expect_late(1);
                }
                Ok(())
            }
        });
        slot.store(if stopped.is_ok() { SlotState::Free } else { SlotState::Faulted });
        stopped
    }

    /// Reads the number of a source's events since its counter was last loaded (RDPMC).
    pub(crate) fn read_loaded(&self, event: EventId) -> Result<u64, CounterError> {
        let not_started = CounterError::NotStarted(event);
        let (counter, period) = self.find(event).ok_or(not_started)?;
        let registers = self.registers(counter);
        let read = || registers.read(&self.msr).map_err(CounterError::Access);
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
        match self.holds(registers, bits).map_err(CounterError::Access)? {
            true => Ok(()),
            false => Err(CounterError::RegistersLost),
        }
    }

    /// Stops every counter, also those that had faulted, restores the session's bits of the global control register
    /// as they were found, and releases the memory. Nothing can be started afterwards, and every opened event is
    /// closed.
    ///
    /// An interrupt that comes late finds nothing; the first such one is claimed.
    ///
    /// # Errors
    /// [`Faulted`](CounterError::Faulted) with the first register that did not answer, after
    /// everything else was stopped. The counters then stay open, and `shut_down` may be called again.
    pub fn shut_down(&mut self) -> Result<(), CounterError> {
        if !self.is_open() {
            return Ok(());
        }
        let lent = self.memory.is_lent();
        let (own, mut outcome) = (if lent { self.candidates() } else { self.own() }, Ok(()));
        for (counter, slot) in self.slots_of(own) {
            // A borrower may have left one running that is free here.
            if lent || slot.load() != SlotState::Free {
                outcome = outcome.and(self.release(counter));
            }
        }
        if lent {
            let _ = self.memory.take_back(own);
        }
        outcome = outcome.and(self.table().extra.restore(&self.msr));
        // While they freeze, a late interrupt would stop the others' counters by the control register.
        outcome = outcome.and(self.stop_freezing());
        if let Some(global) = self.unit().global().filter(|_| !own.is_empty()) {
            if global.frozen != 0 {
                // An interrupt that is yet to come may have frozen the counters.
                outcome = outcome.and(self.acknowledge(global, global.frozen).map(|_| ()));
            }
            // The value that the interrupt path restores first, then the register.
            let control = &self.memory.global_control;
            let before = CounterSet::unpack(self.before) & own;
            let restored = control.load(Relaxed) & !own.bits() | before.bits();
            control.store(restored, Relaxed);
            outcome = outcome.and(self.wrmsr_retrying(global.control, restored));
        }
        if outcome.is_ok() {
            self.declared = [0; 3];
            self.source.opened().give_back();
            self.memory.expect_late_after_shut_down();
            self.memory.give_back();
        }
        outcome.map_err(CounterError::Faulted)
    }
}

/// Returns the fault of a counter that an interrupt marked as faulted; the backend's own error is not known here.
pub(crate) fn marked_faulted(register: MsrAddress) -> MsrFault {
    let (operation, register) = (MsrOperation::Write, register.get());
    MsrFault { operation, register, kind: MsrErrorKind::Other }
}

/// Returns the error for too few lent places.
pub(crate) fn too_little_memory(needed: usize, lent: usize) -> CounterError {
    CounterError::InsufficientMemory { needed: needed as u16, lent: lent as u16 }
}
