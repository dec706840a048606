//! The description of the processor that executes the call.

use pmu::core::x86::Snapshot;
use pmu::core::x86::raw_cpuid::native_cpuid::CpuIdReaderNative;
use pmu::core::x86::raw_cpuid::{CpuIdReader, CpuIdResult};

/// Returns the description of the processor that executes the call.
pub fn snapshot() -> Snapshot {
    Snapshot::capture(Unhidden)
}

/// CPUID as the processor has it. kvm-pvm hides two bits: a processor that declares 64-bit records has a Debug Store,
/// and one with version 6 of the PMU has leaf 0x23.
#[derive(Clone, Copy, Debug)]
struct Unhidden;

impl CpuIdReader for Unhidden {
    fn cpuid2(&self, leaf: u32, subleaf: u32) -> CpuIdResult {
        let mut found = CpuIdReaderNative.cpuid2(leaf, subleaf);
        if leaf == 1 {
            // ECX: 2 DTES64. EDX: 21 DS.
            found.edx |= (found.ecx >> 2 & 1) << 21;
        }
        if (leaf, subleaf) == (7, 1) {
            // EAX: 8, leaf 0x23. Leaf 0xA, EAX: 7:0, the version.
            let version = CpuIdReaderNative.cpuid2(0xA, 0).eax as u8;
            found.eax |= u32::from(version >= 6) << 8;
        }
        found
    }
}
