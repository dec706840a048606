//! A processor without a PMU, and CPUID of each PMU. Intel SDM vol. 2A, CPUID; AMD APM vol. 3, appendix E; for hidden
//! ones KVM's behavior.

use pmu_core::x86::raw_cpuid::{CpuId, CpuIdResult};
use pmu_tests::software_pmu::*;
use pmu_virt::configuration::{
    AmdConfiguration, AmdCounters, Configuration, HiddenConfiguration, HiddenRdpmc,
    HiddenRegisters, IntelConfiguration, IntelFeature, Vendor,
};
use pmu_virt::{Mode, Privilege, Read, VirtualPmu, Write};

const ONES: CpuIdResult =
    CpuIdResult { eax: u32::MAX, ebx: u32::MAX, ecx: u32::MAX, edx: u32::MAX };
const ZEROS: CpuIdResult = CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };

/// The answer as another crate has it.
fn answer(
    configuration: Configuration,
    leaf: u32,
    subleaf: u32,
    given: CpuIdResult,
) -> CpuIdResult {
    pmu_tests::result(configuration.cpuid(leaf, subleaf, registers(given)))
}

fn registers(result: CpuIdResult) -> [u32; 4] {
    [result.eax, result.ebx, result.ecx, result.edx]
}

/// The registers that the data file names, of one vendor.
fn data(vendor: &str) -> Vec<(&'static str, u32)> {
    include_str!("../../data/registers.csv")
        .lines()
        .filter_map(|line| line.strip_prefix(vendor)?.strip_prefix(',')?.split_once(','))
        .map(|(name, address)| {
            (name, u32::from_str_radix(address.trim().trim_start_matches("0x"), 16).unwrap())
        })
        .collect()
}

#[test]
fn the_registers_of_the_data_file_are_the_pmus_and_of_its_vendor_alone() {
    let (intel, amd) = (data("intel"), data("amd"));
    assert!(intel.len() > 30 && amd.len() > 20);
    for configuration in matrix() {
        let pmu = pmu(configuration);
        let (own, other) = match configuration.vendor() {
            Vendor::Intel => (&intel, &amd),
            Vendor::Amd => (&amd, &intel),
        };
        // Without branch records all bits of AMD's DebugCtl are the embedder's; Intel has IA32_DEBUGCTL there.
        let is_pmus = |(name, _): &&(&str, u32)| *name != "DebugCtl";
        for (name, address) in own.iter().filter(is_pmus) {
            assert_ne!(pmu.read(*address), Read::Unhandled, "{name} {configuration:?}");
        }
        for (name, address) in other.iter().filter(is_pmus) {
            assert_eq!(pmu.read(*address), Read::Unhandled, "{name} {configuration:?}");
        }
    }
}

#[test]
fn hidden_intel_registers_fault() {
    let mut pmu = pmu(Configuration::hidden(Vendor::Intel));
    for (name, address) in data("intel") {
        if matches!(name, "IA32_MISC_ENABLE" | "IA32_DEBUGCTL") {
            continue;
        }
        for value in [0, 1, u64::MAX] {
            assert_eq!(pmu.write(address, value).answer, Write::GeneralProtection, "{name}");
        }
        assert_eq!(pmu.read(address), Read::GeneralProtection, "{name}");
    }
    let Read::Shared { value, mask } = pmu.read(0x1A0) else { panic!() };
    assert_eq!((value >> 7 & 1, mask >> 7 & 1), (0, 1), "MISC_ENABLE[7]");
    assert_eq!(pmu.write(0x1D9, 1 << 12).answer, Write::GeneralProtection);
}

#[test]
fn hidden_amd_legacy_registers_read_0_and_ignore_writes_and_all_others_fault() {
    let mut pmu = pmu(Configuration::hidden(Vendor::Amd));
    for (name, address) in data("amd") {
        if name == "DebugCtl" {
            assert_eq!(pmu.read(address), Read::Unhandled, "the embedder's");
        } else if (0xC001_0000..=0xC001_0007).contains(&address) {
            assert_eq!(pmu.write(address, 0x53_0076).answer, Write::Done, "{name}");
            assert_eq!(pmu.read(address), Read::Value(0), "{name}");
        } else {
            assert_eq!(pmu.write(address, 0).answer, Write::GeneralProtection, "{name}");
            assert_eq!(pmu.read(address), Read::GeneralProtection, "{name}");
        }
    }
}

#[test]
fn hidden_rdpmc_faults() {
    for configuration in HIDDEN {
        let pmu = pmu(configuration);
        for ecx in [0, 1, 0x4000_0000, 0x8000_0000, u32::MAX] {
            assert_eq!(pmu.read_counter(ecx, KERNEL), Read::GeneralProtection);
        }
    }
}

#[test]
fn hidden_leaves_say_nothing_of_a_pmu() {
    for configuration in HIDDEN {
        for subleaf in 0..8 {
            for leaf in [0x0A, 0x23, 0x1C, 0x8000_0022, 0x8000_001B] {
                assert_eq!(registers(answer(configuration, leaf, subleaf, ONES)), [0; 4]);
            }
        }
        let one = answer(configuration, 1, 0, ONES);
        // PDCM 15, DS-CPL 4, DTES64 2; DS 21. Everything else is the embedder's.
        assert_eq!(registers(one), [u32::MAX, u32::MAX, !0x8014, !0x20_0000]);
        assert_eq!(answer(configuration, 7, 0, ONES).edx, !(1 << 19));
        assert_eq!(answer(configuration, 7, 1, ONES).eax, !(1 << 8));
        // IBS 10, PerfCtrExtCore 23, PerfCtrExtNB 24, PerfTsc 27, PerfCtrExtLLC 28.
        let ecx = answer(configuration, 0x8000_0001, 0, ONES).ecx;
        assert_eq!(ecx, !(1 << 10 | 1 << 23 | 1 << 24 | 1 << 27 | 1 << 28));
        for (leaf, subleaf) in [(0, 0), (7, 2), (0x0D, 0), (0x8000_0000, 0), (0x4000_0000, 0)] {
            assert_eq!(registers(answer(configuration, leaf, subleaf, ONES)), [u32::MAX; 4]);
            assert_eq!(registers(answer(configuration, leaf, subleaf, ZEROS)), [0; 4]);
        }
    }
}

/// Leaf 0AH, by the eyes of another crate.
#[test]
fn leaf_0a_tells_of_the_intel_configuration() {
    for intel in intel_matrix() {
        let configuration = Configuration::Intel(intel);
        let reader = move |leaf, subleaf| {
            let given = match leaf {
                0 => CpuIdResult { eax: 1, ebx: 0x756E_6547, ecx: 0x6C65_746E, edx: 0x4965_6E69 },
                _ => ZEROS,
            };
            answer(configuration, leaf, subleaf, given)
        };
        let cpuid = CpuId::with_cpuid_reader(reader);
        let leaf = cpuid.get_performance_monitoring_info().expect("leaf 0x0A is within reach");
        assert_eq!(leaf.version_id(), intel.version);
        assert_eq!(u32::from(leaf.number_of_counters()), intel.general.count_ones());
        assert_eq!(leaf.counter_bit_width(), intel.general_width);
        assert_eq!(leaf.ebx_length(), 7);
        assert!(!leaf.is_core_cyc_ev_unavailable() && !leaf.is_branch_midpred_ev_unavailable());
        let raw = answer(configuration, 0x0A, 0, ONES);
        if intel.version == 1 {
            assert_eq!((raw.ecx, raw.edx), (0, 0));
        } else {
            assert_eq!(u32::from(leaf.fixed_function_counters()), intel.fixed.count_ones());
            let width = if intel.fixed == 0 { 0 } else { intel.fixed_width };
            assert_eq!(leaf.fixed_function_counters_bit_width(), width);
            assert!(leaf.has_any_thread_deprecation());
            assert_eq!(raw.ecx, if intel.version >= 5 { intel.fixed.into() } else { 0 });
        }
        let features = cpuid.get_feature_info().unwrap();
        assert!(features.has_pdcm());
        assert!(!features.has_ds_area() && !features.has_ds());
        // Version 6 has leaf 23H, and nothing of what it can declare in EBX.
        let eax = if intel.version == 6 { 0b1011 } else { 0 };
        assert_eq!(registers(answer(configuration, 0x23, 0, ONES)), [eax, 0, 0, 0]);
        assert_eq!(answer(configuration, 7, 1, ZEROS).eax >> 8 & 1, u32::from(intel.version == 6));
    }
}

/// Leaf 0AH: EBX has a bit for each event that is not there, and is as long as EAX[31:24] says.
#[test]
fn leaf_0a_tells_which_events_are_missing() {
    for (events, length, ebx) in [(0x7F, 7, 0), (0x01, 7, 0x7E), (0xFF, 8, 0), (0x80, 8, 0x7F)] {
        let intel = IntelConfiguration::new(5, 8, 4).with(|intel| intel.events = events);
        let leaf = answer(Configuration::Intel(intel), 0x0A, 0, ZEROS);
        assert_eq!((leaf.eax >> 24, leaf.ebx), (length, ebx));
    }
}

/// Leaf 23H, announced by leaf 07H sub-leaf 1, EAX[8]; both within the highest leaves.
#[test]
fn leaf_23_tells_of_counters_with_gaps() {
    let intel = IntelConfiguration::new(5, 8, 8).with(|intel| {
        intel.general = 0b1011_0111;
        intel.fixed = 0b1000_0011;
        intel.set(IntelFeature::ExtendedLeaf, true);
        intel.set(IntelFeature::AnyThread, true);
    });
    let configuration = Configuration::Intel(intel);
    assert_eq!(answer(configuration, 0, 0, ZEROS).eax, 0x23);
    assert_eq!(answer(configuration, 7, 0, ZEROS).eax, 1);
    assert_eq!(answer(configuration, 7, 1, ZEROS).eax, 1 << 8);
    assert_eq!(registers(answer(configuration, 0x23, 0, ONES)), [0b1011, 0, 0, 0]);
    assert_eq!(registers(answer(configuration, 0x23, 1, ONES)), [0b1011_0111, 0b1000_0011, 0, 0]);
    assert_eq!(registers(answer(configuration, 0x23, 2, ONES)), [0; 4]);
    assert_eq!(registers(answer(configuration, 0x23, 3, ONES)), [0x7F, 0, 0, 0]);
    // A reader of leaf 0AH alone sees the counters up to the first gap.
    let leaf = answer(configuration, 0x0A, 0, ZEROS);
    assert_eq!((leaf.eax >> 8 & 0xFF, leaf.edx & 0x1F, leaf.ecx), (3, 2, 0b1000_0011));
    assert_eq!(leaf.edx >> 15 & 1, 0, "AnyThread is there");
}

/// Leaf 23H sub-leaf 0 EBX: UnitMask2 (0), EQ (1), RDPMC_USR_DISABLE (2). Sub-leaves 2, 4 and 5, of auto
/// counter reload and architectural PEBS, are not there.
#[test]
fn leaf_23_tells_of_the_features_of_version_6() {
    for features in 0..8 {
        let intel = IntelConfiguration::new(6, 8, 3).with(|intel| {
            intel.set(IntelFeature::UnitMask2, features & 1 != 0);
            intel.set(IntelFeature::Equal, features & 2 != 0);
            intel.set(IntelFeature::RdpmcUserDisable, features & 4 != 0);
        });
        let configuration = Configuration::Intel(intel);
        assert_eq!(answer(configuration, 0, 0, ZEROS).eax, 0x23);
        assert_eq!(answer(configuration, 7, 0, ZEROS).eax, 1);
        assert_eq!(answer(configuration, 7, 1, ZEROS).eax, 1 << 8);
        assert_eq!(answer(configuration, 0x0A, 0, ZEROS).eax & 0xFF, 6);
        assert_eq!(registers(answer(configuration, 0x23, 0, ONES)), [0b1011, features, 0, 0]);
        assert_eq!(registers(answer(configuration, 0x23, 1, ONES)), [0xFF, 0b111, 0, 0]);
        for subleaf in [2, 4, 5, 6] {
            assert_eq!(registers(answer(configuration, 0x23, subleaf, ONES)), [0; 4]);
        }
    }
}

/// Leaf 8000_0001H ECX[23] and leaf 8000_0022H, by the eyes of another crate.
#[test]
fn amd_leaves_tell_of_the_counters() {
    for (amd, counters) in AMD_MATRIX {
        let configuration = Configuration::Amd(amd);
        let reader = move |leaf, subleaf| {
            let given = match leaf {
                0 => CpuIdResult { eax: 1, ebx: 0x6874_7541, ecx: 0x444D_4163, edx: 0x6974_6E65 },
                0x8000_0000 => CpuIdResult { eax: 0x8000_0008, ..ZEROS },
                _ => ZEROS,
            };
            answer(configuration, leaf, subleaf, given)
        };
        let cpuid = CpuId::with_cpuid_reader(reader);
        let features = cpuid.get_extended_processor_and_feature_identifiers().unwrap();
        assert_eq!(features.has_perf_cntr_extensions(), amd != AmdConfiguration::LEGACY);
        assert!(!features.has_ibs() && !features.has_nb_perf_cntr_extensions());
        let v2 = cpuid.get_extended_performance_monitoring_and_debug();
        if let AmdCounters::PerfMonV2 { .. } = amd.counters {
            let v2 = v2.unwrap();
            assert!(v2.has_perf_mon_v2() && !v2.has_lbr_stack());
            assert_eq!(u32::from(v2.num_perf_ctr_core()), counters);
        } else {
            assert_eq!(registers(answer(configuration, 0x8000_0022, 0, ONES)), [0; 4]);
        }
        assert_eq!(registers(answer(configuration, 0x0A, 0, ONES)), [0; 4]);
        assert_eq!(registers(answer(configuration, 0x8000_001B, 0, ONES)), [0; 4]);
    }
}

/// Exactly the declared parts exist: each configuration, as its guest finds it by CPUID alone.
#[test]
fn the_registers_keep_what_cpuid_promises() {
    for intel in intel_matrix() {
        let configuration = Configuration::Intel(intel);
        let pmu: VirtualPmu = pmu(configuration);
        let leaf = answer(configuration, 0x0A, 0, ZEROS);
        for n in 0..8 {
            let there = n < leaf.eax >> 8 & 0xFF;
            assert_eq!(pmu.read(0x186 + n) == Read::Value(0), there);
            assert_eq!(pmu.read_counter(n, KERNEL) == Read::Value(0), there);
            let there = n < leaf.edx & 0x1F;
            assert_eq!(pmu.read(0x309 + n) == Read::Value(0), there);
            assert_eq!(pmu.read_counter(1 << 30 | n, KERNEL) == Read::Value(0), there);
        }
    }
}

/// Registers that the model lacks are not declared, regardless of the embedder's own CPUID.
#[test]
fn what_is_not_offered_is_not_declared() {
    let all = CpuIdResult { eax: !0, ebx: !0, ecx: !0, edx: !0 };
    for configuration in [
        Configuration::Intel(IntelConfiguration::new(5, 8, 4)),
        Configuration::Intel(IntelConfiguration::new(6, 8, 4)),
        Configuration::Amd(AmdConfiguration::perf_mon_v2(6)),
        Configuration::hidden(Vendor::Intel),
        Configuration::hidden(Vendor::Amd),
    ] {
        // The architectural LBRs' XSAVE state, and AMD's counter of retired instructions.
        assert_eq!(answer(configuration, 0x0D, 1, all).ecx, !(1 << 15));
        let lbr = answer(configuration, 0x0D, 15, all);
        assert_eq!((lbr.eax, lbr.ebx, lbr.ecx, lbr.edx), (0, 0, 0, 0));
        assert_eq!(answer(configuration, 0x8000_0008, 0, all).ebx, !(1 << 1));
    }
}

/// TSX (leaf 07H, EBX[4] and EBX[11]) and SVM (leaf 8000_0001H, ECX[2]) announce qualifiers of event
/// selects: CPUID has the features where selects have the bits.
#[test]
fn tsx_and_svm_are_told_where_selects_have_their_qualifiers_alone() {
    let (tsx, svm) = (1 << 4 | 1 << 11, 1 << 2);
    for has in [false, true] {
        for configuration in matrix() {
            let configuration = match configuration {
                Configuration::Intel(intel) => Configuration::Intel(
                    intel.with(|intel| intel.set(IntelFeature::Transactional, has)),
                ),
                Configuration::Amd(amd) => Configuration::Amd(amd.with(|amd| amd.guest_host = has)),
                hidden => hidden,
            };
            for given in [ZEROS, ONES] {
                let intel_hides = matches!(configuration, Configuration::Intel(_)) && !has;
                let ebx = answer(configuration, 7, 0, given).ebx;
                assert_eq!(ebx & tsx, if intel_hides { 0 } else { given.ebx & tsx });
                let amd_hides = matches!(configuration, Configuration::Amd(_)) && !has;
                let ecx = answer(configuration, 0x8000_0001, 0, given).ecx;
                assert_eq!(ecx & svm, if amd_hides { 0 } else { given.ecx & svm });
            }
            let mut pmu = pmu(configuration);
            match configuration {
                Configuration::Intel(_) => {
                    for bit in [32, 33] {
                        let select = 0x43_00C0 | 1 << bit;
                        // IN_TXCP is IA32_PERFEVTSEL2's alone.
                        if has && bit == 33 {
                            write_faults(&mut pmu, 0x186, select);
                            if pmu.read(0x188) != Read::GeneralProtection {
                                set(&mut pmu, 0x188, select);
                            }
                        } else if has {
                            set(&mut pmu, 0x186, select);
                            // A quantity of its own: retired instructions are not it.
                            happen(&mut pmu, INSTRUCTIONS, Privilege::User, 5);
                            assert_eq!(get(&pmu, 0xC1), 0);
                        } else {
                            write_faults(&mut pmu, 0x186, select);
                        }
                    }
                }
                Configuration::Amd(_) => {
                    let written = pmu.write(0xC001_0000, 0x43_00C0 | 3 << 40);
                    let illegal = if has { 0 } else { 3 << 40 };
                    assert_eq!((written.answer, written.illegal), (Write::Done, illegal));
                    assert_eq!(get(&pmu, 0xC001_0000), 0x43_00C0 | if has { 3 << 40 } else { 0 });
                    happen(&mut pmu, INSTRUCTIONS, Privilege::User, 5);
                    assert_eq!(get(&pmu, 0xC001_0004), if has { 0 } else { 5 });
                }
                _ => {}
            }
        }
    }
}

/// A policy denies an event with each of its qualifiers: they are no part of the event's number or unit mask.
#[test]
fn a_policy_that_denies_an_event_denies_it_with_its_qualifiers() {
    use pmu_virt::FedEvents;
    use pmu_virt::policy::{EventFilter, FilterAction, FilterEntry};
    let entries = [FilterEntry::new(0xC0, 0)];
    let guest_host = AmdConfiguration::LEGACY.with(|amd| amd.guest_host = true);
    let transactional =
        IntelConfiguration::new(2, 4, 3).with(|intel| intel.set(IntelFeature::Transactional, true));
    for (configuration, register, qualified) in [
        (Configuration::Intel(transactional), 0x186, 0x1_0043_00C0),
        (Configuration::Amd(guest_host), 0xC001_0000, 0x100_0043_00C0),
    ] {
        for (action, runs) in [(FilterAction::Allow, 1), (FilterAction::Deny, 0)] {
            let filter = EventFilter::<1>::compile(action, 0, &entries).unwrap();
            let mut pmu = VirtualPmu::with_policy(configuration, FedEvents::NONE, filter).unwrap();
            assert_eq!(pmu.write(register, qualified).illegal, 0);
            assert_eq!(pmu.running().count(), runs, "{action:?} {configuration:?}");
        }
    }
}

/// KVM without a PMU reads 0 and drops writes for P6's four registers; hardware faults. Some paravisors
/// answer RDPMC with 0; hardware without counters does not.
#[test]
fn a_hidden_pmu_is_hardwares_or_a_platforms_as_it_is_asked_for() {
    let mut intel = pmu(HIDDEN[0]);
    for address in [0xC1, 0xC2, 0x186, 0x187] {
        read_faults(&intel, address);
        write_faults(&mut intel, address, 0);
    }
    let mut as_kvm = HiddenConfiguration::new(Vendor::Intel);
    as_kvm.registers = HiddenRegisters::Kvm;
    let mut intel = pmu(Configuration::Hidden(as_kvm));
    for address in [0xC1, 0xC2, 0x186, 0x187] {
        assert_eq!(intel.write(address, 0x53_00C0).answer, Write::Done);
        assert_eq!(get(&intel, address), 0);
    }
    for address in [0xC3, 0x188, 0x309, 0x38F] {
        read_faults(&intel, address);
        write_faults(&mut intel, address, 0);
    }
    for vendor in [Vendor::Intel, Vendor::Amd] {
        let mut zero = HiddenConfiguration::new(vendor);
        let faulting = pmu(Configuration::Hidden(zero));
        zero.rdpmc = HiddenRdpmc::Zero;
        let answering = pmu(Configuration::Hidden(zero));
        let user = Mode { cpl: 3, ..KERNEL };
        for ecx in 0..6 {
            assert_eq!(faulting.read_counter(ecx, KERNEL), Read::GeneralProtection);
            let answer = if ecx < 4 { Read::Value(0) } else { Read::GeneralProtection };
            assert_eq!(answering.read_counter(ecx, KERNEL), answer);
            assert_eq!(answering.read_counter(ecx, user), Read::GeneralProtection);
        }
    }
}

/// The list of leaves, for a table that is filled once, agrees with each single answer.
#[test]
fn the_leaves_as_a_list_are_the_answers() {
    for configuration in matrix() {
        let leaves: Vec<_> = configuration.cpuid_leaves().collect();
        for leaf in (0..0x40).chain(0x8000_0000..0x8000_0040) {
            for subleaf in 0..16 {
                for given in [ZEROS, ONES].map(registers) {
                    let told = leaves.iter().find(|told| {
                        told.leaf == leaf && told.subleaf.is_none_or(|only| only == subleaf)
                    });
                    let answer = configuration.cpuid(leaf, subleaf, given);
                    match told {
                        Some(told) => assert_eq!(told.apply(given), answer),
                        // Leaf 0x23 has no further sub-leaves.
                        None if leaf == 0x23 => assert_eq!(answer, [0; 4]),
                        None => assert_eq!(answer, given, "{leaf:#X} {subleaf}"),
                    }
                }
            }
        }
    }
}
