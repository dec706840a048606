//! A guest's state while it is on the counters.

use crate::mediated::error::MediationError;
use crate::mediated::interrupts::GuestInterrupts;
use pmu_core::LentCounters;

use crate::pmu::virtual_pmu::VirtualPmu;
use crate::registers::counters::Counters;

/// A guest's state on the counters, until it is [put](crate::HostCounters::put) back. It borrows the lent counters,
/// whose window ends afterwards.
///
/// Dropped, the guest's state is as it was when it was loaded, and the end of the window disarms the counters.
#[derive(Debug)]
#[must_use = "the guest's state is on the counters until it is put back"]
pub struct Loaded<'w> {
    pub(super) lent: &'w mut LentCounters,
    pub(super) interrupts: &'w GuestInterrupts,
    /// Identity of the load, which the guest has, too.
    pub(super) number: u64,
    pub(super) global_control: u64,
    pub(super) debug_control: u64,
    /// The general counters whose selects were written with a bit set; in the first fixed one's place, their control.
    pub(super) programmed: Counters,
    /// The status bits that are no counter's: the host's, as they were found, and the guest's.
    pub(super) others: [u64; 2],
    /// The counters that hold something of the guest's.
    pub(super) dirty: Counters,
    /// A put has stopped the counters.
    pub(super) stopped: bool,
    /// Outcome of a put that has saved the guest, with the status that it found, before an access of it failed.
    pub(super) saved: Option<(Put, u64)>,
}

impl Loaded<'_> {
    /// Returns the global control with which the guest is entered: first, and after an intercepted write of it.
    pub const fn global_control(&self) -> u64 {
        self.global_control
    }

    /// Returns the PMU's bits of the guest's `IA32_DEBUGCTL`: the bit by which an overflow freezes its counters.
    pub const fn debug_control(&self) -> u64 {
        self.debug_control
    }

    /// Tells the lender which status bits are the guest's alone.
    pub(super) const fn note_status(&mut self) {
        let [hosts, guests] = self.others;
        self.lent.set_status(guests & !hosts);
    }

    /// Checks that this is what was loaded of the guest.
    pub(super) fn check<P>(&self, guest: &VirtualPmu<P>) -> Result<(), MediationError> {
        if guest.load.number == self.number { Ok(()) } else { Err(MediationError::NotTheLoaded) }
    }
}

/// The outcome of a [`put`](crate::HostCounters::put).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Put {
    /// A counter overflowed whose interrupt has not come yet. It is now [pending](VirtualPmu::pmi_pending) in the
    /// guest; the processor's own, which still comes, is [claimed](crate::HostCounters::interrupted) and dropped.
    pub interrupt_is_coming: bool,
}
