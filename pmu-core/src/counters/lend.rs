//! Counters that a session lends, to a guest for instance, and has back as they were.

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::Ordering::Relaxed;

use crate::counters::processor::marked_faulted;
use crate::counters::slot::SlotState;
use crate::{
    CounterControl, CounterError, CounterId, CounterSet, CounterSlot, Counters, EventOverflow,
    EventSource, MAX_COUNTERS, MsrBackend, MsrFault, Platform, service,
};

/// Counters of this processor that no owner uses for the time being: the proof that a borrower asks for.
///
/// A [`CounterWindow`] has them where a session lends its counters. They stand still, and none has an overflow pending;
/// what their controls and values hold is left over from their owner. The borrower programs a counter before it enables
/// it, and disarms it in the end.
#[derive(Debug)]
pub struct LentCounters {
    counters: CounterSet,
    global_control: u64,
    programmed: bool,
    status: u64,
    not_send: PhantomData<*mut ()>,
}

impl LentCounters {
    /// Declares that these counters of the processor that executes the call have no owner, and are stopped, by the
    /// global control register for instance, which holds `global_control`. Where that is wrong, the owner's counts are.
    ///
    /// # Context
    /// Task. The value stays on the processor.
    ///
    /// ```
    /// use pmu_core::{CounterSet, LentCounters};
    /// let lent = LentCounters::unowned(CounterSet::from_bits(0b1111), 0);
    /// assert_eq!(lent.counters().len(), 4);
    /// ```
    pub const fn unowned(counters: CounterSet, global_control: u64) -> Self {
        Self { counters, global_control, programmed: false, status: 0, not_send: PhantomData }
    }

    /// Adds counters that have no owner. The session of a source table has general counters alone, for instance, and a
    /// guest gets fixed ones, too.
    pub fn add_unowned(&mut self, counters: CounterSet) {
        self.counters = self.counters | counters;
    }

    /// Returns the counters.
    pub const fn counters(&self) -> CounterSet {
        self.counters
    }

    /// Returns the value that the global control register holds while nothing of the borrower's runs: the other owners'
    /// bits. A borrower writes it back. It is the host's field of a VMCS, too.
    pub const fn global_control(&self) -> u64 {
        self.global_control
    }

    /// Notes whether something of the borrower's is programmed: `true` before the borrower's first write, `false` when
    /// everything is disarmed, cleared and acknowledged. While it is `true`, the window's [end](CounterWindow::end)
    /// does that.
    pub const fn set_programmed(&mut self, programmed: bool) {
        self.programmed = programmed;
    }

    /// Notes the bits of the overflow status, beside the counters', that the borrower sets: before it does. Where
    /// something is programmed at the window's end, it acknowledges them, too: each unmasking of the local APIC's entry
    /// would raise an interrupt.
    pub const fn set_status(&mut self, bits: u64) {
        self.status = bits;
    }
}

/// The time in which a session's counters are [lent](Counters::lend). It borrows the session, so that nothing starts,
/// stops or reads an event meanwhile.
///
/// Dropping it accesses no register and leaves the counters lent: the session's events count nothing. So does an early
/// return by `?`. The end of the next window brings the events back; their periods begin anew, and what they counted
/// since their last interrupt or start is lost. Until then the session's operations find no counters, and
/// [`shut_down`](Counters::shut_down) stops them. What the borrower left on counters that were
/// [added](LentCounters::add_unowned), and in the status, is taken away by the end of this window alone.
#[must_use = "the counters are lent until the window ends"]
#[derive(Debug)]
pub struct CounterWindow<'c, 'a, S, M, P> {
    counters: &'c mut Counters<'a, S, M, P>,
    lent: LentCounters,
    /// The handle's counters that were declared; meanwhile they are those that it lends.
    declared: [u8; 3],
    /// Bits of the lent counters in the global control register.
    gate: u64,
    /// Values of the counters that ran, in the order of their bits.
    values: Values,
}

/// Some counters could not be brought back when a [window](CounterWindow) ended.
///
/// ```
/// use pmu_core::{CounterSet, MsrErrorKind, MsrFault, MsrOperation, WindowError};
/// let (operation, kind) = (MsrOperation::Write, MsrErrorKind::GeneralProtection);
/// let fault = MsrFault { operation, register: 0x186, kind };
/// let error = WindowError { counters: CounterSet::from_bits(0b1), fault };
/// assert!(error.to_string().contains("0x186"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct WindowError {
    /// The counters whose events do not run: they are not used until [`reprogram`](Counters::reprogram).
    pub counters: CounterSet,
    /// The first access that failed.
    pub fault: MsrFault,
}

impl fmt::Display for WindowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { counters, fault } = self;
        write!(f, "the counters {:#X} could not be brought back: {fault}", counters.bits())
    }
}

impl core::error::Error for WindowError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.fault)
    }
}

impl From<WindowError> for CounterError {
    fn from(error: WindowError) -> Self {
        Self::Faulted(error.fault)
    }
}

/// The counters that failed, and the first fault.
#[derive(Default)]
struct Failures {
    counters: CounterSet,
    fault: Option<MsrFault>,
}

impl Failures {
    /// Notes that a counter faulted, whose slot says so from now on.
    fn note(&mut self, counter: CounterId, slot: &CounterSlot, fault: MsrFault) {
        slot.store(SlotState::Faulted);
        self.add(counter, fault);
    }

    /// Adds a counter that faulted.
    fn add(&mut self, counter: CounterId, fault: MsrFault) {
        self.counters = self.counters | counter.only();
        self.fault.get_or_insert(fault);
    }

    fn outcome(self) -> Result<(), WindowError> {
        match self.fault {
            Some(fault) => Err(WindowError { counters: self.counters, fault }),
            None => Ok(()),
        }
    }
}

impl<'a, S: EventSource, M: MsrBackend, P: Platform> Counters<'a, S, M, P> {
    /// Lends the counters: stops them, and keeps what they hold until the window [ends](CounterWindow::end). A
    /// hypervisor's window lasts from before a guest's state is loaded until after it is put back.
    ///
    /// Meanwhile [`service`](crate::service) accesses no register, and [says](crate::Serviced::lent) that the interrupt
    /// may be the borrower's. Where delivery masks the local APIC's entry, it stays masked until the borrower unmasks
    /// it, with the overflow acknowledged, or until the window's end, which unmasks it. The times of the events stand
    /// still between both `now`s.
    ///
    /// An overflow that is pending is reported to `overflowed` once, as its interrupt would have reported it; the
    /// interrupt, if it still comes, is claimed.
    ///
    /// With a global control register it costs two writes, one read, and for each event on a counter one RDPMC and two
    /// writes, the end included. Without one, each event costs three writes and one RDPMC. Fixed counters have one
    /// control, which costs one write.
    ///
    /// ```
    /// # use pmu_core::{Counters, EventSource, LentCounters, MsrBackend, Platform, WindowError};
    /// # use pmu_core::CounterError;
    /// # fn enter_guest(_: &mut LentCounters) {}
    /// fn run_guest<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut Counters<'_, S, M, P>,
    ///     clock: impl Fn() -> u64,
    /// ) -> Result<(), CounterError> {
    ///     let mut window = counters.lend(clock(), |_| ())?;
    ///     enter_guest(window.lent()); // Nothing here returns before the window has ended.
    ///     Ok(window.end(clock())?)
    /// }
    /// ```
    ///
    /// Nothing reaches the session's counters meanwhile:
    ///
    /// ```compile_fail,E0499
    /// # use pmu_core::{CounterError, Counters, EventId, EventSource, MsrBackend, Platform};
    /// # fn wrong<S: EventSource, M: MsrBackend, P: Platform>(
    /// #     counters: &mut Counters<'_, S, M, P>, event: EventId,
    /// # ) -> Result<(), CounterError> {
    /// let window = counters.lend(0, |_| ())?;
    /// counters.stop_event(event, 0)?;
    /// Ok(window.end(0)?)
    /// # }
    /// ```
    ///
    /// # Context
    /// Task, on the processor on which the window then ends. An interrupt may come at any time.
    ///
    /// # Errors
    /// [`NotAvailable`](CounterError::NotAvailable): the session has no counters, or was shut down.
    /// [`Access`](CounterError::Access): a register faulted, nothing is lent, and everything runs as before.
    /// [`Faulted`](CounterError::Faulted): nothing is lent; some events do not run any more.
    pub fn lend(
        &mut self,
        now: u64,
        overflowed: impl FnMut(EventOverflow),
    ) -> Result<CounterWindow<'_, 'a, S, M, P>, CounterError> {
        let was_lent = self.memory.is_lent();
        let own = if was_lent { self.candidates() } else { self.own() };
        if own.is_empty() || !self.is_open() {
            return Err(CounterError::NotAvailable(self.declared()));
        }
        let control = &self.memory.global_control;
        let (gate, values) = if was_lent {
            (own.bits(), self.begin_anew(own))
        } else {
            let gate = control.load(Relaxed) & own.bits();
            let stopped = self.stop_all(own).and_then(|()| self.settle(own, overflowed));
            (gate, stopped.map_err(|error| self.resume(own, gate, error))?)
        };
        self.table().opened().for_each(|(event, entry)| self.add_time(event, entry, now));
        self.memory.lend();
        let mut lent = LentCounters::unowned(own, control.load(Relaxed));
        lent.set_programmed(was_lent);
        let declared = self.replace_declared(own.pack());
        Ok(CounterWindow { counters: self, lent, declared, gate, values })
    }

    /// Stops these counters: all together, or where there is no global control register, each one that runs.
    fn stop_all(&self, own: CounterSet) -> Result<(), CounterError> {
        if self.unit().global().is_some() {
            return self.halt(own);
        }
        for (counter, slot) in self.slots_of(own) {
            if let SlotState::Running { .. } = slot.load() {
                let stopped = self.set_control(&self.registers(counter), 0);
                stopped.map_err(CounterError::Access)?;
            }
        }
        Ok(())
    }

    /// Reads the counters that run, which stand still; serves their overflows first whose interrupt has not come yet.
    fn settle(
        &self,
        own: CounterSet,
        overflowed: impl FnMut(EventOverflow),
    ) -> Result<Values, CounterError> {
        let pending = match self.unit().global() {
            Some(global) => {
                let status = self.rdmsr_retrying(global.status).map_err(CounterError::Access)?;
                status & (own.bits() | global.frozen) != 0
            }
            None => match self.read_values(own)? {
                (values, false) => return Ok(values),
                (_, true) => true,
            },
        };
        if pending {
            let served = service(&self.source, &self.msr, &self.platform, self.memory, overflowed);
            self.memory.expect_late(
                served.map_err(|error| CounterError::Faulted(error.fault))?.claim.interrupts(),
            );
            if let Some(global) = self.unit().global()
                && self.memory.global_control.load(Relaxed) == 0
            {
                // ZX-C took no acknowledgement while every counter was stopped.
                let cleared = self.acknowledge(global, own.bits());
                cleared.map_err(CounterError::Access)?;
            }
        }
        // Not before: an interrupt in between may have loaded one of them.
        self.read_values(own).map(|(values, _)| values)
    }

    /// Reads the counters that run, and returns whether one of them is in the half of its range after its wrap.
    fn read_values(&self, own: CounterSet) -> Result<(Values, bool), CounterError> {
        let (mut values, mut wrapped) = ([0; MAX_COUNTERS], false);
        for (place, (counter, slot)) in values.iter_mut().zip(self.slots_of(own)) {
            if let SlotState::Running { .. } = slot.load() {
                let registers = self.registers(counter);
                *place = self.read(&registers).map_err(CounterError::Access)?;
                wrapped |= registers.has_overflowed(*place);
            }
        }
        Ok((values, wrapped))
    }

    /// Returns the values from which the periods of the events begin, after a window that did not end.
    fn begin_anew(&self, own: CounterSet) -> Values {
        let mut values = [0; MAX_COUNTERS];
        for (place, (counter, slot)) in values.iter_mut().zip(self.slots_of(own)) {
            let SlotState::Running { event, .. } = slot.load() else {
                if let SlotState::Parked { .. } = slot.load() {
                    slot.store(SlotState::Free);
                }
                continue;
            };
            match self.first_load(&self.registers(counter), event) {
                Some((value, period)) => {
                    *place = value;
                    slot.store(SlotState::Running { event, period });
                    if let Some(entry) = self.table().entry(event) {
                        entry.loaded(value);
                    }
                }
                // It was closed meanwhile.
                None => slot.store(SlotState::Free),
            }
        }
        values
    }

    /// Returns those of these counters that run.
    fn running(&self, own: CounterSet) -> CounterSet {
        let running =
            self.slots_of(own).filter(|(_, slot)| matches!(slot.load(), SlotState::Running { .. }));
        running.map(|(counter, _)| counter).collect()
    }

    /// Lets these counters go on, some of which are stopped, after a failure.
    fn resume(&self, own: CounterSet, gate: u64, error: CounterError) -> CounterError {
        let resumed = if self.unit().global().is_some() {
            self.go_on(CounterSet::from_bits(gate))
        } else {
            let mut failures = Failures::default();
            self.restore_controls(own, &mut failures);
            failures.outcome().map_err(CounterError::from)
        };
        resumed.err().unwrap_or(error)
    }

    /// Disarms and clears lent counters on which a borrower left something, and acknowledges their overflows and these
    /// other bits of the status.
    fn disarm(&self, lent: CounterSet, status: u64, failures: &mut Failures) {
        let (unit, mut stopped) = (self.unit(), Ok(()));
        if let Some(global) = unit.global() {
            let control = self.memory.global_control.load(Relaxed);
            stopped = self.wrmsr_retrying(global.control, control);
        }
        let stopped = stopped.and_then(|()| self.disarm_fixed(lent & unit.counters()));
        let note = |failures: &mut Failures, counter: CounterId, fault| {
            match self.slot(counter).filter(|_| self.declared().contains(counter)) {
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

    /// Clears the bits of these fixed counters in the control that they share. The session's are restored later.
    fn disarm_fixed(&self, lent: CounterSet) -> Result<(), MsrFault> {
        let fixed = lent & CounterSet::FIXED;
        if fixed.is_empty() {
            return Ok(());
        }
        let register = self.unit().fixed_control();
        let known = !(self.declared() & CounterSet::FIXED).is_empty();
        let mut control = match known {
            true => self.memory.fixed_control.load(Relaxed),
            false => self.rdmsr_retrying(register)?,
        };
        for counter in fixed.iter() {
            control &= !self.unit().registers(counter).control.mask();
        }
        self.wrmsr_retrying(register, control)
    }

    /// Loads the counters that run with these values.
    fn restore_values(&self, own: CounterSet, values: &Values, failures: &mut Failures) {
        let full_width = self.memory.full_width.load(Relaxed);
        for (value, (counter, slot)) in values.iter().zip(self.slots_of(own)) {
            let SlotState::Running { event, .. } = slot.load() else { continue };
            let (registers, mut value) = (self.registers(counter), *value);
            if registers.register_for(value) != registers.value
                && !full_width
                && let Some(entry) = self.table().entry(event)
            {
                // It is counted only, and no write reaches the value.
                entry.book(value, registers.mask());
                value = registers.counted_on(value, full_width);
                entry.loaded(value);
            }
            if let Err(fault) = self.wrmsr_retrying(registers.register_for(value), value) {
                failures.note(counter, slot, fault);
            }
        }
    }

    /// Programs the controls of the counters that run, and of those that wait for theirs to be restored.
    fn restore_controls(&self, own: CounterSet, failures: &mut Failures) {
        let fixed = own & CounterSet::FIXED;
        if !fixed.is_empty() {
            let (register, value) = (self.unit().fixed_control(), &self.memory.fixed_control);
            if let Err(fault) = self.wrmsr_retrying(register, value.load(Relaxed)) {
                let running = self.slots_of(self.running(fixed));
                running.for_each(|(counter, slot)| failures.note(counter, slot, fault));
            }
        }
        for (counter, slot) in self.slots_of(own & CounterSet::GENERAL) {
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

impl<S: EventSource, M: MsrBackend, P: Platform> CounterWindow<'_, '_, S, M, P> {
    /// Returns the lent counters, for what borrows them.
    pub const fn lent(&mut self) -> &mut LentCounters {
        &mut self.lent
    }

    /// Ends the window: every event continues where it was. `now` is by the clock of [`lend`](Counters::lend).
    ///
    /// Before, the embedder restores what it changed of the local APIC's entry and of `IA32_DEBUGCTL`, which VM exits
    /// clear.
    ///
    /// # Context
    /// Task, on the processor on which the counters were lent. An interrupt may come at any time.
    ///
    /// # Errors
    /// Some counters could not be brought back; everything else runs.
    pub fn end(self, now: u64) -> Result<(), WindowError> {
        let Self { counters, lent, declared, gate, values } = self;
        let own = counters.declared();
        let (ran, mut failures) = (counters.running(own), Failures::default());
        if lent.programmed {
            counters.disarm(lent.counters, lent.status, &mut failures);
        }
        counters.restore_values(own, &values, &mut failures);
        // From here on the interrupt path serves them: without a global control register they run one by one.
        let interrupted = counters.memory.take_back(own);
        counters.replace_declared(declared);
        counters.restore_controls(own, &mut failures);
        if interrupted && !counters.memory.is_muted() {
            counters.platform.unmask_performance_interrupt();
        }
        counters.table().opened().for_each(|(_, entry)| entry.skip_time(now));
        if let Err(CounterError::Access(fault) | CounterError::Faulted(fault)) =
            counters.go_on(CounterSet::from_bits(gate))
        {
            failures.fault.get_or_insert(fault);
        }
        for (event, entry) in counters.table().opened() {
            if counters.check_counter(event, entry).is_err() {
                counters.memory.mark_faulted(Some(event), counters.table());
            }
        }
        // An interrupt may have met a fault, too.
        let lost = ran.without(counters.running(own));
        if let Some(counter) = lost.iter().next() {
            let register = counters.registers(counter).value_register();
            failures.fault.get_or_insert(marked_faulted(register));
        }
        failures.counters = failures.counters | lost;
        failures.outcome()
    }
}

/// The values of a session's counters, in the order of their bits.
type Values = [u64; MAX_COUNTERS];
