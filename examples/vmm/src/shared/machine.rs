//! The state that the processors of a machine share.

use core::sync::atomic::{AtomicBool, Ordering};

use kvm_ioctls::VmFd;
use vm_memory::GuestMemoryMmap;

use crate::shared::ports::Ports;
use crate::shared::rendezvous::Rendezvous;
use crate::shared::report::Report;
use crate::trace::Trace;

/// State that the processors share.
pub(crate) struct Machine {
    pub(crate) vm: VmFd,
    pub(crate) memory: GuestMemoryMmap,
    pub(crate) ports: Ports,
    /// The guest has a PMU.
    pub(crate) has_pmu: bool,
    /// The host's KVM is kvm-pvm.
    pub(crate) kvm_pvm: bool,
    /// The numbers of KVM's model-specific registers.
    pub(crate) registers: Vec<u32>,
    /// The processors that are in the guest.
    pub(crate) rendezvous: Rendezvous,
    pub(crate) stopping: AtomicBool,
    pub(crate) reports: Vec<Report>,
    pub(crate) trace: Option<Trace>,
}

impl Machine {
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    pub(crate) fn processors(&self) -> usize {
        self.reports.len()
    }

    /// Records whether a processor is parked.
    pub(crate) fn report(&self, number: u8, parked: bool) {
        if let Some(report) = self.reports.get(usize::from(number)) {
            report.answer(parked);
        }
    }
}
