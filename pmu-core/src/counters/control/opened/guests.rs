//! Events confined to guests, or to the host, by Intel's VM entry and exit, and by AMD's select bits.

use core::sync::atomic::Ordering::Relaxed;

use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::events::event::GuestMode;
use crate::counters::shared::entry::EventEntry;
use crate::counters::shared::memory::CounterMemory;
use crate::counters::shared::slot::SlotState;
use crate::platform::Hardware;
use crate::profile::event_source::EventSource;

impl<S: EventSource, H: Hardware> CounterSession<'_, S, H> {
    /// Declares whether the processor's virtualization is on. On AMD, virtualization is on while `EFER.SVME` is set. On
    /// Intel, it is on in VMX operation. Call this after switching virtualization on, and before switching
    /// virtualization off. While virtualization is off, events that are confined to [guests](crate::Event::in_guests)
    /// count nothing. On AMD, the select bits that confine an event to guests or to the host are then clear.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventSource, Hardware};
    /// # use pmu_core::error::CounterError;
    /// # fn set_svme(_: bool) {}
    /// /// Ends the use of SVM on this processor, and with it the counting in guests.
    /// fn disable_svm<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    /// ) -> Result<(), CounterError> {
    ///     counters.set_virtualization(false)?;
    ///     set_svme(false);
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`StateUnknown`](CounterError::StateUnknown): the counter's event does not run.
    pub fn set_virtualization(&mut self, on: bool) -> Result<(), CounterError> {
        if self.table().virtualization() == on || !self.is_open() {
            return Ok(());
        }
        // Before the selects are written: their bits depend on it.
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
                outcome = outcome.and(Err(CounterError::StateUnknown(fault)));
            }
        }
        outcome
    }
}

/// Two values of the global control register: one while a guest runs, and one while the host runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct GuestControl {
    /// Value that VM entry loads into the global control register.
    pub guest: u64,
    /// Value that VM exit loads into the global control register. Before VM entry, the register already has this value.
    pub host: u64,
}

/// Returns the values of `IA32_PERF_GLOBAL_CTRL` that VM entry and VM exit must load on Intel's processors. These
/// values confine events to guests ([`Event::in_guests`](crate::Event::in_guests)) or to the host
/// ([`Event::outside_guests`](crate::Event::outside_guests)). No register is accessed.
///
/// The hypervisor calls this function before each VM entry. Between this call and the VM entry, the processor's session
/// must not start, stop or move an event, because each such operation can change the values. The hypervisor passes both
/// values to the processor in one of two ways:
/// - In the VMCS. The guest's value goes into the guest-state field (encoding 0x2808), with the VM-entry control "load
///   `IA32_PERF_GLOBAL_CTRL`" (bit 13). The host's value goes into the host-state field (encoding 0x2C04), with the
///   VM-exit control of the same name (bit 12).
/// - In the MSR lists, as entries for MSR 0x38F. The guest's value goes into the VM-entry MSR-load area, and the host's
///   value into the VM-exit MSR-load area. Use the MSR lists if `IA32_VMX_ENTRY_CTLS` or `IA32_VMX_EXIT_CTLS` does not
///   allow one of the two controls. On Nehalem and Westmere, always use the MSR lists, because the controls have errata
///   (AAK155, AAP115, AAT100, BC86, BD102).
///
/// Without these values, an event that is confined to the host also counts in guests, and an event that is confined to
/// guests counts nothing. Before the first VM entry, call
/// [`set_virtualization`](crate::CounterSession::set_virtualization).
///
/// A [precise](crate::Event::precise) event counts nothing in guests: the processor would write its records to the
/// guest's memory.
///
/// If there is nothing to load, the result is `None`. There is nothing to load if one of these conditions holds:
/// - The processor has no global control register, or confines events by their select, as AMD's processors do.
/// - No session has taken the processor's counters.
/// - The session's counters are [lent](crate::CounterSession::lend). The guest then runs with its own value of
///   `IA32_PERF_GLOBAL_CTRL`. The host's value is
///   [`LentCounters::global_control`](crate::lending::LentCounters::global_control).
///
/// Source: SDM vol. 3C, "VM-Entry Controls", "VM-Exit Controls" and "Field Encoding in VMCS".
///
/// ```
/// use pmu_core::EventSource;
/// use pmu_core::lending::{GuestControl, guest_control};
/// use pmu_core::memory::CounterMemory;
/// # fn vmwrite(_field: u32, _value: u64) {}
/// const GUEST_PERF_GLOBAL_CTRL: u32 = 0x2808;
/// const HOST_PERF_GLOBAL_CTRL: u32 = 0x2C04;
/// /// Prepares VM entry, with interrupts off. Both controls are set in the VMCS.
/// fn before_entry(source: &impl EventSource, memory: &CounterMemory) {
///     if let Some(GuestControl { guest, host }) = guest_control(source, memory) {
///         vmwrite(GUEST_PERF_GLOBAL_CTRL, guest);
///         vmwrite(HOST_PERF_GLOBAL_CTRL, host);
///     }
/// }
/// # let _ = |source: &pmu_core::Events<'_>, memory: &CounterMemory| before_entry(source, memory);
/// ```
///
/// # Context
/// Task or interrupt, on the processor of `memory`. No operation of this processor's session is in progress.
pub fn guest_control(source: &impl EventSource, memory: &CounterMemory) -> Option<GuestControl> {
    let unit = source.unit();
    let own = memory.verified(unit.counters());
    if unit.global().is_none() || !unit.has_guests_by_control() || own.is_empty() {
        return None;
    }
    let host = memory.global_control.load(Relaxed);
    let mut guest = host;
    for counter in own.iter() {
        let bit = counter.only().bits();
        let event = match memory.slot(counter).map(|slot| slot.load()) {
            Some(SlotState::Running { event, .. }) => event,
            // It may run with records, which the processor would write to the guest's memory.
            Some(SlotState::Faulted) => {
                guest &= !bit;
                continue;
            }
            _ => continue,
        };
        let entry = source.opened().entry(event);
        guest = match entry.map(|entry| entry.guest_mode()) {
            // Its records, too.
            _ if entry.is_some_and(EventEntry::is_precise) => guest & !bit,
            Some(GuestMode::GuestOnly) => guest | bit,
            Some(GuestMode::HostOnly) => guest & !bit,
            Some(GuestMode::Everywhere) | None => guest,
        };
    }
    Some(GuestControl { guest, host })
}
