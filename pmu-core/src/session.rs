//! The counters of one processor at work: the control path.
//!
//! It shares a [`CounterMemory`] and the registers with the interrupt path, and the interrupt may come
//! between any two instructions. So a counter's slot names its source *after* the counter was
//! loaded and *before* it can run, and forgets it *after* it was stopped.

use core::marker::PhantomData;
use core::sync::atomic::Ordering;

use crate::counter::Use;
use crate::interrupt::own_bits;
use crate::msr::{MsrAccess, insist};
use crate::{
    Availability, Counter, CounterMemory, EventSelect, InterfaceError, Interval, KProfileSource,
    MsrBackend, MsrFault, Platform, ProfileInterface, ProfileSource, SourceInformation,
};

/// The control handle to the counters of one processor: task context, on that processor only.
///
/// It can not move to another thread, and dropping it touches no register: a session that is to end
/// is [shut down](Self::shut_down) on its processor.
///
/// ```compile_fail,E0277
/// fn needs_send<T: Send>() {}
/// needs_send::<pmu_core::Session<'static, pmu_core::DefaultInterface, (), ()>>();
/// ```
#[derive(Debug)]
pub struct Session<'a, I, M, P> {
    pub(crate) interface: &'a I,
    pub(crate) msr: M,
    platform: P,
    pub(crate) memory: &'a CounterMemory,
    /// What the global control register held before the session.
    control_before: u64,
    /// False if the lent memory is too small and the interface goes on without.
    pub(crate) usable: bool,
    /// Whether the counters froze before the session had them freeze, if it has.
    freeze_before: Option<bool>,
    timer_running: bool,
    not_send: PhantomData<*mut ()>,
}

impl<'a, I: ProfileInterface, M: MsrBackend, P: Platform> Session<'a, I, M, P> {
    /// See [`ProfileInterface::initialise`].
    pub(crate) fn initialise(
        interface: &'a I,
        msr: M,
        platform: P,
        memory: &'a CounterMemory,
    ) -> Result<Self, InterfaceError> {
        let (needed, lent) = (usize::from(interface.counters()), memory.counters());
        let mut session = Self {
            interface,
            msr,
            platform,
            memory,
            control_before: 0,
            usable: lent >= needed,
            freeze_before: None,
            timer_running: false,
            not_send: PhantomData,
        };
        if session.usable {
            session.take_counters()?;
        } else if I::MEMORY_REQUIRED {
            return Err(InterfaceError::InsufficientMemory { needed, lent });
        }
        Ok(session)
    }

    fn take_counters(&mut self) -> Result<(), InterfaceError> {
        let access = InterfaceError::Access;
        let global = self.interface.global();
        if let Some(global) = global {
            self.control_before = self.msr.get(global.control).map_err(access)?;
        }
        self.memory.freezes.store(false, Ordering::Relaxed);
        for slot in &self.memory.slots {
            slot.store(Use::Free);
        }
        for counter in self.counters() {
            self.msr.put(counter.select_register(), 0).map_err(access)?;
        }
        self.prove_counters().inspect_err(|_| {
            // What was written to prove them does not stay; one that does not answer can not be helped.
            for counter in self.counters() {
                let _ = self.msr.put(counter.value_register(), 0);
            }
        })?;
        let own = own_bits(self.interface.counters());
        self.memory.global_control.store(self.control_before | own, Ordering::Relaxed);
        if let Some(global) = global {
            // They may have been left frozen.
            let frozen = global.freeze.map_or(0, |freeze| freeze.frozen_status);
            self.msr.put(global.acknowledge, own | frozen).map_err(access)?;
            self.msr.put(global.control, self.control_before | own).map_err(access)?;
        }
        if self.interface.counters() > 0 {
            self.platform.unmask_performance_interrupt();
        }
        Ok(())
    }

    /// Writes a value of its own to each counter, then reads all of them back both ways: registers
    /// that ignore writes, and registers that are the same one, are found out.
    fn prove_counters(&self) -> Result<(), InterfaceError> {
        let access = InterfaceError::Access;
        let pattern = |number: u8| 0x0135_7AC0 + u64::from(number);
        for (number, counter) in (0..).zip(self.counters()) {
            self.msr.put(counter.value_register(), pattern(number)).map_err(access)?;
        }
        for (number, counter) in (0..).zip(self.counters()) {
            let unresponsive = Err(InterfaceError::CountersUnresponsive { counter: number });
            if self.msr.get(counter.value_register()).map_err(access)? != pattern(number) {
                return unresponsive;
            }
            if self.msr.get_pmc(counter.rdpmc_index()).map_err(access)? != pattern(number) {
                return unresponsive;
            }
        }
        for counter in self.counters() {
            self.msr.put(counter.value_register(), 0).map_err(access)?;
        }
        Ok(())
    }

    fn counters(&self) -> impl Iterator<Item = I::Counter> + use<'a, I, M, P> {
        let interface = self.interface;
        (0..interface.counters()).filter_map(|number| interface.counter(number))
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
        (0..).zip(&self.memory.slots).find_map(|(number, slot)| match slot.load() {
            Use::Running { row: of, events } if usize::from(of) == row => Some((number, events)),
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
        self.leave_switch()?;
        let (slot, counter) = (0..self.interface.counters())
            .zip(&self.memory.slots)
            .find(|(_, slot)| slot.load() == Use::Free)
            .and_then(|(number, slot)| Some((slot, self.interface.counter(number)?)))
            .ok_or(InterfaceError::NoFreeCounter(source))?;
        let Some(select) = self.interface.sources().get(row).map(ProfileSource::select) else {
            return Err(InterfaceError::UnsupportedSource(source));
        };

        self.msr
            .put(counter.value_register(), counter.preload(events))
            .map_err(InterfaceError::Access)?;
        slot.store(Use::Running { row: row as u16, events });
        let Err(fault) = self.msr.put(counter.select_register(), select.running().select_bits())
        else {
            return Ok(());
        };
        match insist(|| self.msr.put(counter.select_register(), 0)) {
            Ok(()) => {
                slot.store(Use::Free);
                Err(InterfaceError::Access(fault))
            }
            Err(fault) => {
                slot.store(Use::Faulted);
                Err(InterfaceError::Faulted(fault))
            }
        }
    }

    /// Lets the processor stop all its counters as it raises the performance interrupt, until the
    /// interrupt path has acknowledged it. Servicing then needs fewer register accesses, and none of
    /// its own events are counted.
    ///
    /// **Every** counter of the processor stands still meanwhile, whoever owns it: between the raise
    /// and the acknowledgement nothing is counted anywhere.
    ///
    /// # Errors
    /// [`FreezeUnsupported`](InterfaceError::FreezeUnsupported),
    /// [`Access`](InterfaceError::Access). Task context, with the performance interrupt not yet
    /// expected: before the first source is started.
    ///
    /// # Safety
    /// The register has other bits, which make the processor write to memory. So, now and at
    /// shut-down:
    /// - the session's backend writes the value that it is given, once, and neither keeps the register's
    ///   [`MsrAddress`](crate::MsrAddress) nor passes it on to safe code of somebody else's.
    pub unsafe fn freeze_on_interrupt(&mut self) -> Result<(), InterfaceError> {
        let freeze = self.interface.global().and_then(|global| global.freeze);
        let freeze = freeze.filter(|_| self.usable).ok_or(InterfaceError::FreezeUnsupported)?;
        if self.freeze_before.is_none() {
            let before = self.msr.get(freeze.register).map_err(InterfaceError::Access)?;
            // First the interrupt path, which else would leave the counters frozen.
            self.memory.freezes.store(true, Ordering::Relaxed);
            self.msr.put(freeze.register, before | freeze.bit).map_err(|fault| {
                self.memory.freezes.store(false, Ordering::Relaxed);
                InterfaceError::Access(fault)
            })?;
            self.freeze_before = Some(before & freeze.bit != 0);
        }
        Ok(())
    }

    /// Gives the freezing bit back as it was found, and leaves the register's other bits.
    fn stop_freezing(&mut self) -> Result<(), MsrFault> {
        let freeze = self.interface.global().and_then(|global| global.freeze);
        let Some((freeze, before)) = freeze.zip(self.freeze_before) else { return Ok(()) };
        let now = insist(|| self.msr.get(freeze.register))?;
        let restored = if before { now | freeze.bit } else { now & !freeze.bit };
        insist(|| self.msr.put(freeze.register, restored))?;
        // An interrupt that is yet to come may have frozen them before.
        let Some(global) = self.interface.global().filter(|_| freeze.frozen_status != 0) else {
            self.freeze_before = None;
            self.memory.freezes.store(false, Ordering::Relaxed);
            return Ok(());
        };
        if insist(|| self.msr.get(global.status))? & freeze.frozen_status != 0 {
            insist(|| self.msr.put(global.acknowledge, freeze.frozen_status))?;
        }
        self.freeze_before = None;
        self.memory.freezes.store(false, Ordering::Relaxed);
        Ok(())
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
            self.memory.slots.get(usize::from(number)).zip(self.interface.counter(number))
        else {
            return Ok(());
        };
        let stopped = insist(|| self.msr.put(counter.select_register(), 0)).and_then(|()| {
            let Some(global) = self.interface.global() else { return Ok(()) };
            let pending = insist(|| self.msr.get(global.status))? & (1 << number);
            if pending != 0 {
                insist(|| self.msr.put(global.acknowledge, pending))?;
            }
            Ok(())
        });
        slot.store(if stopped.is_ok() { Use::Free } else { Use::Faulted });
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

    /// The events that a running counter source has counted since it was last loaded (RDPMC).
    ///
    /// # Errors
    /// [`NotStarted`](InterfaceError::NotStarted) if no counter runs for it,
    /// [`Access`](InterfaceError::Access).
    pub fn read(&self, source: KProfileSource) -> Result<u64, InterfaceError> {
        let not_started = InterfaceError::NotStarted(source);
        let row = self.interface.row(source).ok_or(not_started)?;
        let (number, events) = self.find(row).ok_or(not_started)?;
        let counter = self.interface.counter(number).ok_or(not_started)?;
        let read = || self.msr.get_pmc(counter.rdpmc_index()).map_err(InterfaceError::Access);
        let (mut value, (_, now)) = (read()?, self.find(row).ok_or(not_started)?);
        if now != events {
            // An interrupt came in between, and loaded the counter for another interval.
            value = read()?;
        }
        Ok(value.wrapping_sub(counter.preload(now)) & counter.mask())
    }

    /// Stops everything that runs, the counters that had faulted too, and gives the interface's
    /// bits of the global control register back as they were found.
    ///
    /// # Errors
    /// [`Faulted`](InterfaceError::Faulted) with the first register that did not answer, after
    /// everything else was stopped. May be called again.
    pub fn shut_down(&mut self) -> Result<(), InterfaceError> {
        let mut outcome = Ok(());
        if self.timer_running {
            self.platform.stop_profile_timer();
            self.timer_running = false;
        }
        if !self.usable {
            return outcome;
        }
        for number in 0..self.interface.counters() {
            let slot = self.memory.slots.get(usize::from(number));
            if slot.is_some_and(|slot| slot.load() != Use::Free) {
                outcome = outcome.and(self.release(number));
            }
        }
        if let Some(global) = self.interface.global() {
            // First what the interrupt path leaves behind, then the register.
            self.memory.global_control.store(self.control_before, Ordering::Relaxed);
            let restored = insist(|| self.msr.put(global.control, self.control_before));
            outcome = outcome.and(restored.map_err(InterfaceError::Faulted));
        }
        outcome.and(self.stop_freezing().map_err(InterfaceError::Faulted))
    }

    /// The interface that the session belongs to.
    pub fn interface(&self) -> &'a I {
        self.interface
    }
}
