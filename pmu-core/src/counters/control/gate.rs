//! The global control register as a gate: one write stops several counters, and another write resumes these counters.

use core::sync::atomic::Ordering::Relaxed;

use crate::access::backend::{AccessFault, RegisterAccess, RegisterBackend};
use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::facility::Facility;
use crate::counters::names::{CounterId, CounterSet};
use crate::counters::registers::counter::CounterControl;
use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::entry::EventEntry;
use crate::counters::shared::slot::{CounterSlot, SlotState};
use crate::platform::Hardware;
use crate::profile::event_source::{EventSource, opens_events};

impl<S: EventSource, H: Hardware> CounterSession<'_, S, H> {
    /// Stops these counters by the global control register, if there is one.
    #[inline(never)] // 64 bytes of the glue.
    pub(crate) fn pause(&self, counters: CounterSet) -> Result<(), CounterError> {
        let bits = self.global_bits(counters);
        match self.unit().global().filter(|_| bits != 0) {
            Some(global) => self.change_global(global, (bits, 0)),
            None => Ok(()),
        }
    }

    /// Resumes those of these counters that are stopped. If that fails, they are presumed running.
    pub(crate) fn unpause(&self, counters: CounterSet) -> Result<(), CounterError> {
        let counters = self.outside_guests(counters);
        self.set_global_enable(counters).map_err(|error| {
            for (_, slot) in self.slots_of(counters) {
                if let Some(event) = slot.running() {
                    self.memory.mark_faulted(Some(event), self.table());
                }
            }
            error.faulted()
        })
    }

    /// Stops the free counters and those that run for rows, by the global control register.
    /// Returns `false` if there is no such register.
    pub(crate) fn clear_global_enable(&self) -> Result<bool, CounterError> {
        let Some(global) = self.unit().global().filter(|_| self.is_open()) else {
            return Ok(false);
        };
        let gated = self.global_bits(self.not_faulted().without(self.of_opened_events()));
        self.change_global(global, (gated, 0)).map(|()| true)
    }

    /// Returns the counters that run for opened events.
    fn of_opened_events(&self) -> CounterSet {
        if !opens_events(&self.source) {
            return CounterSet::NONE;
        }
        let opened = self.slots().filter(|(_, slot)| match slot.load() {
            SlotState::Running { event, .. } => event.row().is_none(),
            _ => false,
        });
        opened.map(|(counter, _)| counter).collect()
    }

    /// Resumes these counters if some are stopped: by [`clear_global_enable`](Self::clear_global_enable), by
    /// [`pause`](Self::pause), or by an interrupt that could not restart them.
    pub(crate) fn set_global_enable(&self, counters: CounterSet) -> Result<(), CounterError> {
        // One whose registers did not answer may have those of a plain event and of records at once.
        let counters = match S::Facility::RECORDS {
            true => counters.retain(|counter| !self.is_faulted(counter)),
            false => counters,
        };
        let own = self.global_bits(counters);
        let closed = self.memory.global_control.load(Relaxed);
        match self.unit().global().filter(|_| closed & own != own) {
            Some(global) => self.change_global(global, (0, own)),
            None => Ok(()),
        }
    }

    /// Returns whether the global control register stops a counter that its own control enables.
    pub(crate) fn is_gated(&self, counter: CounterId) -> bool {
        // A sampling unit has no bit in the global control register.
        if S::Facility::UNITS && !self.units_of(counter.only()).is_empty() {
            return false;
        }
        let enabled = self.memory.global_control.load(Relaxed);
        self.unit().global().is_some() && enabled & counter.only().bits() == 0
    }

    /// Returns these counters except those that run for events of guests, by the guests' value of the global control
    /// register: in the host's value their bits stay clear.
    #[inline(never)] // 32 bytes of the glue, at `opt-level` 3.
    pub(crate) fn outside_guests(&self, counters: CounterSet) -> CounterSet {
        let in_guests = |counter| {
            let event = self.slot(counter).and_then(CounterSlot::running);
            event.and_then(|event| self.table().entry(event)).is_some_and(EventEntry::is_of_guests)
        };
        if opens_events(&self.source) {
            counters.retain(|counter| !in_guests(counter))
        } else {
            counters
        }
    }

    /// Prepares a session whose counters were saved for starting others: no counter is parked, and the global control
    /// register enables these counters.
    pub(crate) fn unpark_all(&self, open: CounterSet) -> Result<(), CounterError> {
        // Only rows' counters are saved: for a source without rows, this is not linked.
        let parked = if self.source.table_id() == 0 { CounterSet::NONE } else { self.own() };
        for (counter, slot) in self.slots_of(parked) {
            if let SlotState::Parked { .. } = slot.load() {
                let registers = self.registers(counter);
                self.set_control(&registers, 0).map_err(CounterError::Unchanged)?;
                slot.store(SlotState::Free);
            }
        }
        self.set_global_enable(open)
    }

    /// Makes the processor freeze all its counters at each performance interrupt. [`service`](crate::service()) ends
    /// the freeze when it acknowledges the overflow. While the counters are frozen, they do not count events that the
    /// interrupt handler itself causes. Servicing an interrupt also needs fewer register accesses.
    ///
    /// **Every** counter of the processor is frozen, including counters of other owners. From the interrupt until the
    /// acknowledgement, no counter of the processor counts.
    ///
    /// Call this before the first event is enabled, and before a performance interrupt can come.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventSource, Hardware};
    /// # use pmu_core::error::CounterError;
    /// /// Freezes the counters in interrupts if the processor can, and returns whether it can.
    /// fn freeze<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    /// ) -> Result<bool, CounterError> {
    ///     match counters.freeze_on_interrupt() {
    ///         Err(CounterError::FreezeUnsupported) => Ok(false),
    ///         frozen => frozen.map(|()| true),
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`FreezeUnsupported`](CounterError::FreezeUnsupported): the processor cannot freeze its counters, or the
    ///   freeze bit reads back 0 after it was set.
    /// - [`Unchanged`](CounterError::Unchanged): if the freeze bit was set and cannot be cleared, the counters freeze
    ///   all the same, and [`shut_down`](Self::shut_down) clears the bit.
    pub fn freeze_on_interrupt(&mut self) -> Result<(), CounterError> {
        let freeze = self.unit().global().and_then(|global| global.freeze);
        let freeze = freeze.filter(|_| self.is_open()).ok_or(CounterError::FreezeUnsupported)?;
        let freezes = &self.memory.freezes;
        // The interrupt path is told first: otherwise an interrupt would leave the counters frozen.
        if freezes.swap(true, Relaxed) {
            return Ok(());
        }
        let mut stays = false;
        let set = self.hardware.update_retrying(freeze.set_to(freeze.bits())).and_then(|before| {
            // Read back: a hypervisor may accept the write and drop the bit.
            let kept = self.hardware.update_retrying(freeze.read()).inspect_err(|_| {
                stays = before & freeze.bits() == 0
                    && self.hardware.update_retrying(freeze.set_to(0)).is_err();
            })?;
            Ok((before, kept))
        });
        match set {
            Ok((before, kept)) if kept & freeze.bits() != 0 => {
                self.memory.froze_before.store(before & freeze.bits() != 0, Relaxed);
                Ok(())
            }
            Ok(_) => {
                freezes.store(false, Relaxed);
                Err(CounterError::FreezeUnsupported)
            }
            Err(fault) => {
                // A bit that was written and cannot be cleared freezes the counters. The shut-down clears it.
                self.memory.froze_before.store(false, Relaxed);
                freezes.store(stays, Relaxed);
                Err(CounterError::Unchanged(fault))
            }
        }
    }

    /// Restores the freeze bit as it was found, and leaves the register's other bits.
    pub(crate) fn stop_freezing(&mut self) -> Result<(), AccessFault> {
        let freeze = self.unit().global().and_then(|global| global.freeze);
        let Some(freeze) = freeze.filter(|_| self.memory.freezes.load(Relaxed)) else {
            return Ok(());
        };
        let before = if self.memory.froze_before.load(Relaxed) { freeze.bits() } else { 0 };
        self.hardware.update_retrying(freeze.set_to(before))?;
        self.memory.freezes.store(false, Relaxed);
        Ok(())
    }
}

/// Stops every counter of the processor that executes the call, regardless of its owner, and cancels pending
/// interrupts.
///
/// The call clears the global control register, each event select, the fixed counters' control register, and the
/// overflow status. The counters' values stay unchanged, and so do the
/// [`UnusedRegisters`](crate::registers::UnusedRegisters). To clear the unused registers, call
/// [`clear`](crate::registers::UnusedRegisters::clear).
///
/// The call needs no session, and does not end sessions. After this call, use this processor's sessions only for
/// [`reprogram`](crate::CounterSession::reprogram), which starts the sessions' events again. A performance interrupt
/// may still come after this call. If its handler calls [`service`](crate::service), `service` may write the global
/// control register once more. Each counter's own control bits stay clear, so no counter counts.
///
/// # Context
/// Any: task, interrupt, NMI, panic handler.
///
/// # Errors
/// A failed access is retried once. The error is the first access whose retry also failed. The remaining accesses are
/// still attempted.
///
/// ```
/// # use pmu_core::CounterUnit;
/// # use pmu_core::access::RegisterBackend;
/// fn before_kexec(unit: &CounterUnit, msr: &impl RegisterBackend) {
///     // A register that does not answer does not keep the next kernel from starting.
///     let _ = pmu_core::registers::stop_all(unit, msr);
/// }
/// ```
pub fn stop_all(unit: &CounterUnit, msr: &impl RegisterBackend) -> Result<(), AccessFault> {
    let mut outcome = Ok(());
    let mut clear = |register| {
        outcome = outcome.and(msr.write_retrying(register, 0));
    };
    // First: this one write stops all counters, so that none overflows while the others are cleared.
    if let Some(global) = unit.global() {
        clear(global.control);
    }
    for (_, counter) in unit.iter() {
        if let CounterControl::Select(select) = counter.control() {
            clear(select);
        }
    }
    if !(unit.counters() & CounterSet::FIXED).is_empty() {
        clear(unit.fixed_control());
    }
    if let Some(global) = unit.global() {
        let acknowledge = |bits| msr.write_retrying(global.acknowledge, bits);
        let own = unit.counters().bits() | global.frozen;
        let pending = || msr.read_retrying(global.status);
        outcome = outcome.and(pending().and_then(|status| match status {
            0 => Ok(()),
            // Buffers' bits too; a processor may have some that it does not let software clear.
            _ => acknowledge(status).or_else(|_| acknowledge(status & own)),
        }));
        // Zhaoxin's ZX-C takes an acknowledgement only while counters are enabled here: their own controls are clear.
        let left = pending().map_or(0, |status| status & unit.counters().bits());
        if left != 0 && outcome.is_ok() {
            outcome = msr.write_retrying(global.control, left).and_then(|()| acknowledge(left));
            outcome = msr.write_retrying(global.control, 0).and(outcome);
        }
    }
    outcome
}
