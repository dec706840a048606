//! The model-specific registers that the monitor intercepts, and KVM's own values of shared ones.

use kvm_bindings::{Msrs, kvm_msr_entry};
use kvm_ioctls::{MsrFilterDefaultAction, MsrFilterRange, MsrFilterRangeFlags, VcpuFd, VmFd};

use crate::error::Error;

/// The monitor's own, in which [`init`](crate::vcpu::init) keeps a number: MSR_KVM_ASYNC_PF_INT, by
/// Documentation/virt/kvm/x86/msr.rst a vector in bits 7:0.
pub(crate) const MARKED: u32 = 0x4B56_4D06;

/// The PMU's registers of both vendors, by first number and count, including those that a guest looks
/// for and does not find. SDM vol. 4; APM vol. 2, "Performance Monitoring Counter MSRs".
const RANGES: [(u32, u32); 16] = [
    (0x0C1, 8),
    (0x186, 8),
    (0x1A0, 1),
    (0x1D9, 1),
    (0x300, 0x100),
    (0x4C1, 8),
    (0x600, 1),
    // Branch records: INFO; control and depth, and FROM and TO from 0x1500 on.
    (0x1200, 0x20),
    (0x14CE, 0x152),
    (0x1900, 0xC0),
    (0xC000_010E, 2),
    (0xC000_0300, 4),
    (0xC001_0000, 8),
    // The counters of the core extension, and branch records from 0xC001_0300 on.
    (0xC001_0200, 0x120),
    // Instruction-based sampling.
    (0xC001_1030, 0x10),
    (MARKED, 1),
];

/// IA32_MISC_ENABLE and IA32_DEBUGCTL: the processor's, with bits of the PMU.
const SHARED: [u32; 2] = [0x1A0, 0x1D9];

/// Bitmap without allowed accesses: zeros, one bit per register.
const NONE_ALLOWED: [u8; 0x160 / 8] = [0; 0x160 / 8];

/// Sends the guest's accesses to the PMU's registers to the monitor.
pub(crate) fn intercept(vm: &VmFd) -> Result<(), Error> {
    let ranges = RANGES.map(|(base, count)| MsrFilterRange {
        flags: MsrFilterRangeFlags::READ | MsrFilterRangeFlags::WRITE,
        base,
        msr_count: count,
        bitmap: &NONE_ALLOWED[..count.div_ceil(8) as usize],
    });
    vm.set_msr_filter(MsrFilterDefaultAction::ALLOW, &ranges)
        .map_err(Error::kvm("KVM_X86_SET_MSR_FILTER"))
}

/// Returns whether the register is one of the PMU's; accesses to others arrive because KVM does not know them.
pub(crate) fn is_intercepted(address: u32) -> bool {
    RANGES.iter().any(|(base, count)| address.wrapping_sub(*base) < *count)
}

/// Reads KVM's own value of a register that the PMU leaves to the monitor. `None`: #GP.
pub(crate) fn read(vcpu: &VcpuFd, address: u32) -> Option<u64> {
    let [value] = SHARED.contains(&address).then(|| read_all(vcpu, [address]))??;
    Some(value)
}

/// Reads KVM's own values of any registers.
pub(crate) fn read_all<const N: usize>(vcpu: &VcpuFd, addresses: [u32; N]) -> Option<[u64; N]> {
    let entries = addresses.map(|index| kvm_msr_entry { index, ..Default::default() });
    let mut msrs = Msrs::from_entries(&entries).ok()?;
    let complete = vcpu.get_msrs(&mut msrs).ok()? == N;
    let mut values = msrs.as_slice().iter().map(|entry| entry.data);
    complete.then(|| [0; N].map(|_: u64| values.next().unwrap_or_default()))
}

/// Writes KVM's own value of a register that the PMU leaves to the monitor. `None`: #GP.
pub(crate) fn write(vcpu: &VcpuFd, address: u32, value: u64) -> Option<()> {
    SHARED.contains(&address).then(|| write_any(vcpu, address, value))?
}

/// Writes KVM's own value of any register. `None`: KVM refuses it.
pub(crate) fn write_any(vcpu: &VcpuFd, address: u32, value: u64) -> Option<()> {
    let entry = kvm_msr_entry { index: address, data: value, ..Default::default() };
    let msrs = Msrs::from_entries(&[entry]).ok()?;
    (vcpu.set_msrs(&msrs).ok()? == 1).then_some(())
}
