//! Configurations of hosts, and of two hosts; the list of registers.

use pmu_core::x86::dump::CpuidDump;
use pmu_core::x86::raw_cpuid::CpuIdReader;
use pmu_tests::data;
use pmu_tests::software_pmu::*;
use pmu_virt::configuration::{
    AmdConfiguration, AmdCounters, Configuration, ConfigurationError, HiddenRegisters, HostError,
    IntelConfiguration, IntelFeature, Vendor,
};
use pmu_virt::registers::RegisterKind;
use pmu_virt::{FedEvents, Read, VirtualPmu, Write};

const NAMES: [(Vendor, [u32; 3]); 2] = [
    (Vendor::Intel, [0x756E_6547, 0x6C65_746E, 0x4965_6E69]),
    (Vendor::Amd, [0x6874_7541, 0x444D_4163, 0x6974_6E65]),
];

/// CPUID of a processor that has every other feature, on which a guest sees `configuration`.
fn cpuid_of(configuration: Configuration) -> impl Fn(u32, u32) -> [u32; 4] {
    let vendor = configuration.vendor();
    let [b, c, d] = NAMES.into_iter().find(|(named, _)| *named == vendor).unwrap().1;
    move |leaf, subleaf| {
        let given = match leaf {
            0 => [0x40, b, c, d],
            0x8000_0000 => [0x8000_0028, 0, 0, 0],
            _ => [u32::MAX; 4],
        };
        configuration.cpuid(leaf, subleaf, given)
    }
}

/// A hypervisor in a guest finds the guest's configuration.
#[test]
fn a_configuration_comes_back_from_its_own_cpuid() {
    let mut some = 0;
    for configuration in matrix() {
        let capabilities = match configuration {
            Configuration::Intel(intel) => {
                u64::from(intel.has(IntelFeature::FullWidthWrites)) << 13
            }
            _ => 0,
        };
        let found = Configuration::from_cpuid(cpuid_of(configuration), capabilities);
        match configuration {
            Configuration::Hidden(hidden) if hidden.vendor == Vendor::Intel => {
                assert_eq!(found, Err(HostError::NoPmu));
            }
            // Every processor of AMD has the legacy counters.
            Configuration::Hidden(_) => {
                let legacy = AmdConfiguration::LEGACY.with(|amd| amd.guest_host = true);
                assert_eq!(found, Ok(Configuration::Amd(legacy)));
            }
            mut expected => {
                // A width without a counter is not told.
                if let Configuration::Intel(intel) = &mut expected
                    && intel.fixed == 0
                {
                    let Ok(Configuration::Intel(found)) = found else { panic!("{found:?}") };
                    intel.fixed_width = found.fixed_width;
                }
                assert_eq!(found, Ok(expected));
                some += 1;
            }
        }
    }
    assert!(some > 100);
}

#[test]
fn every_feature_comes_back_from_cpuid() {
    // A host's AnyThread is not passed on: see the test below.
    for feature in IntelFeature::ALL.into_iter().filter(|one| *one != IntelFeature::AnyThread) {
        let intel = IntelConfiguration::new(6, 8, 4).with(|intel| intel.set(feature, true));
        let configuration = Configuration::Intel(intel);
        assert_eq!(Configuration::from_cpuid(cpuid_of(configuration), 1 << 13), Ok(configuration));
    }
    let fields: [fn(&mut IntelConfiguration); 3] = [
        |intel| intel.events = 0xA5,
        |intel| (intel.general, intel.fixed) = (0b1010_0001, 0b1000_0010),
        |intel| (intel.general_width, intel.fixed_width) = (32, 63),
    ];
    for field in fields {
        let configuration = Configuration::Intel(IntelConfiguration::new(6, 8, 4).with(field));
        assert_eq!(Configuration::from_cpuid(cpuid_of(configuration), 1 << 13), Ok(configuration));
    }
    let amd = AmdConfiguration::CORE_EXTENSION.with(|amd| amd.guest_host = true);
    let configuration = Configuration::Amd(amd);
    assert_eq!(Configuration::from_cpuid(cpuid_of(configuration), 0), Ok(configuration));
}

/// SDM vol. 3B, "Architectural Performance Monitoring Version 3": with AnyThread a counter counts the other thread of
/// its core, which may be another guest's. CPUID declares it by leaf 0x0A, EDX bit 15 = 0.
#[test]
fn a_guest_is_not_offered_its_neighbors_thread_unless_the_hypervisor_asks_for_it() {
    let host =
        IntelConfiguration::new(4, 8, 3).with(|intel| intel.set(IntelFeature::AnyThread, true));
    let cpuid = cpuid_of(Configuration::Intel(host));
    assert_eq!(cpuid(0x0A, 0)[3] >> 15 & 1, 0, "the host has it");
    let found = Configuration::from_cpuid(cpuid, 1 << 13).unwrap();
    let mut guest = VirtualPmu::new(found, FedEvents::NONE).unwrap();
    assert_eq!(found.cpuid(0x0A, 0, [0; 4])[3] >> 15 & 1, 1);
    write_faults(&mut guest, 0x186, 0x63_003C);
    write_faults(&mut guest, 0x38D, 0b0111);
    assert_eq!(found, Configuration::Intel(IntelConfiguration::new(4, 8, 3)));
}

/// SDM vol. 2A, CPUID leaf 0x0A, EAX 31:24 is the length of EBX's vector, and leaf 0x23, sub-leaf 3 has it in 32 bits:
/// later processors declare more events than the model's eight.
#[test]
fn architectural_events_from_the_ninth_on_are_left_out_and_the_host_is_not_refused() {
    let cpuid = |extended: bool| {
        move |leaf, subleaf| match (leaf, subleaf) {
            (0, _) => [0x23, 0x756E_6547, 0x6C65_746E, 0x4965_6E69],
            (7, 0) => [1, 0, 0, 0],
            (7, 1) => [u32::from(extended) << 8, 0, 0, 0],
            // Length 13; events 1, 8 and 12 are absent.
            (0x0A, _) => [0x0D30_0805, 1 << 1 | 1 << 8 | 1 << 12, 0, 48 << 5 | 1 << 15 | 3],
            (0x23, 0) => [0b1011, 0, 0, 0],
            (0x23, 1) => [0xFF, 0b111, 0, 0],
            (0x23, 3) => [0x0EFD, 0, 0, 0],
            _ => [0; 4],
        }
    };
    for extended in [false, true] {
        let Ok(Configuration::Intel(found)) = Configuration::from_cpuid(cpuid(extended), 0) else {
            panic!("refused");
        };
        assert_eq!(found.events, 0xFD, "{extended}");
        // The guest is told of seven or eight.
        let [a, b, ..] = Configuration::Intel(found).cpuid(0x0A, 0, [0; 4]);
        assert_eq!((a >> 24, b), (8, 1 << 1), "{extended}");
    }
}

/// Against the data file of recorded dumps, whose columns come from the manuals' tables.
#[test]
fn recorded_processors_are_what_their_manuals_say() {
    let (mut intel_seen, mut amd_seen) = (0, 0);
    for row in data!("cpuid/expected.csv") {
        let file = row.text("file");
        let path = format!("{}/data/cpuid/{file}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap();
        let dump = CpuidDump::parse(&text).unwrap();
        let found = Configuration::from_cpuid(
            |leaf, subleaf| {
                let answer = (&dump).cpuid2(leaf, subleaf);
                [answer.eax, answer.ebx, answer.ecx, answer.edx]
            },
            0,
        );
        let number = |column| row.number(column);
        match (row.text("vendor"), found) {
            ("AuthenticAMD" | "HygonGenuine", Ok(Configuration::Amd(amd))) => {
                // The columns are of AMD's processors alone; Hygon's have the core extension.
                let hygon = row.text("vendor") == "HygonGenuine";
                let expected = match (number("amd_perfmon_v2"), number("amd_perfctr_core")) {
                    _ if hygon => AmdCounters::CoreExtension,
                    (1, _) => {
                        AmdCounters::PerfMonV2 { counters: number("amd_core_counters") as u8 }
                    }
                    (_, 1) => AmdCounters::CoreExtension,
                    _ => AmdCounters::Legacy,
                };
                assert_eq!(amd.counters, expected, "{file}");
                amd_seen += 1;
            }
            (_, Ok(Configuration::Intel(intel))) => {
                assert_eq!(u64::from(intel.version), number("perfmon_version"), "{file}");
                assert_eq!(u64::from(intel.general), (1 << number("gp_counters")) - 1, "{file}");
                assert_eq!(u64::from(intel.general_width), number("gp_width"), "{file}");
                let declared = (1 << number("ebx_length")) - 1;
                let (fixed, events) = match file {
                    // Leaf 0x23 of Meteor Lake tells of a fourth fixed counter, and of top-down slots.
                    "intel-meteorlake.txt" => (0xF, 0xFF),
                    _ => (
                        ((1 << number("fixed_counters")) - 1) | number("fixed_bitmap"),
                        declared & !number("ebx") & 0xFF,
                    ),
                };
                assert_eq!(u64::from(intel.fixed), fixed, "{file}");
                assert_eq!(u64::from(intel.events), events, "{file}");
                if intel.fixed != 0 {
                    assert_eq!(u64::from(intel.fixed_width), number("fixed_width"), "{file}");
                }
                intel_seen += 1;
            }
            (_, Err(HostError::NoPmu)) => assert_eq!(number("perfmon_version"), 0, "{file}"),
            // Leaf 0x23 of Arrow Lake tells of ten general counters.
            (_, Err(HostError::Counters(0x3FF))) => assert_eq!(file, "intel-arrowlake.txt"),
            (_, other) => panic!("{file}: {other:?}"),
        }
    }
    assert!(intel_seen > 15 && amd_seen > 8, "{intel_seen} {amd_seen}");
}

#[test]
fn a_host_that_the_model_cannot_be_is_refused() {
    let intel = |leaves: &'static [(u32, [u32; 4])]| {
        Configuration::from_cpuid(
            move |leaf, _| match leaf {
                0 => [0x0A, 0x756E_6547, 0x6C65_746E, 0x4965_6E69],
                _ => leaves.iter().find(|(of, _)| *of == leaf).map_or([0; 4], |(_, leaf)| *leaf),
            },
            0,
        )
    };
    assert_eq!(intel(&[]), Err(HostError::NoPmu));
    // Nine counters; ten fixed ones; fixed counter 9 by the bitmap; version 7; 20 bits.
    assert_eq!(intel(&[(0x0A, [0x0730_0902, 0, 0, 0])]), Err(HostError::Counters(0x1FF)));
    assert_eq!(intel(&[(0x0A, [0x0730_0402, 0, 0, 0x60A])]), Err(HostError::Counters(0x3FF)));
    assert_eq!(intel(&[(0x0A, [0x0730_0405, 0, 0x207, 0x603])]), Err(HostError::Counters(0x207)));
    // Leaf 0x23, whose sub-leaf 1 is the counters' only where sub-leaf 0 says so.
    let extended = |subleaves| {
        Configuration::from_cpuid(
            move |leaf, subleaf| match (leaf, subleaf) {
                (0, _) => [0x23, 0x756E_6547, 0x6C65_746E, 0x4965_6E69],
                (7, 0) => [1, 0, 0, 0],
                (7, 1) => [1 << 8, 0, 0, 0],
                (0x0A, _) => [0x0730_0405, 0, 0, 0x603],
                (0x23, 0) => [subleaves, 0, 0, 0],
                (0x23, 1) => [0xFF, 0b1, 0, 0],
                _ => [0; 4],
            },
            0,
        )
    };
    for (subleaves, counters) in [(0b01, (4, 3)), (0b11, (8, 1))] {
        let Ok(Configuration::Intel(intel)) = extended(subleaves) else { panic!("{subleaves}") };
        assert!(intel.has(IntelFeature::ExtendedLeaf));
        assert_eq!((intel.general.count_ones(), intel.fixed.count_ones()), counters);
    }
    let refused = |why| Err(HostError::Configuration(why));
    let version_7 = intel(&[(0x0A, [0x0730_0407, 0, 7, 0x603])]);
    assert_eq!(version_7, refused(ConfigurationError::Version(7)));
    let narrow = intel(&[(0x0A, [0x0714_0402, 0, 0, 0x603])]);
    assert_eq!(narrow, refused(ConfigurationError::Width(20)));
    let amd = Configuration::from_cpuid(
        |leaf, _| match leaf {
            0 => [0x10, 0x6874_7541, 0x444D_4163, 0x6974_6E65],
            0x8000_0000 => [0x8000_0022, 0, 0, 0],
            0x8000_0022 => [1, 12, 0, 0],
            _ => [0; 4],
        },
        0,
    );
    assert_eq!(amd, refused(ConfigurationError::AmdCounters(12)));
    assert_eq!(Configuration::from_cpuid(|_, _| [0; 4], 0), Err(HostError::Vendor));
}

/// The registers and CPUID of the common PMU of two hosts are in both.
#[test]
fn two_hosts_have_in_common_what_each_of_them_has() {
    let all: Vec<_> = matrix().collect();
    for one in &all {
        assert_eq!(one.intersect(one), Ok(*one));
        for other in all.iter().step_by(7) {
            let common = one.intersect(other);
            assert_eq!(other.intersect(one), common, "{one:?} {other:?}");
            if one.vendor() != other.vendor() {
                assert_eq!(common, Err(HostError::NothingInCommon));
                continue;
            }
            let common = common.unwrap();
            assert_eq!(common.check(), Ok(()));
            for register in common.registers().filter(|register| register.exists) {
                if matches!(common, Configuration::Hidden(_)) {
                    continue;
                }
                for host in [one, other] {
                    let there = host.registers().find(|of| of.address == register.address).unwrap();
                    assert!(there.exists, "{register:?}");
                    assert_eq!(register.legal & !there.legal, 0, "{register:?}");
                }
            }
        }
    }
}

#[test]
fn an_intersection_by_hand() {
    let intel = |version, general, fixed| IntelConfiguration::new(version, general, fixed);
    let common = |one: IntelConfiguration, other: IntelConfiguration| {
        Configuration::Intel(one).intersect(&Configuration::Intel(other))
    };
    let sixth = intel(6, 8, 4).with(|intel| {
        intel.set(IntelFeature::UnitMask2, true);
        intel.set(IntelFeature::Equal, true);
        intel.events = 0b1100;
        intel.general_width = 64;
        intel.set(IntelFeature::Transactional, true);
    });
    let fifth = intel(5, 4, 3).with(|intel| {
        intel.events = 0b0110;
        intel.set(IntelFeature::FullWidthWrites, false);
        intel.set(IntelFeature::Transactional, true);
    });
    let expected = intel(5, 4, 3).with(|intel| {
        intel.events = 0b0100;
        intel.set(IntelFeature::FullWidthWrites, false);
        intel.set(IntelFeature::Transactional, true);
    });
    assert_eq!(common(sixth, fifth), Ok(Configuration::Intel(expected)));
    // Version 1 has no fixed counters.
    let first = intel(1, 2, 0);
    assert_eq!(common(intel(2, 4, 3), first), Ok(Configuration::Intel(first)));
    // Gaps that the other cannot tell.
    let gaps = intel(5, 8, 0).with(|intel| {
        intel.set(IntelFeature::ExtendedLeaf, true);
        intel.general = 0b1010;
    });
    let told = HostError::Configuration(ConfigurationError::GeneralGaps { general: 0b1010 });
    assert_eq!(common(gaps, intel(5, 8, 0)), Err(told));
    let amd = |amd: AmdConfiguration| Configuration::Amd(amd);
    let (four, six) = (AmdConfiguration::perf_mon_v2(4), AmdConfiguration::perf_mon_v2(6));
    let core = AmdConfiguration::CORE_EXTENSION;
    assert_eq!(amd(four).intersect(&amd(six)), Ok(amd(four)));
    assert_eq!(amd(six).intersect(&amd(core)), Ok(amd(core)));
    // Four counters are not the core extension's six.
    assert_eq!(amd(four).intersect(&amd(core)), Ok(amd(AmdConfiguration::LEGACY)));
    let hidden = Configuration::hidden(Vendor::Amd);
    assert_eq!(amd(six).intersect(&hidden), Ok(hidden));
    let mut otherwise = hidden;
    if let Configuration::Hidden(hidden) = &mut otherwise {
        hidden.registers = HiddenRegisters::Kvm;
    }
    assert_eq!(hidden.intersect(&otherwise), Err(HostError::NothingInCommon));
}

/// The list is complete for a guest: each address in it is the PMU's, and no other.
#[test]
fn the_registers_of_the_list_are_those_that_the_pmu_answers() {
    for configuration in matrix().step_by(5) {
        let pmu = VirtualPmu::new(configuration, FedEvents::NONE).unwrap();
        let listed: Vec<_> = configuration.registers().collect();
        let addresses: std::collections::HashMap<_, _> =
            listed.iter().map(|register| (register.address, *register)).collect();
        assert_eq!(addresses.len(), listed.len(), "an address is listed twice");
        let msrs = [0..0x2000, 0xC000_0000..0xC000_2000, 0xC001_0000..0xC001_2000];
        for address in msrs.into_iter().flatten() {
            let Some(register) = addresses.get(&address) else {
                assert_eq!(pmu.read(address), Read::Unhandled, "{address:#X}");
                assert_eq!(pmu.check_write(address, 0).answer, Write::Unhandled, "{address:#X}");
                continue;
            };
            let hidden = matches!(configuration, Configuration::Hidden(_));
            match pmu.read(address) {
                Read::Value(_) => assert!(register.exists && register.owned == u64::MAX || hidden),
                Read::Shared { mask, .. } => assert!(register.exists && register.owned == mask),
                Read::GeneralProtection => assert!(!register.exists, "{register:?}"),
                other => panic!("{register:?}: {other:?}"),
            }
            for bit in (0..64).map(|bit| 1u64 << bit).filter(|bit| register.owned & bit != 0) {
                let written = pmu.check_write(address, bit);
                let legal = register.legal & bit != 0;
                // A write of a narrow counter is about its lower half.
                let narrow = (0xC1..0xC9).contains(&address);
                // IA32_MISC_ENABLE's bits stay as they are.
                let kept = register.kind == RegisterKind::MiscEnable;
                if !narrow && !kept {
                    assert_eq!(written.illegal & bit == 0, legal, "{register:?} {bit:#X}");
                }
                if !register.is_writable && !hidden && !kept {
                    assert_eq!(written.illegal, u64::MAX, "{register:?}");
                }
            }
        }
    }
}

/// A host's writes restore values that the guest's cannot: SDM vol. 4, the status is read-only and counters at 0xC1
/// are sign-extended.
#[test]
fn the_host_restores_what_a_guest_cannot_write() {
    let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    let mut pmu = pmu(configuration);
    assert_eq!(pmu.write(0x38E, 1).answer, Write::GeneralProtection);
    assert_eq!(pmu.host_write(0x38E, 1 << 59 | 1).answer, Write::Done);
    assert_eq!(get(&pmu, 0x38E), 1 << 59 | 1);
    assert_eq!(pmu.host_write(0xC1, 0x8000_0000).answer, Write::Done);
    assert_eq!(get(&pmu, 0xC1), 0x8000_0000);
    let _ = pmu.write(0xC1, 0x8000_0000);
    assert_eq!(get(&pmu, 0xC1), 0xFFFF_8000_0000);
    // Neither writes what the PMU lacks.
    assert_eq!(pmu.host_write(0x38E, 1 << 5).answer, Write::GeneralProtection);
    assert_eq!(pmu.host_write(0x186, 1 << 40).answer, Write::GeneralProtection);
    // The capabilities are the same or the wrong ones.
    assert_eq!(pmu.host_write(0x345, 1 << 13).answer, Write::Done);
    assert_eq!(pmu.host_write(0x345, 0).answer, Write::GeneralProtection);
    assert_eq!(pmu.write(0x345, 1 << 13).answer, Write::GeneralProtection);
    // A counter that the host writes runs on from there.
    set(&mut pmu, 0x186, 0x53_003C);
    let _ = pmu.host_write(0x38E, 0);
    let _ = pmu.host_write(0xC1, mask(48));
    assert!(happen(&mut pmu, CYCLES, pmu_virt::Privilege::User, 1).pmi);
    let mut amd = pmu_of(AmdConfiguration::perf_mon_v2(6));
    assert_eq!(amd.write(0xC000_0300, 0x3F).answer, Write::Done);
    assert_eq!(get(&amd, 0xC000_0300), 0, "the guest's write is ignored");
    let _ = amd.host_write(0xC000_0300, 0x3F);
    assert_eq!(get(&amd, 0xC000_0300), 0x3F);
}

fn pmu_of(amd: AmdConfiguration) -> VirtualPmu {
    pmu(Configuration::Amd(amd))
}

/// The answer in advance is the write's answer, and asking for it changes nothing.
#[test]
fn a_dry_run_tells_what_the_write_does() {
    for configuration in matrix().step_by(3) {
        let mut pmu = pmu(configuration);
        for register in configuration.registers() {
            for value in [0, 1, 0x43_00C0, 1 << 12, 1 << 62, u64::MAX] {
                let before = pmu.state();
                let told = pmu.check_write(register.address, value);
                assert_eq!(pmu.state(), before);
                assert_eq!(pmu.write(register.address, value), told, "{register:?} {value:#X}");
            }
        }
    }
}
