//! CPUID of plain processors.

use std::path::Path;

use pmu_core::x86::Snapshot;
use pmu_core::x86::dump::CpuidDump;
use pmu_core::x86::raw_cpuid::CpuIdResult;

/// Returns a recorded processor, by its file in `tests/data/cpuid`.
pub fn recorded(file: &str) -> Snapshot {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/cpuid").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    Snapshot::capture(&CpuidDump::parse(&text).unwrap_or_else(|e| panic!("{file}: {e}")))
}

/// Returns an Intel processor with this version of architectural performance monitoring, and `counters` of 48 bits
/// (leaf 0x0A).
pub fn intel_processor(version: u32, counters: u32) -> Snapshot {
    Snapshot::capture(move |leaf: u32, _: u32| {
        let (eax, ebx, ecx, edx) = match leaf {
            0 => (0x0A, 0x756E_6547, 0x6C65_746E, 0x4965_6E69),
            0x0A => (0x0730_0000 | counters << 8 | version, 0, 0, 0),
            _ => (0, 0, 0, 0),
        };
        CpuIdResult { eax, ebx, ecx, edx }
    })
}

/// Returns an AMD processor of this family and model, with the instruction-based sampling of leaf 0x8000001B.
pub fn ibs_processor(family: u32, model: u32, capabilities: u32) -> Snapshot {
    Snapshot::capture(move |leaf: u32, _: u32| {
        let signature = (family - 0xF) << 20 | (model >> 4) << 16 | 0xF << 8 | (model & 0xF) << 4;
        let (eax, ebx, ecx, edx) = match leaf {
            0 => (1, 0x6874_7541, 0x444D_4163, 0x6974_6E65),
            1 => (signature, 0, 0, 0),
            0x8000_0000 => (0x8000_001B, 0, 0, 0),
            0x8000_0001 => (0, 0, 1 << 10, 1 << 29),
            0x8000_001B => (capabilities, 0, 0, 0),
            _ => (0, 0, 0, 0),
        };
        CpuIdResult { eax, ebx, ecx, edx }
    })
}

/// Returns an AMD processor with the core extension (leaf 0x80000001, ECX bit 23) or without, and with this many
/// counters of PerfMonV2 (leaf 0x80000022) or, if 0, without.
pub fn amd_processor(core: bool, v2: u32) -> Snapshot {
    Snapshot::capture(move |leaf: u32, _: u32| {
        let (eax, ebx, ecx, edx) = match leaf {
            0 => (1, 0x6874_7541, 0x444D_4163, 0x6974_6E65),
            0x8000_0000 => (0x8000_0022, 0, 0, 0),
            0x8000_0001 => (0, 0, u32::from(core) << 23, 1 << 29),
            0x8000_0022 => (u32::from(v2 != 0), v2, 0, 0),
            _ => (0, 0, 0, 0),
        };
        CpuIdResult { eax, ebx, ecx, edx }
    })
}
