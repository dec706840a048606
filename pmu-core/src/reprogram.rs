//! Counters whose registers lost their contents: suspend, hibernation, a processor that was offline.

use core::sync::atomic::Ordering;

use crate::counter::{SlotState, counters_in};
use crate::interrupt::service;
use crate::msr::{MsrAccess, retry_once};
use crate::{
    InterfaceError, KProfileSource, MsrBackend, MsrFault, Overflow, Platform, ProfileInterface,
    Session,
};

impl<I: ProfileInterface, M: MsrBackend, P: Platform> Session<'_, I, M, P> {
    /// Programs this processor's counters again after their registers lost their contents: after suspend
    /// and hibernation, and after the processor was offline. Call it on each processor, before the performance
    /// interrupt is expected again.
    ///
    /// Returns the counters whose sources start their interval anew, one bit each: what they had counted of
    /// it is lost. A counter that kept its registers goes on; an overflow of it that is pending is reported
    /// to `overflowed`, for its interrupt may be lost; what it interrupted is not known, so a profile drops it
    /// (`|_| ()`). A source that was not running, and one whose counters were [saved](Self::save), is not
    /// started. Counters that had faulted are free again; their sources are to be started again. The platform's timer is started again if it ran.
    ///
    /// # Errors
    /// [`Faulted`](InterfaceError::Faulted) with the first register that did not answer, after everything
    /// else was programmed; the source of a counter that cannot be programmed does not
    /// [run](Self::is_running). [`Timer`](InterfaceError::Timer).
    pub fn reprogram(&mut self, overflowed: impl FnMut(Overflow)) -> Result<u64, InterfaceError> {
        let own = self.own();
        if !self.usable {
            return Ok(0);
        }
        if own == 0 {
            return self.restart_timer().map(|()| 0);
        }
        // Until they are programmed, the interrupt path is to leave the counters as they are.
        self.memory.withdraw();
        let (mut lost, mut kept, mut outcome) = (0, 0, Ok(()));
        for (number, slot) in (0u8..64).zip(&self.memory.slots) {
            let counter = self.unit().counter(number).filter(|_| own >> number & 1 != 0);
            let Some(counter) = counter else { continue };
            let before = slot.load();
            if let SlotState::Running { row, .. } | SlotState::Parked { row } = before
                && self.holds(&counter, row.into()) == Ok(true)
            {
                kept |= 1 << number;
                continue;
            }
            slot.store(SlotState::Free);
            let stopped = retry_once(|| self.msr.wrmsr(counter.select_register(), 0));
            let programmed = stopped.and_then(|()| {
                let SlotState::Running { row, .. } = before else { return Ok(()) };
                let Some(bits) = self.running_bits(row.into()) else { return Ok(()) };
                lost |= 1 << number;
                let cell = self.interface.interval_cell(row.into());
                let events = cell.map_or(1, |cell| cell.load(Ordering::Relaxed));
                let preload = counter.preload(events);
                retry_once(|| self.msr.wrmsr(counter.value_register(), preload))?;
                slot.store(SlotState::Running { row, events });
                retry_once(|| self.msr.wrmsr(counter.select_register(), bits))
            });
            if let Err(fault) = programmed {
                slot.store(SlotState::Faulted);
                outcome = outcome.and(Err(InterfaceError::Faulted(fault)));
            }
        }
        let registers = self.reprogram_global(own, kept);
        outcome = outcome.and(registers.map_err(InterfaceError::Faulted));
        self.memory.publish(own);
        self.platform.unmask_performance_interrupt();
        // The interrupts that came meanwhile were not served.
        let (interface, memory) = (self.interface, self.memory);
        match service(interface, &self.msr, &self.platform, memory, overflowed) {
            Ok(serviced) => memory.expect_late(serviced.overflows),
            Err(fault) => outcome = outcome.and(Err(InterfaceError::Faulted(fault))),
        }
        outcome.and(self.restart_timer()).map(|()| lost)
    }

    /// The same for the registers of all counters together. What is left of other overflows than those of the
    /// counters that `kept` their registers is acknowledged.
    fn reprogram_global(&self, own: u64, kept: u64) -> Result<(), MsrFault> {
        if let Some(precise) = self.unit().precise() {
            for number in counters_in(precise.disable(&self.msr, own)) {
                if let Some(slot) = self.memory.slots.get(usize::from(number)) {
                    slot.store(SlotState::Faulted);
                }
            }
        }
        let Some(global) = self.unit().global() else { return Ok(()) };
        let mut outcome = Ok(());
        if let Some((freeze, _)) = global.freeze.zip(self.freeze_before) {
            outcome = retry_once(|| self.msr.change(freeze.set(true))).map(|_| ());
        }
        let control = self.memory.global_control.load(Ordering::Relaxed);
        let left = own & !kept | self.unowned(own, control);
        let acknowledged = self.acknowledge(global, left).map(|_| ());
        let enabled = retry_once(|| self.msr.wrmsr(global.control, control));
        if enabled.is_err() {
            for slot in &self.memory.slots {
                slot.store(SlotState::Faulted);
            }
        }
        outcome.and(acknowledged).and(enabled)
    }

    fn restart_timer(&mut self) -> Result<(), InterfaceError> {
        if self.timer_running {
            let timer = self.apply_interval(KProfileSource::TIME);
            self.timer_running = timer.is_ok();
            timer?;
        }
        Ok(())
    }
}
