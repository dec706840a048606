//! The state of a virtual processor.

use std::sync::Arc;

use kvm_bindings::CpuId;
use kvm_ioctls::VcpuFd;
use pmu_virt::VirtualPmu;

use crate::count::handler::Handler;
use crate::count::source::Source;
use crate::guest_pmu::deviating::Deviating;
use crate::guest_pmu::facilities::Facilities;
use crate::guest_pmu::inverted::Inverted;
use crate::processor::extended_entries::ExtendedEntries;
use crate::shared::machine::Machine;
use crate::stats::Stats;

/// One virtual processor.
pub(crate) struct Processor {
    pub(crate) number: u8,
    pub(crate) machine: Arc<Machine>,
    pub(crate) vcpu: VcpuFd,
    /// CPUID as the guest sees it.
    pub(crate) seen: CpuId,
    pub(crate) pmu: VirtualPmu,
    pub(crate) facilities: Facilities,
    pub(crate) extended_entries: ExtendedEntries,
    pub(crate) source: Box<dyn Source>,
    /// The handler of an NMI that is counted for the trace.
    pub(crate) handler: Handler,
    pub(crate) debugging: Debugging,
    pub(crate) stats: Stats,
    /// The monitor has said that an RDPMC overwrote a frame of the guest.
    pub(crate) told_overwritten: bool,
    pub(crate) inverted: Option<Inverted>,
    pub(crate) deviating: Deviating,
}

/// Debugging state that was passed to KVM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Debugging {
    /// Address of the guest's #GP handler: see [`rdpmc`](crate::emulation::rdpmc).
    pub(crate) breakpoint: Option<u64>,
    /// Address of the guest's #DB handler, where kvm-pvm takes the steps of ring 3: see [`pvm`](crate::emulation::pvm).
    pub(crate) trap: Option<u64>,
    /// Address of the guest's #PF handler, where kvm-pvm leaves SYSCALL unfinished: see
    /// [`SystemCall`](crate::emulation::pvm::SystemCall).
    pub(crate) page_fault: Option<u64>,
    /// Address of the guest's function that writes the local APIC, where writes are traced.
    pub(crate) apic_writer: Option<u64>,
    /// A breakpoint was hit and its handler runs next: one instruction without breakpoints.
    pub(crate) passing: bool,
    pub(crate) step: bool,
    /// A step in ring 3 ended for another reason, and kvm-pvm still raises the step's own #DB.
    pub(crate) owes_trap: bool,
}
