//! The guest's CPUID: KVM's own answer, the processor's place in the topology, and the PMU.

use kvm_bindings::{CpuId, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, kvm_cpuid_entry2};
use pmu_virt::GuestFacility;
use pmu_virt::branches::BranchConfiguration;
use pmu_virt::configuration::{AmdCounters, Configuration, Vendor};

use crate::error::Error;
use crate::guest_pmu::facilities::Facilities;

/// Leaves that concern the PMU, whether KVM has them or not, and their number of sub-leaves.
const LEAVES: [(u32, u32); 8] = [
    (0x0A, 1),
    (0x1C, 1),
    (0x23, 6),
    (7, 2),
    (0x8000_0000, 1),
    (0x8000_0001, 1),
    (0x8000_001B, 1),
    (0x8000_0022, 1),
];

/// Leaf 0x15: the time-stamp counter's frequency, as a multiple of a crystal's, which the local APIC's timer counts.
const TIME_STAMP: u32 = 0x15;
/// Of KVM's local APIC: 1 GHz. Documentation/virt/kvm/api.rst, KVM_CAP_X86_APIC_BUS_CYCLES_NS.
const CRYSTAL_HERTZ: u32 = 1_000_000_000;
/// Leaf 0x8000_0005, ECX and EDX, of an AMD guest of another vendor's host: first caches of 32 KiB, with 8 ways and
/// lines of 64 bytes, as Zen 4's. APM vol. 3, CPUID, "L1 Cache and TLB Information".
const FIRST_CACHE: u32 = 32 << 24 | 8 << 16 | 1 << 8 | 64;
/// Leaf 1, EAX, of processors with architectural branch records, and with those of format 5.
const SAPPHIRE_RAPIDS: u32 = 0x0008_06F8;
const SKYLAKE: u32 = 0x0005_06E3;
/// The same with adaptive precise records, and without branch records; and with top-down metrics.
const ICE_LAKE: u32 = 0x0006_06A6;
/// Leaf 0x16: the nominal frequency in MHz.
const FREQUENCY: u32 = 0x16;

/// Returns the answers for processor `number` of `processors`.
///
/// `frequency` is that of the guest's counted cycles in MHz, if it is known, and `time_stamp` that of the time-stamp
/// counter in kHz. Linux takes one for the other where an Intel processor does not give both.
pub(crate) fn answers(
    supported: &CpuId,
    (pmu, facilities): (&Configuration, &Facilities),
    frequency: Option<u16>,
    time_stamp: Option<u32>,
    number: u8,
    processors: u8,
) -> Result<CpuId, Error> {
    let mut entries: Vec<kvm_cpuid_entry2> = supported.as_slice().to_vec();
    let named = |entry: &kvm_cpuid_entry2| [entry.ebx, entry.edx, entry.ecx];
    let host = entries.iter().find(|entry| entry.function == 0).map(named);
    let foreign = host != Some(vendor(0, pmu.vendor()));
    // Leaf 0x0B is written anew.
    entries.retain(|entry| entry.function != 0x0B);
    for subleaf in 0..3 {
        entries.push(topology(subleaf, number, processors));
    }
    for (function, subleaves) in LEAVES {
        for index in 0..subleaves {
            let flags = if subleaves > 1 { KVM_CPUID_FLAG_SIGNIFCANT_INDEX } else { 0 };
            let there =
                |entry: &&mut kvm_cpuid_entry2| entry.function == function && entry.index == index;
            match entries.iter_mut().find(there) {
                // A KVM that knows no sub-leaves of a leaf would answer all by the first.
                Some(entry) => entry.flags |= flags,
                None => {
                    entries.push(kvm_cpuid_entry2 { function, index, flags, ..Default::default() });
                }
            }
        }
    }
    if let Some(frequency) = frequency.filter(|_| pmu.vendor() == Vendor::Intel) {
        entries.retain(|entry| entry.function != FREQUENCY);
        let eax = frequency.into();
        entries.push(kvm_cpuid_entry2 { function: FREQUENCY, eax, ..Default::default() });
    }
    if let Some(kilohertz) = time_stamp.filter(|_| pmu.vendor() == Vendor::Intel) {
        entries.retain(|entry| entry.function != TIME_STAMP);
        entries.push(kvm_cpuid_entry2 {
            function: TIME_STAMP,
            // Small numbers, because Linux multiplies the crystal's kHz by EBX in 32 bits.
            eax: CRYSTAL_HERTZ / 1_000_000,
            ebx: (kilohertz + 500) / 1000,
            ecx: CRYSTAL_HERTZ,
            ..Default::default()
        });
    }
    let highest = |from: u32, to: u32| {
        entries.iter().map(|entry| entry.function).filter(|leaf| (from..to).contains(leaf)).max()
    };
    let (basic, extended) = (highest(0, 0x4000_0000), highest(0x8000_0000, 0xC000_0000));
    for entry in &mut entries {
        match entry.function {
            0 => entry.eax = entry.eax.max(basic.unwrap_or(0).min(FREQUENCY)),
            1 => {
                entry.ebx =
                    entry.ebx & 0xFFFF | u32::from(number) << 24 | u32::from(processors) << 16;
                // EDX: 28 HTT, more than one logical processor in the package.
                entry.edx = entry.edx & !(1 << 28) | u32::from(processors > 1) << 28;
                entry.eax = match &facilities.0.0 {
                    _ if facilities.1.1.is_some() => ICE_LAKE,
                    // Drivers go by the model for what else the records have.
                    Some(branches) => match branches.configuration() {
                        BranchConfiguration::Architectural(_) => SAPPHIRE_RAPIDS,
                        BranchConfiguration::Legacy { .. } => SKYLAKE,
                        _ => signature(pmu, entry.eax, foreign),
                    },
                    None if facilities.0.1.is_some() => ICE_LAKE,
                    None => signature(pmu, entry.eax, foreign),
                };
            }
            // EAX: 31:26 cores in the package, 25:14 threads that share the cache.
            4 if entry.eax & 0x1F != 0 => {
                entry.eax = entry.eax & 0x3FFF | (u32::from(processors) - 1) << 26;
            }
            // KVM's own features: none of asynchronous page faults (4, 10, 14), whose vector is the monitor's.
            0x4000_0001 => entry.eax &= !(1 << 4 | 1 << 10 | 1 << 14),
            0x8000_0000 => entry.eax = entry.eax.max(extended.unwrap_or(0x8000_0000)),
            // Intel has nothing there, and Linux divides by the associativity on family 15h.
            0x8000_0005 if foreign && pmu.vendor() == Vendor::Amd => {
                [entry.ecx, entry.edx] = [FIRST_CACHE; 2];
            }
            // EBX: 2, FXRSTOR always restores the error pointers, as Intel's does. Without it Linux clears them by
            // FNCLEX and EMMS, which kvm-pvm does not know.
            0x8000_0008 if foreign && pmu.vendor() == Vendor::Amd => entry.ebx |= 1 << 2,
            _ => {}
        }
        if matches!(entry.function, 0 | 0x8000_0000) {
            [entry.ebx, entry.edx, entry.ecx] = vendor(entry.function, pmu.vendor());
        }
        let given = [entry.eax, entry.ebx, entry.ecx, entry.edx];
        if let Some(leaf) = pmu.cpuid_leaf(entry.function, entry.index) {
            [entry.eax, entry.ebx, entry.ecx, entry.edx] = facilities.cpuid(leaf).apply(given);
        }
    }
    CpuId::from_entries(&entries).map_err(|_| Error::Kvm {
        operation: "CPUID",
        error: std::io::ErrorKind::OutOfMemory.into(),
    })
}

/// Returns leaf 0x0B: one thread per core, all cores in one package. SDM vol. 3A, "Hierarchical Mapping of Shared
/// Resources".
fn topology(subleaf: u32, number: u8, processors: u8) -> kvm_cpuid_entry2 {
    let bits = u32::from(processors).next_power_of_two().ilog2();
    let (eax, ebx, kind) = match subleaf {
        0 => (0, 1, 1),
        1 => (bits, processors.into(), 2),
        _ => (0, 0, 0),
    };
    kvm_cpuid_entry2 {
        function: 0x0B,
        index: subleaf,
        flags: KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
        eax,
        ebx,
        ecx: kind << 8 | subleaf,
        edx: number.into(),
        ..Default::default()
    }
}

/// Returns the vendor's name in EBX, EDX and ECX; Intel has none in the extended leaves.
fn vendor(leaf: u32, vendor: Vendor) -> [u32; 3] {
    let name: &[u8; 12] = match (leaf, vendor) {
        (_, Vendor::Amd) => b"AuthenticAMD",
        (0, Vendor::Intel) => b"GenuineIntel",
        (_, Vendor::Intel) => &[0; 12],
    };
    core::array::from_fn(|word| {
        (0..4).fold(0, |value, byte| value | u32::from(name[word * 4 + byte]) << (8 * byte))
    })
}

/// Returns leaf 1, EAX: a processor that has such a PMU, since drivers go by the family. An AMD guest always gets a
/// fitting one; an Intel guest, and one without a PMU, keeps the host's unless the host is `foreign`, of another
/// vendor.
fn signature(pmu: &Configuration, own: u32, foreign: bool) -> u32 {
    match pmu {
        // K10, Bulldozer and Zen 4: families 10h, 15h and 19h.
        Configuration::Amd(amd) => match amd.counters {
            AmdCounters::Legacy => 0x0010_0F42,
            AmdCounters::CoreExtension => 0x0060_0F12,
            AmdCounters::PerfMonV2 { .. } => 0x00A6_0F12,
        },
        _ if !foreign => own,
        other if other.vendor() == Vendor::Amd => 0x00A6_0F12,
        _ => SKYLAKE,
    }
}

#[cfg(test)]
mod tests {
    use pmu_virt::configuration::IntelConfiguration;

    use super::*;

    /// Returns leaf 1, EAX, for a guest with this PMU on a host of this vendor and signature.
    fn signature_on(vendor: &[u8; 12], eax: u32, pmu: Configuration) -> u32 {
        let word = |place: usize| u32::from_le_bytes(vendor[place..place + 4].try_into().unwrap());
        let host = CpuId::from_entries(&[
            kvm_cpuid_entry2 {
                function: 0,
                eax: 0x0D,
                ebx: word(0),
                edx: word(4),
                ecx: word(8),
                ..Default::default()
            },
            kvm_cpuid_entry2 { function: 1, eax, ..Default::default() },
        ])
        .unwrap();
        let answers =
            answers(&host, (&pmu, &((None, None), (None, None))), None, None, 0, 1).unwrap();
        answers.as_slice().iter().find(|entry| entry.function == 1).unwrap().eax
    }

    /// SDM vol. 2A and APM vol. 3, CPUID: families 6 and, from 0x10 on, AMD's, but for Intel's of 2026
    /// (0x12 and 0x13).
    #[test]
    fn the_family_fits_the_guests_vendor_on_a_host_of_the_other() {
        let family = |eax: u32| (eax >> 8 & 0xF) + (eax >> 20 & 0xFF);
        let (intel, amd) = (b"GenuineIntel", b"AuthenticAMD");
        // Sapphire Rapids, a Xeon of family 0x13, Zen 3.
        let (sapphire, diamond, zen) = (0x000C_06F8, 0x0040_0F10, 0x00A0_0F11);
        let of_intel = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
        let of_amd = Configuration::Amd(pmu_virt::configuration::AmdConfiguration::perf_mon_v2(6));
        let (no_intel, no_amd) =
            (Configuration::hidden(Vendor::Intel), Configuration::hidden(Vendor::Amd));
        for pmu in [of_intel, no_intel] {
            assert_eq!(signature_on(intel, sapphire, pmu), sapphire);
            assert_eq!(signature_on(intel, diamond, pmu), diamond);
            assert_eq!(family(signature_on(amd, zen, pmu)), 6);
        }
        assert_eq!(signature_on(amd, zen, no_amd), zen);
        assert_eq!(family(signature_on(intel, sapphire, no_amd)), 0x19);
        assert_eq!(family(signature_on(intel, sapphire, of_amd)), 0x19);
    }

    /// APM vol. 3, CPUID: functions 0x8000_0005, EDX with size, ways and line of the instruction cache, and
    /// 0x8000_0008, EBX with RstrFpErrPtrs. An AMD host tells its own.
    #[test]
    fn an_amd_guest_of_an_intel_host_is_told_of_its_caches_and_of_fxrstor() {
        let intel = [0x756E_6547, 0x4965_6E69, 0x6C65_746E];
        let amd = [0x6874_7541, 0x6974_6E65, 0x444D_4163];
        let told = |[ebx, edx, ecx]: [u32; 3], pmu: Configuration| {
            let entry = |function| kvm_cpuid_entry2 { function, ..Default::default() };
            let host = kvm_cpuid_entry2 { eax: 0x0D, ebx, edx, ecx, ..entry(0) };
            let host =
                CpuId::from_entries(&[host, entry(0x8000_0005), entry(0x8000_0008)]).unwrap();
            let answers =
                answers(&host, (&pmu, &((None, None), (None, None))), None, None, 0, 1).unwrap();
            let leaf = |function| answers.as_slice().iter().find(|one| one.function == function);
            (leaf(0x8000_0005).unwrap().edx, leaf(0x8000_0008).unwrap().ebx)
        };
        let amd_pmu = Configuration::Amd(pmu_virt::configuration::AmdConfiguration::perf_mon_v2(6));
        let intel_pmu = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
        assert_eq!(told(intel, amd_pmu), (0x2008_0140, 1 << 2));
        assert_eq!((told(intel, intel_pmu), told(amd, amd_pmu)), ((0, 0), (0, 0)));
    }

    /// KVM answers any sub-leaf by an entry that does not say that its index counts.
    #[test]
    fn a_leaf_that_kvm_knows_without_its_sub_leaves_gets_them() {
        let entry = |function| kvm_cpuid_entry2 { function, ..Default::default() };
        let host = [kvm_cpuid_entry2 { eax: 0x23, ..entry(0) }, entry(0x23)];
        let host = CpuId::from_entries(&host).unwrap();
        let sixth = Configuration::Intel(IntelConfiguration::new(6, 4, 3));
        let answers =
            answers(&host, (&sixth, &((None, None), (None, None))), None, None, 0, 1).unwrap();
        let of_leaf = answers.as_slice().iter().filter(|entry| entry.function == 0x23);
        let found: Vec<_> = of_leaf.map(|entry| (entry.index, entry.flags)).collect();
        assert_eq!(found, [0, 1, 2, 3, 4, 5].map(|index| (index, KVM_CPUID_FLAG_SIGNIFCANT_INDEX)));
    }

    /// SDM vol. 2A, CPUID, leaf 0x15: the frequency is ECX · EBX / EAX.
    #[test]
    fn an_intel_guest_does_not_take_the_nominal_frequency_for_that_of_its_time_stamp_counter() {
        let host =
            CpuId::from_entries(&[kvm_cpuid_entry2 { eax: 0x0D, ..Default::default() }]).unwrap();
        let leaf = |pmu, time_stamp| {
            let answers =
                answers(&host, (&pmu, &((None, None), (None, None))), Some(1000), time_stamp, 0, 1)
                    .unwrap();
            let highest = answers.as_slice().iter().find(|entry| entry.function == 0).unwrap().eax;
            let leaf = answers.as_slice().iter().find(|entry| entry.function == 0x15).copied();
            (highest, leaf)
        };
        let intel = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
        let (highest, told) = leaf(intel, Some(2_445_406));
        let told = told.unwrap();
        assert!(highest >= 0x15);
        let hertz = u64::from(told.ecx) * u64::from(told.ebx) / u64::from(told.eax);
        assert_eq!(hertz, 2_445_000_000);
        // Linux computes in 32 bits, in kHz.
        assert!(told.ecx / 1000 <= u32::MAX / told.ebx);
        // The crystal is what KVM's local APIC counts: a nanosecond.
        assert_eq!(told.ecx, 1_000_000_000);
        assert_eq!(leaf(intel, None).1, None);
        // AMD has no such leaf.
        let amd = Configuration::Amd(pmu_virt::configuration::AmdConfiguration::perf_mon_v2(6));
        assert_eq!(leaf(amd, Some(2_445_406)).1, None);
    }
}
