//! RESET of one processor, as if its power went off and on, while the others continue.
//!
//! KVM has no such operation, so the monitor keeps the state in which KVM created the processor, and writes it back.

use kvm_bindings::{
    KVM_MP_STATE_UNINITIALIZED, kvm_debugregs, kvm_fpu, kvm_lapic_state, kvm_mp_state, kvm_regs,
    kvm_sregs, kvm_vcpu_events,
};
use kvm_ioctls::VcpuFd;

use crate::error::Error;
use crate::guest;
use crate::vcpu::msr;

/// IA32_TIME_STAMP_COUNTER, IA32_TSC_ADJUST and IA32_TSC_DEADLINE: the processors' clocks stay in step.
const CLOCK: [u32; 3] = [0x10, 0x3B, 0x6E0];

/// A processor's state when its power came on.
pub(crate) struct PowerUp {
    registers: kvm_regs,
    system: kvm_sregs,
    floating_point: kvm_fpu,
    debug: kvm_debugregs,
    events: kvm_vcpu_events,
    apic: kvm_lapic_state,
    /// Model-specific registers, by number.
    model_specific: Vec<(u32, u64)>,
}

impl PowerUp {
    /// Takes the state of a processor that never ran; `list` has the numbers of KVM's model-specific registers.
    pub(crate) fn of(vcpu: &VcpuFd, list: &[u32]) -> Result<Self, Error> {
        let value = |number: &u32| Some((*number, msr::read_all(vcpu, [*number])?[0]));
        Ok(Self {
            registers: vcpu.get_regs().map_err(Error::kvm("KVM_GET_REGS"))?,
            system: vcpu.get_sregs().map_err(Error::kvm("KVM_GET_SREGS"))?,
            floating_point: vcpu.get_fpu().map_err(Error::kvm("KVM_GET_FPU"))?,
            debug: vcpu.get_debug_regs().map_err(Error::kvm("KVM_GET_DEBUGREGS"))?,
            events: vcpu.get_vcpu_events().map_err(Error::kvm("KVM_GET_VCPU_EVENTS"))?,
            apic: vcpu.get_lapic().map_err(Error::kvm("KVM_GET_LAPIC"))?,
            model_specific: list
                .iter()
                .filter(|number| !CLOCK.contains(number))
                .filter_map(value)
                .collect(),
        })
    }

    /// Gives a processor this state. It then waits for INIT and SIPI.
    pub(crate) fn restore(&self, vcpu: &mut VcpuFd) -> Result<(), Error> {
        for (number, value) in &self.model_specific {
            // Only what changed: some registers can be read and not written.
            if msr::read_all(vcpu, [*number]) != Some([*value]) {
                msr::write_any(vcpu, *number, *value);
            }
        }
        guest::set_registers(vcpu, self.registers, self.system)?;
        vcpu.set_fpu(&self.floating_point).map_err(Error::kvm("KVM_SET_FPU"))?;
        vcpu.set_debug_regs(&self.debug).map_err(Error::kvm("KVM_SET_DEBUGREGS"))?;
        vcpu.set_lapic(&self.apic).map_err(Error::kvm("KVM_SET_LAPIC"))?;
        vcpu.set_vcpu_events(&self.events).map_err(Error::kvm("KVM_SET_VCPU_EVENTS"))?;
        let waiting = kvm_mp_state { mp_state: KVM_MP_STATE_UNINITIALIZED };
        vcpu.set_mp_state(waiting).map_err(Error::kvm("KVM_SET_MP_STATE"))
    }
}
