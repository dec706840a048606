//! KVM's virtual processor, where KVM's own calls are not enough.
//!
//! CPUID for the PMU, registers that are intercepted, kicks, INIT and RESET.

pub(crate) mod guest_cpuid;
pub(crate) mod init;
pub(crate) mod kick;
pub(crate) mod msr;
pub(crate) mod power_up;
