//! RDMSR and WRMSR of the guest: the PMU's answer, with the processor's part of shared registers.

use pmu_virt::{Read, Write};

use crate::guest_pmu::inverted::Inverted;
use crate::processor::state::Processor;
use crate::stats::Register;
use crate::vcpu::msr;

impl Processor {
    /// Executes RDMSR. `None`: #GP.
    pub(crate) fn read(&mut self, address: u32) -> Option<u64> {
        let value = match self.pmu.read_beside(&self.facilities, address) {
            Read::Value(value) => Some(value),
            Read::Shared { value, mask } => {
                msr::read(&self.vcpu, address).map(|own| own & !mask | value)
            }
            Read::GeneralProtection => None,
            Read::Unhandled if self.has_extended_entries() => {
                self.extended_entries.read(address).or_else(|| msr::read(&self.vcpu, address))
            }
            Read::Unhandled => msr::read(&self.vcpu, address),
        };
        let value = value.map(|value| value ^ Inverted::bit_of(self.inverted, address));
        self.deviating.read(address, value)
    }

    /// Executes WRMSR. `None`: #GP, and nothing was changed.
    pub(crate) fn write(&mut self, address: u32, mut value: u64) -> Option<()> {
        if let Some(answer) = self.deviating.write(address, &mut value) {
            return answer;
        }
        // The processor's part of a shared register comes first, since it can be undone.
        let before = match self.pmu.read_beside(&self.facilities, address) {
            Read::Shared { mask, .. } => {
                let before = msr::read(&self.vcpu, address)?;
                msr::write(&self.vcpu, address, before & mask | value & !mask)?;
                Some(before)
            }
            _ => None,
        };
        match self.pmu.write_beside(&mut self.facilities, address, value).answer {
            Write::Done | Write::Shared { .. } => Some(()),
            Write::Unhandled if self.has_extended_entries() => {
                let written = self.extended_entries.write(address, value);
                written.or_else(|| msr::write(&self.vcpu, address, value))
            }
            Write::Unhandled => msr::write(&self.vcpu, address, value),
            Write::GeneralProtection => {
                msr::write(&self.vcpu, address, before?)?;
                None
            }
        }
    }

    /// Returns whether the guest can access extended entries of the local vector table.
    pub(crate) fn has_extended_entries(&self) -> bool {
        /// IA32_APIC_BASE.EXTD.
        const X2APIC: u64 = 1 << 10;
        self.facilities.1.0.is_some() && self.vcpu.sync_regs().sregs.apic_base & X2APIC != 0
    }

    /// Answers an RDMSR with its value, or a WRMSR with any `Some`; `None`: #GP.
    pub(crate) fn answer(&mut self, value: Option<u64>) {
        let run = self.vcpu.get_kvm_run();
        // SAFETY: the last exit was KVM_EXIT_X86_RDMSR or KVM_EXIT_X86_WRMSR, for which KVM reads
        // this part of the union.
        let msr = unsafe { &mut run.__bindgen_anon_1.msr };
        msr.error = value.is_none().into();
        msr.data = value.unwrap_or(msr.data);
    }
}

/// Names a register of the PMU in the statistics.
pub(crate) fn named(address: u32) -> Register {
    if msr::is_intercepted(address) { Register::Number(address) } else { Register::Other }
}
