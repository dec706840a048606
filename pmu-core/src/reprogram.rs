//! Counters whose registers lost their contents: suspend, hibernation, a processor that was offline.

use core::sync::atomic::Ordering;

use crate::counter::{SlotState, counters_in};
use crate::interrupt::service;
use crate::msr::{MsrAccess, retry_once};
use crate::{
    InterfaceError, KProfileSource, MsrBackend, Overflow, Platform, ProfileInterface, Session,
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
        let (lost, mut outcome) = self.stop_lost(own);
        outcome = outcome.and(self.clear_left_over(own, !lost));
        outcome = outcome.and(self.program(lost));
        outcome = outcome.and(self.enable());
        let anew = counters_in(lost).filter(|number| self.runs(*number));
        let anew = anew.fold(0, |anew, number| anew | 1 << number);
        self.memory.publish(own);
        self.platform.unmask_performance_interrupt();
        // The interrupts that came meanwhile were not served.
        let (interface, memory) = (self.interface, self.memory);
        match service(interface, &self.msr, &self.platform, memory, overflowed) {
            Ok(serviced) => memory.expect_late(serviced.overflows),
            Err(fault) => outcome = outcome.and(Err(InterfaceError::Faulted(fault))),
        }
        outcome.and(self.restart_timer()).map(|()| anew)
    }

    /// Stops the counters whose selects do not hold what was written to them, and returns them: nothing of
    /// what firmware left there counts from here on.
    fn stop_lost(&self, own: u64) -> (u64, Result<(), InterfaceError>) {
        let (mut lost, mut outcome) = (0, Ok(()));
        for (number, slot) in (0u8..64).zip(&self.memory.slots) {
            let counter = self.unit().counter(number).filter(|_| own >> number & 1 != 0);
            let Some(counter) = counter else { continue };
            if let SlotState::Running { row, .. } | SlotState::Parked { row } = slot.load()
                && self.holds(&counter, row.into()) == Ok(true)
            {
                continue;
            }
            lost |= 1 << number;
            if let Err(fault) = retry_once(|| self.msr.wrmsr(counter.select_register(), 0)) {
                slot.store(SlotState::Faulted);
                outcome = outcome.and(Err(InterfaceError::Faulted(fault)));
            } else if !matches!(slot.load(), SlotState::Running { .. }) {
                slot.store(SlotState::Free);
            }
        }
        (lost, outcome)
    }

    /// Takes precise sampling away, and acknowledges what is left of other overflows than those of the
    /// counters that `kept` their registers.
    fn clear_left_over(&self, own: u64, kept: u64) -> Result<(), InterfaceError> {
        if let Some(precise) = self.unit().precise().filter(|_| self.precise) {
            for number in counters_in(precise.disable(&self.msr, own)) {
                self.mark_faulted(number);
            }
        }
        let Some(global) = self.unit().global() else { return Ok(()) };
        let control = self.memory.global_control.load(Ordering::Relaxed);
        let left = own & !kept | self.unowned(own, control);
        self.acknowledge(global, left).map(|_| ()).map_err(InterfaceError::Faulted)
    }

    /// Loads these counters, and lets their selects say again what they count.
    fn program(&self, lost: u64) -> Result<(), InterfaceError> {
        let mut outcome = Ok(());
        for number in counters_in(lost) {
            let slot = self.memory.slots.get(usize::from(number));
            let Some((slot, counter)) = slot.zip(self.unit().counter(number)) else { continue };
            let SlotState::Running { row, .. } = slot.load() else { continue };
            let Some(bits) = self.running_bits(row.into()) else { continue };
            let cell = self.interface.interval_cell(row.into());
            let events = cell.map_or(1, |cell| cell.load(Ordering::Relaxed));
            slot.store(SlotState::Running { row, events });
            let preload = counter.preload(events);
            let programmed = retry_once(|| self.msr.wrmsr(counter.value_register(), preload))
                .and_then(|()| retry_once(|| self.msr.wrmsr(counter.select_register(), bits)));
            if let Err(fault) = programmed {
                slot.store(SlotState::Faulted);
                outcome = outcome.and(Err(InterfaceError::Faulted(fault)));
            }
        }
        outcome
    }

    /// Freezing, and last the control register, as they were.
    fn enable(&self) -> Result<(), InterfaceError> {
        let Some(global) = self.unit().global() else { return Ok(()) };
        let mut outcome = Ok(());
        if let Some((freeze, _)) = global.freeze.zip(self.freeze_before) {
            outcome = retry_once(|| self.msr.change(freeze.set(true))).map(|_| ());
        }
        let control = self.memory.global_control.load(Ordering::Relaxed);
        let enabled = retry_once(|| self.msr.wrmsr(global.control, control));
        if enabled.is_err() {
            (0..64).for_each(|number| self.mark_faulted(number));
        }
        outcome.and(enabled).map_err(InterfaceError::Faulted)
    }

    fn mark_faulted(&self, number: u8) {
        if let Some(slot) = self.memory.slots.get(usize::from(number)) {
            slot.store(SlotState::Faulted);
        }
    }

    fn runs(&self, number: u8) -> bool {
        let slot = self.memory.slots.get(usize::from(number));
        slot.is_some_and(|slot| matches!(slot.load(), SlotState::Running { .. }))
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
