//! The processor, kernel and hypervisor of a report.

use pmu_core::x86::Snapshot;
use pmu_virt::configuration::CpuidRegisters;

use crate::machine::interface::{Cpuid, Machine, kernel_file};
use crate::report::hex::Hex;
use crate::report::whole::{MachineKind, Processor};

/// CPUID leaf 1, ECX: a hypervisor is there.
const HYPERVISOR: u32 = 1 << 31;

/// Returns the kind of machine that is checked.
pub fn machine_kind(machine: &dyn Machine) -> MachineKind {
    match hypervisor(machine) {
        _ if machine.is_software() => MachineKind::Software,
        Some(_) => MachineKind::Hypervisor,
        None => MachineKind::Hardware,
    }
}

/// The hypervisor's signature. Microsoft's Hypervisor Top-Level Functional Specification, leaf 0x40000000.
pub fn hypervisor(machine: &dyn Machine) -> Option<String> {
    let [_, _, features, _] = machine.cpuid(1, 0);
    let [_, b, c, d] = machine.cpuid(0x4000_0000, 0);
    (features & HYPERVISOR != 0).then(|| text([b, c, d]))
}

/// The processor.
pub fn processor(machine: &dyn Machine) -> Processor {
    let snapshot = Snapshot::capture(Cpuid(machine));
    let [signature, ..] = machine.cpuid(1, 0);
    let [last_extended, ..] = machine.cpuid(0x8000_0000, 0);
    let brand = (0x8000_0002..=0x8000_0004u32)
        .filter(|leaf| *leaf <= last_extended)
        .flat_map(|leaf| machine.cpuid(leaf, 0));
    let [_, _, _, features] =
        if machine.cpuid(0, 0)[0] >= 0x1A { machine.cpuid(7, 0) } else { [0; 4] };
    let is_hybrid = features >> 15 & 1 != 0;
    Processor {
        vendor: printable(&snapshot.vendor()),
        family: snapshot.family(),
        model: snapshot.model(),
        stepping: (signature & 0xF) as u8,
        brand: text(brand),
        microcode: microcode(machine),
        core_type: is_hybrid.then(|| (machine.cpuid(0x1A, 0)[0] >> 24) as u8),
    }
}

/// The digits of the kernel's release. The text behind them may name a person, and is left out.
pub fn kernel(machine: &dyn Machine) -> String {
    let release = kernel_file(machine, "proc/sys/kernel/osrelease").unwrap_or_default();
    let digits: String =
        release.chars().take_while(|one| one.is_ascii_digit() || *one == '.').take(32).collect();
    digits.trim_end_matches('.').to_owned()
}

/// The bytes of the last cache: SDM vol. 2A, CPUID leaf 4; APM vol. 3, leaf 0x8000001D. 0 where it is not told.
pub fn last_cache(machine: &dyn Machine) -> u64 {
    let [last, ..] = machine.cpuid(0, 0);
    let [last_extended, ..] = machine.cpuid(0x8000_0000, 0);
    let size = |[a, b, c, _]: CpuidRegisters| {
        let field = |low: u32, bits: u32| u64::from(b >> low & ((1 << bits) - 1)) + 1;
        let is_cache = a & 0x1F != 0;
        if is_cache { field(22, 10) * field(12, 10) * field(0, 12) * (u64::from(c) + 1) } else { 0 }
    };
    let largest = |leaf| (0..8).map(|subleaf| size(machine.cpuid(leaf, subleaf))).max();
    let intel = if last >= 4 { largest(4) } else { None };
    let amd = if last_extended >= 0x8000_001D { largest(0x8000_001D) } else { None };
    intel.max(amd).unwrap_or(0)
}

fn microcode(machine: &dyn Machine) -> Option<Hex> {
    let text = kernel_file(machine, "proc/cpuinfo")?;
    let number = machine.processor().to_string();
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(name, value)| name.trim() == "processor" && value.trim() == number)?;
    let mut rest = lines.take_while(|(name, _)| name.trim() != "processor");
    let (_, revision) = rest.find(|(name, _)| name.trim() == "microcode")?;
    u64::from_str_radix(revision.trim().strip_prefix("0x")?, 16).ok().map(Hex)
}

fn text(registers: impl IntoIterator<Item = u32>) -> String {
    let bytes: Vec<u8> = registers.into_iter().flat_map(u32::to_le_bytes).collect();
    printable(&bytes)
}

fn printable(bytes: &[u8]) -> String {
    let text: String = bytes
        .iter()
        .filter(|byte| (b' '..=b'~').contains(byte))
        .map(|byte| char::from(*byte))
        .collect();
    text.trim().to_owned()
}
