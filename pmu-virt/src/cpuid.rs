//! What CPUID says of the PMU. SDM vol. 2A, CPUID; APM vol. 3, appendix E.

use pmu_core::raw_cpuid::CpuIdResult;

use crate::{AmdConfiguration, Configuration, IntelConfiguration};

const NOTHING: CpuIdResult = CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };

impl Configuration {
    /// The answer to CPUID with `leaf` in EAX and `subleaf` in ECX: `given`, the embedder's own
    /// answer, with everything that speaks of the PMU put right.
    ///
    /// The vendor in leaf 0, and whether there are leaves from 0x80000000 on, are the embedder's: a driver looks
    /// for `GenuineIntel` or `AuthenticAMD` there.
    ///
    /// The highest leaf in leaves 0, 7 and 0x80000000 is raised where the PMU needs one that is
    /// higher.
    pub fn cpuid(&self, leaf: u32, subleaf: u32, given: CpuIdResult) -> CpuIdResult {
        let mut answer = given;
        let intel = match self {
            Self::Intel(intel) => Some(intel),
            Self::Amd(_) | Self::Hidden(_) => None,
        };
        let amd = match self {
            Self::Amd(amd) => Some(*amd),
            Self::Intel(_) | Self::Hidden(_) => None,
        };
        let extended = intel.filter(|intel| intel.extended_leaf);
        match (leaf, subleaf) {
            (0, _) if intel.is_some() => {
                answer.eax = answer.eax.max(if extended.is_some() { 0x23 } else { 0x0A });
            }
            (1, _) => {
                // ECX: 2 DTES64, 4 DS-CPL, 15 PDCM. EDX: 21 DS.
                answer.ecx &= !(1 << 2 | 1 << 4 | 1 << 15);
                answer.ecx |= u32::from(intel.is_some()) << 15;
                answer.edx &= !(1 << 21);
            }
            (7, 0) => {
                // EDX: 19 architectural LBRs.
                answer.edx &= !(1 << 19);
                if extended.is_some() {
                    answer.eax = answer.eax.max(1);
                }
            }
            (7, 1) => {
                // EAX: 8 ArchPerfmonExt.
                answer.eax &= !(1 << 8);
                answer.eax |= u32::from(extended.is_some()) << 8;
            }
            // Where XSAVE keeps the architectural LBRs.
            (0x0D, 1) => answer.ecx &= !(1 << 15),
            (0x0D, 15) => answer = NOTHING,
            (0x0A, _) => answer = intel.map_or(NOTHING, architectural),
            (0x1C, _) => answer = NOTHING,
            (0x23, _) => answer = extended.map_or(NOTHING, |intel| extension(intel, subleaf)),
            (0x8000_0000, _) => {
                let needed = match amd {
                    None | Some(AmdConfiguration::Legacy) => 0,
                    Some(AmdConfiguration::CoreExtension) => 0x8000_0001,
                    Some(AmdConfiguration::PerfMonV2 { .. }) => 0x8000_0022,
                };
                answer.eax = answer.eax.max(needed);
            }
            (0x8000_0001, _) => {
                // ECX: 10 IBS, 23 PerfCtrExtCore, 24 PerfCtrExtNB, 27 PerfTsc, 28 PerfCtrExtLLC.
                answer.ecx &= !(1 << 10 | 1 << 23 | 1 << 24 | 1 << 27 | 1 << 28);
                let core = matches!(
                    amd,
                    Some(AmdConfiguration::CoreExtension | AmdConfiguration::PerfMonV2 { .. })
                );
                answer.ecx |= u32::from(core) << 23;
            }
            // EBX: 1 InstRetCntMsr, the counter at C000_00E9.
            (0x8000_0008, _) => answer.ebx &= !(1 << 1),
            (0x8000_001B, _) => answer = NOTHING,
            (0x8000_0022, _) => {
                answer = match amd {
                    // EAX: 0 PerfMonV2. EBX: 3:0 number of core counters.
                    Some(AmdConfiguration::PerfMonV2 { counters }) => {
                        CpuIdResult { eax: 1, ebx: counters.into(), ..NOTHING }
                    }
                    _ => NOTHING,
                }
            }
            _ => {}
        }
        answer
    }
}

/// Counters from 0 on without a gap: what a leaf that has a number, and no bitmap, can tell of.
const fn contiguous(bitmap: u8) -> u32 {
    bitmap.trailing_ones()
}

/// Leaf 0x0A.
fn architectural(intel: &IntelConfiguration) -> CpuIdResult {
    // As long as the events need it, but never below seven: Linux takes a shorter vector for no PMU.
    let length = if intel.events >> 7 != 0 { 8 } else { 7 };
    let unavailable = !u32::from(intel.events) & ((1 << length) - 1);
    let fixed = u32::from(intel.fixed);
    let fixed_width = if fixed == 0 { 0 } else { u32::from(intel.fixed_width) };
    CpuIdResult {
        eax: u32::from(intel.version)
            | contiguous(intel.general) << 8
            | u32::from(intel.general_width) << 16
            | length << 24,
        ebx: unavailable,
        ecx: if intel.version >= 5 { fixed } else { 0 },
        // Version 1 has no fields here. Where AnyThread does not exist, as KVM: deprecated.
        edx: if intel.version >= 2 {
            contiguous(intel.fixed) | fixed_width << 5 | u32::from(!intel.any_thread) << 15
        } else {
            0
        },
    }
}

/// Leaf 0x23: sub-leaves 0 (which there are, and features of the controls), 1 (counters) and 3 (events).
fn extension(intel: &IntelConfiguration, subleaf: u32) -> CpuIdResult {
    match subleaf {
        0 => CpuIdResult {
            eax: 0b1011,
            // EBX: 0 UnitMask2, 1 EQ, 2 RDPMC_USR_DISABLE.
            ebx: u32::from(intel.unit_mask_2)
                | u32::from(intel.equal) << 1
                | u32::from(intel.rdpmc_user_disable) << 2,
            ..NOTHING
        },
        1 => CpuIdResult { eax: intel.general.into(), ebx: intel.fixed.into(), ..NOTHING },
        3 => CpuIdResult { eax: intel.events.into(), ..NOTHING },
        _ => NOTHING,
    }
}
