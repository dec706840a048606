//! Detection of a processor's INIT, which KVM does not report: it resets the registers and continues.
//!
//! KVM then clears, among others, the vector of its own interrupt for asynchronous page faults, which is unused while
//! those are off. The monitor keeps a number there; the guest cannot access it.

use kvm_ioctls::VcpuFd;

use crate::msr;

/// Documentation/virt/kvm/x86/msr.rst, MSR_KVM_ASYNC_PF_INT: bits 7:0, a vector.
pub(crate) const MARKED: u32 = 0x4B56_4D06;
const MARK: u64 = 0xFF;

/// Watches the processor from now on. Returns whether KVM has the register.
pub(crate) fn mark(vcpu: &VcpuFd) -> bool {
    msr::write_any(vcpu, MARKED, MARK).is_some()
}

/// Returns whether the processor went through INIT since it was marked, and marks it again.
pub(crate) fn happened(vcpu: &VcpuFd) -> bool {
    msr::read_all(vcpu, [MARKED]) == Some([0]) && mark(vcpu)
}
