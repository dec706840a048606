//! A guest's state while it is on the counters.

use pmu_core::lending::LentCounters;

use crate::mediated::error::MediationError;
use crate::mediated::interrupts::GuestInterrupts;
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::registers::counters::Counters;

/// Proof that a guest's state is in the real counters. [`HostCounters::put`](crate::mediated::HostCounters::put) saves
/// the state, and consumes this value. The value borrows the lent counters, so the host cannot take the counters back
/// while the value exists.
///
/// If the value is dropped without a call of `put`, the state in the real counters is lost, and the guest keeps the
/// state from before the load. The end of the host's [window](pmu_core::lending::CounterWindow) then disarms the
/// counters.
#[derive(Debug)]
#[must_use = "the guest's state is on the counters until it is put back"]
pub struct Loaded<'w> {
    pub(super) lent: &'w mut LentCounters,
    pub(super) interrupts: &'w GuestInterrupts,
    /// Number of the load, which the guest has, too.
    pub(super) number: u64,
    pub(super) global_control: u64,
    pub(super) debug_control: u64,
    /// The general counters whose selects were written with a bit set. The first fixed counter's bit stands for the
    /// fixed counters' control.
    pub(super) programmed: Counters,
    /// Status bits that are no counter's: the host's, as they were found, and the guest's.
    pub(super) others: [u64; 2],
    /// Counters whose values may be the guest's.
    pub(super) dirty: Counters,
    /// A put has stopped the counters.
    pub(super) stopped: bool,
    /// Result of a put that has saved the guest and then failed at an access, and the status that it found.
    pub(super) saved: Option<(Put, u64)>,
}

impl Loaded<'_> {
    /// Returns the guest's value of `IA32_PERF_GLOBAL_CTRL`. The hypervisor writes the value to the VMCS before the
    /// first entry, and after each intercepted write of the register.
    pub const fn global_control(&self) -> u64 {
        self.global_control
    }

    /// Returns FREEZE_PERFMON_ON_PMI, bit 12 of the guest's `IA32_DEBUGCTL`. No other bit of this register belongs to
    /// the PMU. The hypervisor writes this bit to the VMCS.
    pub const fn debug_control(&self) -> u64 {
        self.debug_control
    }

    /// Tells the lender of the counters which status bits are the guest's alone.
    pub(super) const fn note_status(&mut self) {
        let [hosts, guests] = self.others;
        self.lent.set_status(guests & !hosts);
    }

    /// Checks that this is the load that the guest is in.
    pub(super) fn check<P>(&self, guest: &VirtualPmu<P>) -> Result<(), MediationError> {
        if guest.load.number == self.number { Ok(()) } else { Err(MediationError::NotTheLoaded) }
    }
}

/// Result of [`HostCounters::put`](crate::mediated::HostCounters::put).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Put {
    /// A counter has overflowed, and the processor's interrupt for the overflow has not come yet. `put` has already
    /// made an interrupt for the overflow [pending](VirtualPmu::pmi_pending) in the guest. When the processor's
    /// interrupt comes, [`HostCounters::interrupted`](crate::mediated::HostCounters::interrupted) returns `true`, but
    /// the guest gets no second interrupt.
    pub interrupt_is_coming: bool,
}
