//! Detection of a processor's INIT, which KVM does not report: it resets the registers and continues.
//!
//! KVM then clears, among others, the vector of its own interrupt for asynchronous page faults, which is unused while
//! those are off. The monitor keeps a number there; the guest cannot access it.

use kvm_ioctls::VcpuFd;

use crate::vcpu::msr::{self, MARKED};

/// The vector that the monitor keeps in bits 7:0.
const MARK: u64 = 0xFF;

/// Watches the processor from now on. Returns whether KVM has the register.
pub(crate) fn mark(vcpu: &VcpuFd) -> bool {
    msr::write_any(vcpu, MARKED, MARK).is_some()
}

/// Returns whether the processor went through INIT since it was marked, and marks it again.
pub(crate) fn happened(vcpu: &VcpuFd) -> bool {
    msr::read_all(vcpu, [MARKED]) == Some([0]) && mark(vcpu)
}
