//! Freezing on the performance interrupt.

use core::sync::atomic::Ordering::Relaxed;

use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::hooks::event_source::EventSource;
use crate::msr::access::MsrAccess;
use crate::msr::backend::MsrBackend;
use crate::msr::fault::MsrFault;
use crate::platform::Platform;

impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    /// Makes the processor freeze all its counters at each performance interrupt. [`service`](crate::service()) ends
    /// the freeze when it acknowledges the overflow. While the counters are frozen, they do not count events that the
    /// interrupt handler itself causes. Servicing an interrupt also needs fewer register accesses.
    ///
    /// **Every** counter of the processor is frozen, including counters of other owners. From the interrupt until the
    /// acknowledgement, no counter of the processor counts.
    ///
    /// Call this before the first event is started, and before a performance interrupt can come.
    ///
    /// ```
    /// # use pmu_core::{CounterError, CounterSession, EventSource, Platform};
    /// # use pmu_core::msr::MsrBackend;
    /// /// Freezes the counters in interrupts if the processor can, and returns whether it can.
    /// fn freeze<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
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
    /// - [`Access`](CounterError::Access): a register access failed. If the freeze bit was set and cannot be cleared,
    ///   the counters freeze all the same, and [`shut_down`](Self::shut_down) clears the bit.
    pub fn freeze_on_interrupt(&mut self) -> Result<(), CounterError> {
        let freeze = self.unit().global().and_then(|global| global.freeze);
        let freeze = freeze.filter(|_| self.is_open()).ok_or(CounterError::FreezeUnsupported)?;
        let freezes = &self.memory.freezes;
        // The interrupt path is told first: otherwise an interrupt would leave the counters frozen.
        if freezes.swap(true, Relaxed) {
            return Ok(());
        }
        let mut stays = false;
        let set = self.msr.update_retrying(freeze.set_to(freeze.bits())).and_then(|before| {
            let kept = self.msr.update_retrying(freeze.read()).inspect_err(|_| {
                stays = before & freeze.bits() == 0
                    && self.msr.update_retrying(freeze.set_to(0)).is_err();
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
                Err(CounterError::Access(fault))
            }
        }
    }

    /// Restores the freeze bit as it was found, and leaves the register's other bits.
    pub(crate) fn stop_freezing(&mut self) -> Result<(), MsrFault> {
        let freeze = self.unit().global().and_then(|global| global.freeze);
        let Some(freeze) = freeze.filter(|_| self.memory.freezes.load(Relaxed)) else {
            return Ok(());
        };
        let before = if self.memory.froze_before.load(Relaxed) { freeze.bits() } else { 0 };
        self.msr.update_retrying(freeze.set_to(before))?;
        self.memory.freezes.store(false, Relaxed);
        Ok(())
    }
}
