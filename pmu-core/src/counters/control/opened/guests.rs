//! Events confined to guests, or to the host.

use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::events::event::GuestMode;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::shared::entry::EventEntry;
use crate::counters::shared::slot::SlotState;
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    /// Declares whether the processor's virtualization is on. On AMD, virtualization is on while `EFER.SVME` is set. On
    /// Intel, it is on in VMX operation. Call this after switching virtualization on, and before switching
    /// virtualization off. While virtualization is off, events that are confined to [guests](crate::Event::in_guests)
    /// count nothing. On AMD, the select bits that confine an event to guests or to the host are then clear.
    ///
    /// ```
    /// # use pmu_core::{CounterError, CounterSession, EventSource, Platform};
    /// # use pmu_core::msr::MsrBackend;
    /// # fn set_svme(_: bool) {}
    /// /// Ends the use of SVM on this processor, and with it the counting in guests.
    /// fn disable_svm<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
    /// ) -> Result<(), CounterError> {
    ///     counters.set_virtualization(false)?;
    ///     set_svme(false);
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Faulted`](CounterError::Faulted): accesses to a counter's control register failed, and the counter's event
    /// does not run.
    pub fn set_virtualization(&mut self, on: bool) -> Result<(), CounterError> {
        if self.table().virtualization() == on || !self.is_open() {
            return Ok(());
        }
        self.table().set_virtualization(on);
        let mut outcome = Ok(());
        for (counter, slot) in self.slots() {
            let SlotState::Running { event, .. } = slot.load() else { continue };
            let guest = self.table().entry(event).map(EventEntry::guest_mode);
            let Some(GuestMode::GuestOnly | GuestMode::HostOnly) = guest else { continue };
            let registers = self.registers(counter);
            let bits = self.running_bits(&registers, event).unwrap_or(0);
            if let Err(fault) = self.set_control(&registers, bits) {
                self.memory.mark_faulted(Some(event), self.table());
                outcome = outcome.and(Err(CounterError::Faulted(fault)));
            }
        }
        outcome
    }
}
