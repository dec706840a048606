//! The counters of one processor at work: the control path.
//!
//! It shares a [`CounterMemory`] and the registers with the interrupt path, and the interrupt may come
//! between any two instructions. So a counter's slot names its source *after* the counter was
//! loaded and *before* it can run, and forgets it *after* it was stopped.

use core::marker::PhantomData;
use core::sync::atomic::Ordering;

use crate::counter::{SlotState, counter_mask, counters_in};
use crate::msr::{MsrAccess, retry_once};
use crate::{
    Availability, Counter, CounterMemory, CounterSlot, CounterUnit, InterfaceError, Interval,
    KProfileSource, MsrBackend, MsrErrorKind, MsrFault, MsrOperation, Platform, ProfileInterface,
    ProfileSource, Snapshot, SourceInformation,
};

/// The control handle to the counters of one processor.
///
/// It cannot move to another thread, and dropping it touches no register: a session that is to end
/// is [shut down](Self::shut_down) on its processor. One that is dropped without leaves its counters running
/// and its [`CounterMemory`] in use: [`service`](ProfileInterface::service) goes on reporting, and no session
/// can take the memory again.
///
/// # Context
/// Every method: task, on the session's processor. The performance interrupt may come at any time.
///
/// ```compile_fail,E0277
/// fn needs_send<T: Send>() {}
/// needs_send::<pmu_core::Session<'static, pmu_core::DefaultInterface, (), ()>>();
/// ```
#[derive(Debug)]
pub struct Session<'a, I, M, P> {
    pub(crate) interface: &'a I,
    pub(crate) msr: M,
    pub(crate) platform: P,
    pub(crate) memory: &'a CounterMemory,
    /// Value of the session's bits of the global control register before it.
    pub(crate) control_before: u64,
    /// The counters that this processor shares with the interface, one bit each.
    pub(crate) declared: u32,
    /// Whether the processor declares precise sampling.
    pub(crate) precise: bool,
    /// Whether the session can start anything: not where memory is lacking, nor after shut-down.
    pub(crate) usable: bool,
    /// Previous value of the freeze bit, if the session set it.
    pub(crate) freeze_before: Option<bool>,
    pub(crate) timer_running: bool,
    not_send: PhantomData<*mut ()>,
}

/// The counters of a processor, by what became of them when a session took them over: one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SessionCounters {
    /// These answered, and sources run on them. A later fault does not show here: its counter is not used
    /// again until [`reprogram`](Session::reprogram) or [`shut_down`](Session::shut_down).
    pub usable: u64,
    /// These did not give back what was written to them, or faulted: another owner's, or none.
    pub unresponsive: u64,
    /// For these no [`CounterSlot`] was lent.
    pub without_slot: u64,
}

impl<'a, I: ProfileInterface, M: MsrBackend, P: Platform> Session<'a, I, M, P> {
    /// See [`ProfileInterface::initialize`].
    pub(crate) fn initialize(
        interface: &'a I,
        processor: &Snapshot,
        msr: M,
        platform: P,
        memory: &'a CounterMemory,
    ) -> Result<Self, InterfaceError> {
        let own = interface.unit_of(processor);
        let declared = interface.unit().shared_with(&own);
        let (needed, lent) = (declared.count_ones() as usize, memory.counters());
        let has_counters = interface.unit().counters() != 0;
        if has_counters && lent == 0 && interface.requires_memory() {
            return Err(InterfaceError::InsufficientMemory { needed, lent });
        }
        if has_counters && declared == 0 {
            return Err(InterfaceError::OtherProcessor);
        }
        let candidates = declared & counter_mask(lent);
        if candidates != 0 && !memory.take() {
            return Err(InterfaceError::MemoryInUse);
        }
        let mut session = Self {
            interface,
            msr,
            platform,
            memory,
            control_before: 0,
            declared: declared as u32,
            precise: own.precise().is_some(),
            usable: !has_counters || lent > 0,
            freeze_before: None,
            timer_running: false,
            not_send: PhantomData,
        };
        if candidates != 0
            && let Err(error) = session.take_counters(&own, candidates)
        {
            memory.give_back();
            return Err(error);
        }
        Ok(session)
    }

    fn take_counters(
        &mut self,
        processor: &CounterUnit,
        candidates: u64,
    ) -> Result<(), InterfaceError> {
        let (memory, global) = (self.memory, self.unit().global());
        for slot in &memory.slots {
            slot.store(SlotState::Free);
        }
        let mut proven = self.prove_counters(candidates);
        if let Some(precise) = processor.precise() {
            proven &= !precise.disable(&self.msr, proven);
        }
        if proven == 0 {
            return Err(InterfaceError::CountersUnresponsive);
        }
        if let Some(global) = global {
            let found = retry_once(|| self.msr.rdmsr(global.control));
            let found = found.map_err(InterfaceError::Access)?;
            let left = proven | global.frozen | self.unowned(proven, found);
            self.acknowledge(global, left).map_err(InterfaceError::Access)?;
            self.control_before = found & proven;
            memory.global_control.store(found | proven, Ordering::Relaxed);
        }
        if global.is_none() {
            // No status tells whether its predecessor's counters overflowed.
            memory.expect_late(1);
        }
        memory.publish(proven);
        if let Some(global) = global {
            let control = memory.global_control.load(Ordering::Relaxed);
            let enabled = retry_once(|| self.msr.wrmsr(global.control, control));
            enabled.map_err(InterfaceError::Access)?;
        }
        self.platform.unmask_performance_interrupt();
        Ok(())
    }

    /// Stops these counters, and returns those that answer: writes a value of its own to each, then reads
    /// all of them back both ways, so that registers that ignore writes, and registers that are the same
    /// one, are found out.
    fn prove_counters(&self, candidates: u64) -> u64 {
        let pattern = |number: u8| 0x0135_7AC0 + u64::from(number);
        let write = |number: u8, value: u64| {
            let counter = self.unit().counter(number);
            counter.is_some_and(|counter| {
                retry_once(|| self.msr.wrmsr(counter.value_register(), value)).is_ok()
            })
        };
        let echoes = |number: u8| {
            self.unit().counter(number).is_some_and(|counter| {
                let by_number = retry_once(|| self.msr.rdmsr(counter.value_register()));
                let by_index = retry_once(|| counter.read(&self.msr));
                by_number == Ok(pattern(number)) && by_index == Ok(pattern(number))
            })
        };
        let mut proven = retain(candidates, |number| {
            self.unit().counter(number).is_some_and(|counter| {
                retry_once(|| self.msr.wrmsr(counter.select_register(), 0)).is_ok()
            })
        });
        proven = retain(proven, |number| write(number, pattern(number)));
        let written = proven;
        proven = retain(proven, echoes);
        for number in counters_in(written) {
            // One that does not answer keeps whatever it holds.
            let _ = write(number, 0);
        }
        proven
    }

    /// The counters that the session may have, one bit each.
    pub(crate) fn candidates(&self) -> u64 {
        u64::from(self.declared) & counter_mask(self.memory.counters())
    }

    /// Counters on which sources run, and those left out.
    pub fn counters(&self) -> SessionCounters {
        let usable = if self.usable { self.own() } else { 0 };
        SessionCounters {
            usable,
            unresponsive: self.candidates() & !usable,
            without_slot: u64::from(self.declared) & !self.candidates(),
        }
    }

    /// The counters that the interface describes.
    pub(crate) fn unit(&self) -> &'a CounterUnit {
        self.interface.unit()
    }

    /// The session's counters, one bit each. A session without candidates did not take the memory, and has
    /// none of whoever did.
    pub(crate) fn own(&self) -> u64 {
        self.memory.proven.load(Ordering::Relaxed) & self.candidates()
    }

    /// The session's counters with their slots.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (u8, &'a CounterSlot)> + use<'a, I, M, P> {
        let (memory, own) = (self.memory, if self.usable { self.own() } else { 0 });
        (0u8..64).zip(&memory.slots).filter(move |(number, _)| own >> number & 1 != 0)
    }

    /// What is known of a source on this processor: its counters are proven. Task context.
    pub fn query(&self, source: KProfileSource) -> SourceInformation {
        let mut information = self.interface.query(source);
        if !self.usable {
            information.availability = Availability::Unsupported;
            information.interval = 0;
        } else if information.is_supported() && source != KProfileSource::TIME {
            information.availability = Availability::Proven;
        }
        information
    }

    /// Whether the source runs on this processor.
    pub fn is_running(&self, source: KProfileSource) -> bool {
        if source == KProfileSource::TIME {
            self.timer_running
        } else {
            self.interface.row(source).and_then(|row| self.find(row)).is_some()
        }
    }

    /// The number of the counter that runs for a row of the table, and what it was loaded with.
    fn find(&self, row: usize) -> Option<(u8, u32)> {
        self.slots().find_map(|(number, slot)| match slot.load() {
            SlotState::Running { row: of, events } if usize::from(of) == row => {
                Some((number, events))
            }
            _ => None,
        })
    }

    fn supported_row(&self, source: KProfileSource) -> Result<usize, InterfaceError> {
        self.interface
            .row(source)
            .filter(|row| self.usable && self.interface.is_declared(*row))
            .ok_or(InterfaceError::UnsupportedSource(source))
    }

    /// Starts a source at its interval: `ProfileTime` on the platform's timer, any other on a free
    /// counter, which will interrupt each time that the interval's events have passed.
    ///
    /// # Errors
    /// [`UnsupportedSource`](InterfaceError::UnsupportedSource),
    /// [`AlreadyStarted`](InterfaceError::AlreadyStarted),
    /// [`IllegalEvent`](InterfaceError::IllegalEvent),
    /// [`NoFreeCounter`](InterfaceError::NoFreeCounter), [`Timer`](InterfaceError::Timer);
    /// [`Access`](InterfaceError::Access) if a register faulted and the counter is as it was;
    /// [`Faulted`](InterfaceError::Faulted) if it could not even be stopped again.
    pub fn start(&mut self, source: KProfileSource) -> Result<(), InterfaceError> {
        let row = self.supported_row(source)?;
        if self.is_running(source) {
            return Err(InterfaceError::AlreadyStarted(source));
        }
        let cell = self.interface.declared_cell(source)?;
        let events = cell.load(Ordering::Relaxed);
        if source == KProfileSource::TIME {
            self.platform.start_profile_timer(Interval::stored(events))?;
            self.timer_running = true;
            return Ok(());
        }
        let select = self.interface.sources().get(row).map(ProfileSource::select);
        let select = select.ok_or(InterfaceError::UnsupportedSource(source))?;
        let illegal = self.unit().illegal_bits(select);
        if illegal != 0 {
            return Err(InterfaceError::IllegalEvent(illegal));
        }
        self.leave_switch()?;
        let (slot, counter) = self
            .slots()
            .find(|(_, slot)| slot.load() == SlotState::Free)
            .and_then(|(number, slot)| Some((slot, self.unit().counter(number)?)))
            .ok_or(InterfaceError::NoFreeCounter(source))?;
        self.msr
            .wrmsr(counter.value_register(), counter.preload(events))
            .map_err(InterfaceError::Access)?;
        slot.store(SlotState::Running { row: row as u16, events });
        let Err(fault) = self.msr.wrmsr(counter.select_register(), select.running().select_bits())
        else {
            // An interrupt that met a fault may have marked it meanwhile.
            return match slot.load() {
                SlotState::Faulted => Err(InterfaceError::Faulted(MsrFault {
                    operation: MsrOperation::Write,
                    register: counter.select_register().get(),
                    kind: MsrErrorKind::Other,
                })),
                _ => Ok(()),
            };
        };
        match retry_once(|| self.msr.wrmsr(counter.select_register(), 0)) {
            Ok(()) => {
                slot.store(SlotState::Free);
                Err(InterfaceError::Access(fault))
            }
            Err(fault) => {
                slot.store(SlotState::Faulted);
                Err(InterfaceError::Faulted(fault))
            }
        }
    }

    /// Stops a source. An overflow that is pending is dropped: a stopped source is silent.
    ///
    /// # Errors
    /// [`NotStarted`](InterfaceError::NotStarted) if it does not run;
    /// [`Faulted`](InterfaceError::Faulted) if the counter's registers do not answer.
    pub fn stop(&mut self, source: KProfileSource) -> Result<(), InterfaceError> {
        let not_started = InterfaceError::NotStarted(source);
        if source == KProfileSource::TIME {
            if !self.timer_running {
                return Err(not_started);
            }
            self.platform.stop_profile_timer();
            self.timer_running = false;
            return Ok(());
        }
        let row = self.interface.row(source).ok_or(not_started)?;
        let (number, _) = self.find(row).ok_or(not_started)?;
        self.release(number)
    }

    /// Stops the counter with this number and frees its slot.
    pub(crate) fn release(&self, number: u8) -> Result<(), InterfaceError> {
        let Some((slot, counter)) =
            self.memory.slots.get(usize::from(number)).zip(self.unit().counter(number))
        else {
            return Ok(());
        };
        let stopped = retry_once(|| self.msr.wrmsr(counter.select_register(), 0)).and_then(|()| {
            match self.unit().global() {
                Some(global) => self.acknowledge(global, 1 << number).map(|_| ()),
                None => {
                    let ran = matches!(slot.load(), SlotState::Running { .. });
                    let value = retry_once(|| counter.read(&self.msr))?;
                    if ran && counter.has_overflowed(value) {
                        self.memory.expect_late(1);
                    }
                    Ok(())
                }
            }
        });
        slot.store(if stopped.is_ok() { SlotState::Free } else { SlotState::Faulted });
        stopped.map_err(InterfaceError::Faulted)
    }

    /// Makes a running timer take up the interval that was set machine-wide. A running counter does
    /// so by itself when it next overflows.
    ///
    /// # Errors
    /// [`NotStarted`](InterfaceError::NotStarted), [`Timer`](InterfaceError::Timer).
    pub fn apply_interval(&mut self, source: KProfileSource) -> Result<(), InterfaceError> {
        if !self.is_running(source) {
            return Err(InterfaceError::NotStarted(source));
        }
        if source == KProfileSource::TIME {
            let cell = self.interface.declared_cell(source)?;
            let interval = Interval::stored(cell.load(Ordering::Relaxed));
            self.platform.start_profile_timer(interval)?;
        }
        Ok(())
    }

    /// Returns the events that a running counter source has counted since it was last loaded (RDPMC).
    ///
    /// # Errors
    /// [`NotStarted`](InterfaceError::NotStarted) if no counter runs for it,
    /// [`RegistersLost`](InterfaceError::RegistersLost), [`Access`](InterfaceError::Access).
    pub fn read(&self, source: KProfileSource) -> Result<u64, InterfaceError> {
        let not_started = InterfaceError::NotStarted(source);
        let row = self.interface.row(source).ok_or(not_started)?;
        let (number, events) = self.find(row).ok_or(not_started)?;
        let counter = self.unit().counter(number).ok_or(not_started)?;
        let read = || counter.read(&self.msr).map_err(InterfaceError::Access);
        let (mut value, (_, now)) = (read()?, self.find(row).ok_or(not_started)?);
        if now != events {
            // An interrupt came in between, and loaded the counter for another interval.
            value = read()?;
        }
        if counter.has_overflowed(value) && !self.holds(&counter, row)? {
            return Err(InterfaceError::RegistersLost);
        }
        Ok(value.wrapping_sub(counter.preload(now)) & counter.mask())
    }

    /// Whether the counter's select holds what was written to it for a row of the table.
    pub(crate) fn holds(&self, counter: &Counter, row: usize) -> Result<bool, InterfaceError> {
        let expected = self.running_bits(row);
        let found = retry_once(|| self.msr.rdmsr(counter.select_register()));
        found.map(|found| Some(found) == expected).map_err(InterfaceError::Access)
    }

    /// The select's value of a running counter for a row of the table.
    pub(crate) fn running_bits(&self, row: usize) -> Option<u64> {
        let source = self.interface.sources().get(row)?;
        Some(source.select().running().select_bits())
    }

    /// Stops everything that runs, the counters that had faulted too, gives the session's bits of the
    /// global control register back as they were found, and the memory to whoever takes it next. Nothing
    /// can be started afterwards.
    ///
    /// An interrupt that comes late finds nothing: the first one is claimed.
    ///
    /// # Errors
    /// [`Faulted`](InterfaceError::Faulted) with the first register that did not answer, after
    /// everything else was stopped. The session then stays open, and `shut_down` may be called again.
    pub fn shut_down(&mut self) -> Result<(), InterfaceError> {
        if self.timer_running {
            self.platform.stop_profile_timer();
            self.timer_running = false;
        }
        if !self.usable {
            return Ok(());
        }
        let mut outcome = Ok(());
        for (number, slot) in self.slots() {
            if slot.load() != SlotState::Free {
                outcome = outcome.and(self.release(number));
            }
        }
        // While they freeze, a late interrupt would stop the others' counters by the control register.
        outcome = outcome.and(self.stop_freezing().map_err(InterfaceError::Faulted));
        let own = self.own();
        if let Some(global) = self.unit().global().filter(|_| own != 0) {
            if global.frozen != 0 {
                // An interrupt that is yet to come may have frozen the counters.
                let released = self.acknowledge(global, global.frozen).map(|_| ());
                outcome = outcome.and(released.map_err(InterfaceError::Faulted));
            }
            // First what the interrupt path leaves behind, then the register.
            let control = &self.memory.global_control;
            let restored = control.load(Ordering::Relaxed) & !own | self.control_before;
            control.store(restored, Ordering::Relaxed);
            let restored = retry_once(|| self.msr.wrmsr(global.control, restored));
            outcome = outcome.and(restored.map_err(InterfaceError::Faulted));
        }
        if outcome.is_ok() {
            self.usable = false;
            if own != 0 {
                self.memory.expect_late_after_shut_down();
                self.memory.give_back();
            }
        }
        outcome
    }

    /// The interface that the session belongs to.
    pub fn interface(&self) -> &'a I {
        self.interface
    }
}

/// Those of the counters for which `keep` says so.
pub(crate) fn retain(counters: u64, mut keep: impl FnMut(u8) -> bool) -> u64 {
    counters_in(counters).filter(|number| keep(*number)).fold(0, |kept, number| kept | 1 << number)
}
