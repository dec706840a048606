//! The machine and its processors in KVM, before they run.

use core::sync::atomic::AtomicBool;

use kvm_bindings::{
    CpuId, KVM_CAP_PMU_CAPABILITY, KVM_CAP_X86_USER_SPACE_MSR, KVM_MSR_EXIT_REASON_FILTER,
    KVM_MSR_EXIT_REASON_INVAL, KVM_MSR_EXIT_REASON_UNKNOWN, KVM_PIT_SPEAKER_DUMMY,
    KVM_PMU_CAP_DISABLE, kvm_enable_cap, kvm_pit_config, kvm_userspace_memory_region,
};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};
use pmu_virt::configuration::Configuration;
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use crate::boot::image::Image;
use crate::emulation::pvm;
use crate::error::Error;
use crate::guest_pmu::facilities::Facilities;
use crate::options::{Count, Options};
use crate::shared::machine::Machine;
use crate::shared::ports::Ports;
use crate::shared::rendezvous::Rendezvous;
use crate::shared::report::Report;
use crate::trace::Trace;
use crate::vcpu::{guest_cpuid, msr};

/// Creates a machine without processors and with empty memory.
pub(crate) fn machine(
    kvm: &Kvm,
    options: &Options,
    pmu: &Configuration,
    image: &Image<'_>,
) -> Result<Machine, Error> {
    let vm = kvm.create_vm().map_err(Error::kvm("KVM_CREATE_VM"))?;
    // Three pages for Intel's processors without real mode, and one more, below the local APIC.
    vm.set_identity_map_address(0xFFFB_C000).map_err(Error::kvm("KVM_SET_IDENTITY_MAP_ADDR"))?;
    vm.set_tss_address(0xFFFB_D000).map_err(Error::kvm("KVM_SET_TSS_ADDR"))?;
    // KVM's own PMU would answer in place of this one.
    if vm.check_extension_raw(KVM_CAP_PMU_CAPABILITY.into()) & KVM_PMU_CAP_DISABLE as i32 != 0 {
        enable(&vm, KVM_CAP_PMU_CAPABILITY, KVM_PMU_CAP_DISABLE, "KVM_CAP_PMU_CAPABILITY")?;
    }
    let reasons =
        KVM_MSR_EXIT_REASON_FILTER | KVM_MSR_EXIT_REASON_INVAL | KVM_MSR_EXIT_REASON_UNKNOWN;
    enable(&vm, KVM_CAP_X86_USER_SPACE_MSR, reasons, "KVM_CAP_X86_USER_SPACE_MSR")?;
    msr::intercept(&vm)?;
    vm.create_irq_chip().map_err(Error::kvm("KVM_CREATE_IRQCHIP"))?;
    let pit = kvm_pit_config { flags: KVM_PIT_SPEAKER_DUMMY, ..Default::default() };
    vm.create_pit2(pit).map_err(Error::kvm("KVM_CREATE_PIT2"))?;
    let ports = Ports::new(&vm, options.debugcon.as_deref(), options.cpus)?;
    let memory = memory(&vm, options.memory << 20)?;
    let registers =
        kvm.get_msr_index_list().map_err(Error::kvm("KVM_GET_MSR_INDEX_LIST"))?.as_slice().to_vec();
    Ok(Machine {
        vm,
        memory,
        ports,
        has_pmu: !matches!(pmu, Configuration::Hidden(_)),
        kvm_pvm: pvm::is_there(),
        registers,
        rendezvous: Rendezvous::default(),
        stopping: AtomicBool::new(false),
        reports: (0..options.cpus).map(|_| Report::default()).collect(),
        trace: options.trace.as_ref().map(|to| Trace::new(to, image.apic_writers())).transpose()?,
    })
}

fn enable(vm: &VmFd, cap: u32, argument: u32, name: &'static str) -> Result<(), Error> {
    let mut enable = kvm_enable_cap { cap, ..Default::default() };
    enable.args[0] = argument.into();
    vm.enable_cap(&enable).map_err(Error::kvm(name))
}

/// Maps memory from address 0 on.
fn memory(vm: &VmFd, size: u64) -> Result<GuestMemoryMmap, Error> {
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), size as usize)])
        .map_err(|error| Error::Kvm { operation: "mmap", error: std::io::Error::other(error) })?;
    for (slot, region) in (0..).zip(memory.iter()) {
        let region = kvm_userspace_memory_region {
            slot,
            guest_phys_addr: region.start_addr().0,
            memory_size: region.len(),
            userspace_addr: region.as_ptr() as u64,
            flags: 0,
        };
        // SAFETY: the region is mapped until the machine is dropped, which drops the VM first.
        unsafe { vm.set_user_memory_region(region) }
            .map_err(Error::kvm("KVM_SET_USER_MEMORY_REGION"))?;
    }
    Ok(memory)
}

/// Creates a processor.
pub(crate) fn vcpu(vm: &VmFd, number: u8) -> Result<VcpuFd, Error> {
    vm.create_vcpu(number.into()).map_err(Error::kvm("KVM_CREATE_VCPU"))
}

/// Sets a processor's CPUID.
pub(crate) fn set_cpuid(
    vcpu: &VcpuFd,
    options: &Options,
    pmu: (&Configuration, &Facilities),
    supported: &CpuId,
    number: u8,
) -> Result<(), Error> {
    let frequency = (options.count == Count::Time).then_some(options.frequency);
    let time_stamp = vcpu.get_tsc_khz().ok();
    let answers =
        guest_cpuid::answers(supported, pmu, frequency, time_stamp, number, options.cpus)?;
    vcpu.set_cpuid2(&answers).map_err(Error::kvm("KVM_SET_CPUID2"))
}
