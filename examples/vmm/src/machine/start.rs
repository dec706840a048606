//! The start of the first processor.

use kvm_bindings::{kvm_regs, kvm_segment};
use kvm_ioctls::VcpuFd;

use crate::boot::layout;
use crate::boot::parts::Start;
use crate::error::Error;
use crate::guest;

/// Sets the first processor's registers as the boot protocol requires.
pub(crate) fn set_start(vcpu: &VcpuFd, start: Start, x2apic: bool) -> Result<(), Error> {
    /// IA32_APIC_BASE: enabled, and in x2APIC mode.
    const X2APIC: u64 = 1 << 11 | 1 << 10;
    const CR0_PE: u64 = 1;
    const CR0_ET: u64 = 1 << 4;
    const CR0_PG: u64 = 1 << 31;
    const CR4_PAE: u64 = 1 << 5;
    const EFER_LME_LMA: u64 = 1 << 8 | 1 << 10;
    // Flat segments of 4 GiB, in ring 0, accessed: code and data of 32 bits, code of 64, a busy TSS.
    let flat = |selector, descriptor| guest::segment(selector, descriptor);
    let data = flat(0x18, 0x00CF_9300_0000_FFFF);
    let task = kvm_segment { limit: 0x67, ..flat(0, 0x0000_8B00_0000_0067) };

    let mut system = vcpu.get_sregs().map_err(Error::kvm("KVM_GET_SREGS"))?;
    if x2apic {
        system.apic_base |= X2APIC;
    }
    system.cr0 = CR0_PE | CR0_ET;
    system.cs = flat(0x10, 0x00CF_9B00_0000_FFFF);
    (system.ds, system.es, system.fs, system.gs, system.ss) = (data, data, data, data, data);
    system.tr = task;
    let mut registers = kvm_regs { rflags: 0b10, ..Default::default() };
    match start {
        Start::Protected { eip, eax, ebx } => {
            (registers.rip, registers.rax, registers.rbx) = (eip.into(), eax.into(), ebx.into());
        }
        Start::Long { rip, rsi } => {
            system.cs = flat(0x10, 0x00AF_9B00_0000_FFFF);
            system.gdt.base = layout::GDT;
            system.gdt.limit = 4 * 8 - 1;
            system.cr3 = layout::PAGE_TABLES;
            system.cr4 |= CR4_PAE;
            system.cr0 |= CR0_PG;
            system.efer = EFER_LME_LMA;
            (registers.rip, registers.rsi) = (rip, rsi);
        }
    }
    vcpu.set_sregs(&system).map_err(Error::kvm("KVM_SET_SREGS"))?;
    vcpu.set_regs(&registers).map_err(Error::kvm("KVM_SET_REGS"))
}
