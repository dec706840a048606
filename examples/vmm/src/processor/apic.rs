//! The local APIC's LVTPC, in KVM's interrupt controller.

use kvm_bindings::{kvm_lapic_state, kvm_msi};
use kvm_ioctls::VcpuFd;
use pmu_virt::{Delivery, PerformanceEntry};

use crate::shared::machine::Machine;

/// SDM vol. 3A, table "Local APIC Register Address Map".
const LVTPC: usize = 0x340;
const MASKED: u32 = 1 << 16;

/// The local APIC of one virtual processor.
pub(crate) struct LocalApic<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) vcpu: &'a VcpuFd,
    pub(crate) id: u8,
    /// KVM refused something: the interrupt is lost.
    pub(crate) error: Option<kvm_ioctls::Error>,
}

impl LocalApic<'_> {
    fn note<T>(&mut self, result: Result<T, kvm_ioctls::Error>) {
        self.error = result.err().or(self.error);
    }
}

impl PerformanceEntry for LocalApic<'_> {
    fn entry(&self) -> u32 {
        // An APIC that cannot be read delivers nothing.
        self.vcpu.get_lapic().map_or(MASKED, |registers| lvtpc(&registers))
    }

    /// Reads all registers again and writes them back: there is no way to change one. An interrupt
    /// that came in between would be lost, so no other processor is in the guest meanwhile.
    fn set_entry(&mut self, entry: u32) {
        let result = self.machine.rendezvous.alone(|| {
            let mut registers = self.vcpu.get_lapic()?;
            let bytes = &mut registers.regs[LVTPC..LVTPC + 4];
            bytes.copy_from_slice(&entry.to_le_bytes().map(|byte| byte as i8));
            self.vcpu.set_lapic(&registers)
        });
        self.note(result);
    }

    fn raise(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::NonMaskable => {
                let result = self.vcpu.nmi();
                self.note(result);
            }
            // A message to this processor alone, as devices send them.
            Delivery::Fixed(vector) => {
                let message = kvm_msi {
                    address_lo: 0xFEE0_0000 | u32::from(self.id) << 12,
                    data: vector.into(),
                    ..Default::default()
                };
                let result = self.machine.vm.signal_msi(message);
                self.note(result);
            }
            // SMI, INIT, ExtINT: no driver uses them, and the monitor does not offer them.
            Delivery::Other(_) => {}
        }
    }
}

fn lvtpc(registers: &kvm_lapic_state) -> u32 {
    let bytes = &registers.regs[LVTPC..LVTPC + 4];
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte as u8))
}
