//! INIT of one processor, of which KVM does not tell: it resets the registers and goes on.
//!
//! Among what KVM clears then is the vector of its own interrupt for asynchronous page faults, which means nothing
//! while those are off. The monitor keeps a number there, and the guest cannot reach it.

use kvm_ioctls::VcpuFd;

use crate::msr;

/// Documentation/virt/kvm/x86/msr.rst, MSR_KVM_ASYNC_PF_INT: bits 7:0, a vector.
pub(crate) const MARKED: u32 = 0x4B56_4D06;
const MARK: u64 = 0xFF;

/// The processor is watched from now on. Whether KVM has the register.
pub(crate) fn mark(vcpu: &VcpuFd) -> bool {
    msr::write_any(vcpu, MARKED, MARK).is_some()
}

/// Whether the processor went through INIT since it was marked. It is marked again.
pub(crate) fn happened(vcpu: &VcpuFd) -> bool {
    msr::read_all(vcpu, [MARKED]) == Some([0]) && mark(vcpu)
}
