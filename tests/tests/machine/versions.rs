//! Versions of Windows, as the vendor crates enforce them: on recorded processors, every version and width.

use pmu::Machine;
use pmu_amd::Amd64;
use pmu_core::error::NoInterface;
use pmu_core::memory::{CounterMemory, CounterSlot};
use pmu_core::profile::{
    AddedSlot, AddedSource, AddedSources, KProfileSource, ProfileSource, Session,
};
use pmu_core::registers::{CounterId, EventSelect};
use pmu_core::windows::{HalInterface, PointerWidth, Rules, WindowsVersion};
use pmu_core::x86::Snapshot;
use pmu_core::x86::dump::CpuidDump;
use pmu_core::{CounterSet, EventSource};
use pmu_intel::Emon;
use pmu_kprofile::WindowsVersion::*;
use pmu_tests::kprofile::{VERSIONS, WIDTHS, source, x64, x86};
use pmu_tests::{FakePlatform, RegisterFile, Row, amd_processor, data};

fn recorded(dump: &str) -> Snapshot {
    Snapshot::capture(&CpuidDump::parse(dump).unwrap())
}

macro_rules! recorded {
    ($file:literal) => {
        recorded(include_str!(concat!("../../data/cpuid/", $file)))
    };
}

/// Adds sources of these values.
fn added(values: &[u32]) -> &'static AddedSources {
    let added: &'static AddedSources = Box::leak(Box::new(AddedSources::<[AddedSlot; 3]>::new()));
    for value in values {
        let row = ProfileSource::new(*value, "ProfileLater", EventSelect::from_bits(0x3_00C4));
        let row = AddedSource::new(row, CounterSet::GENERAL);
        added.add(Box::leak(Box::new(row))).unwrap();
    }
    added
}

/// KPROFILE_SOURCE: "for 64-bit Windows, right from its start with Windows Server 2003 SP1, but only then for
/// processors whose cpuid vendor string is AuthenticAMD"; GenuineIntel "begins with 64-bit Windows Vista. No 32-bit
/// HAL implements even the generally defined values other than ProfileTime until Windows 8."
fn since(interface: HalInterface, width: PointerWidth) -> WindowsVersion {
    match (interface, width) {
        (_, PointerWidth::Bits32) => Windows8,
        (HalInterface::Amd64, PointerWidth::Bits64) => Server2003Sp1,
        (_, PointerWidth::Bits64) => Vista,
    }
}

#[test]
fn each_interface_is_detected_from_its_version_on() {
    let (intel, amd) = (recorded!("intel-skylake.txt"), recorded!("amd-zen3.txt"));
    for version in VERSIONS {
        for width in WIDTHS {
            let rules = Rules { version, width };
            let absent = NoInterface::NotInVersion(rules);
            let expected = |interface| {
                if since(interface, width) <= version { Ok(()) } else { Err(absent) }
            };
            let emon = expected(HalInterface::Emon);
            assert_eq!(Emon::detect_as_of(&intel, rules).map(drop), emon, "{rules}");
            let amd64 = expected(HalInterface::Amd64);
            assert_eq!(Amd64::detect_as_of(&amd, rules).map(drop), amd64, "{rules}");
            // Another vendor's processor is that first.
            for other in
                [Emon::detect_as_of(&amd, rules).err(), Amd64::detect_as_of(&intel, rules).err()]
            {
                assert!(matches!(other, Some(NoInterface::OtherVendor(_))), "{rules}");
            }
            for (snapshot, expected) in [(&intel, emon), (&amd, amd64)] {
                let machine = Machine::detect_as_of(snapshot, rules);
                assert_eq!(machine.why_time_only(), expected.err());
                let cycles_like = KProfileSource::TOTAL_ISSUES;
                assert_eq!(machine.query(cycles_like).is_supported(), expected.is_ok());
                assert!(machine.query(KProfileSource::TIME).is_supported());
                assert!(!machine.unit().counters().is_empty(), "its counters take events");
            }
        }
    }
}

/// A 32-bit HAL knows families 6 and 15 of Intel's alone.
#[test]
fn other_families_of_intels_have_no_interface_in_32_bits() {
    let skylake = recorded!("intel-skylake.txt");
    for (signature, family) in [
        (0x0005_06E3, 6),
        (0x0000_0F41, 15),
        (0x0000_05A0, 5),
        (0x0030_0F00, 18),
        (0x0040_0F10, 19),
    ] {
        let processor = Snapshot::capture(move |leaf: u32, subleaf: u32| {
            let mut found = skylake.leaf(leaf, subleaf);
            if leaf == 1 {
                found.eax = signature;
            }
            found
        });
        let known =
            if matches!(family, 6 | 15) { Ok(()) } else { Err(NoInterface::OtherFamily(family)) };
        assert_eq!(Emon::detect_as_of(&processor, x86(Windows8)).map(drop), known);
        assert_eq!(Emon::detect_as_of(&processor, x64(Windows8)).map(drop), Ok(()));
        assert_eq!(Emon::detect(&processor).map(drop), Ok(()));
    }
}

/// Time is of every version; the tables' sources of those with the interface; what came later, of later ones.
#[test]
fn a_source_is_of_the_versions_that_have_it() {
    use HalInterface::{Amd64, Default, Emon};
    for version in VERSIONS {
        for width in WIDTHS {
            let added = added(&[0x25, 0xC0]);
            let has = |interface, value| {
                Rules { version, width }.has_source(interface, source(value), added)
            };
            for interface in [Default, Emon, Amd64] {
                assert!(has(interface, 0));
            }
            let in_table = |interface| since(interface, width) <= version;
            for (interface, value, expected) in [
                (Default, 0x13, false),
                (Emon, 0x13, in_table(Emon)),
                (Emon, 0x1F, in_table(Emon)),
                (Emon, 0x20, Windows10v1903 <= version),
                (Emon, 0x24, Windows10v1903 <= version),
                (Emon, 0x25, Windows10v1803 <= version),
                (Amd64, 0x20, in_table(Amd64)),
                (Amd64, 0xBF, in_table(Amd64)),
                (Amd64, 0xC0, Windows10v1803 <= version),
            ] {
                assert_eq!(has(interface, value), expected, "{version:?} {interface:?} {value:#x}");
            }
        }
    }
}

/// Above the tables, each value is a source while it is added, and no other value ever is.
#[test]
fn a_value_above_the_table_is_a_source_only_while_it_is_added() {
    let (none, some) = (AddedSources::none(), added(&[0x25, 0xC1, 0x8000]));
    for version in VERSIONS {
        for width in WIDTHS {
            let rules = Rules { version, width };
            for value in [0x25, 0x26, 0x77, 0xC0, 0xC1, 0x8000, 0x8001, u32::MAX] {
                let value = source(value);
                let of_amd = |added| rules.has_source(HalInterface::Amd64, value, added);
                let of_intel = |added| rules.has_source(HalInterface::Emon, value, added);
                let is_added = matches!(value.value(), 0x25 | 0xC1 | 0x8000);
                let expected = is_added && Windows10v1803 <= version;
                assert!(!of_intel(none), "{rules} {value}");
                assert_eq!(of_intel(some), expected, "{rules} {value}");
                if value.value() >= 0xC0 {
                    assert!(!of_amd(none), "{rules} {value}");
                    assert_eq!(of_amd(some), expected, "{rules} {value}");
                }
                assert!(!rules.has_source(HalInterface::Default, value, some));
            }
        }
    }
    some.remove(source(0x25)).unwrap();
    assert!(!x64(Windows11).has_source(HalInterface::Emon, source(0x25), some));
}

/// The tables are complete: "the Emon-specific profile sources are the complete set", and the Amd64 interface
/// "continues with many more" after its nine general ones. No other value is a source, unless it was added later.
#[test]
fn a_value_that_no_table_has_is_no_source() {
    let values = |rows: &[Row<'_>]| rows.iter().map(|row| row.number("value") as u32).collect();
    let tables: [(_, Vec<u32>, u32); 3] = [
        (HalInterface::Default, vec![0], 1),
        (HalInterface::Emon, values(&data!("emon_sources.csv")), 0x20),
        (HalInterface::Amd64, values(&data!("amd64_sources.csv")), 0xC0),
    ];
    for (interface, table, end) in tables {
        for value in (0..end).filter_map(KProfileSource::new) {
            let has = x64(Windows10v1507).has_source(interface, value, AddedSources::none());
            assert_eq!(has, table.contains(&value.value()), "{interface:?} {value}");
        }
    }
}

/// The Amd64 interface has four counters, as the original release of Windows 10 has it; version 1903 brought
/// HalQueryProfileNumberOfCounters, by which the HAL tells their number.
#[test]
fn a_windows_whose_hal_has_four_of_amds_counters_takes_four() {
    for version in VERSIONS.into_iter().filter(|version| *version >= Windows8) {
        for (width, (core, v2, all)) in WIDTHS.into_iter().zip([(true, 0, 6), (true, 8, 8)]) {
            let (rules, processor) = (Rules { version, width }, amd_processor(core, v2));
            let expected = if version < Windows10v1903 { 4 } else { all };
            let amd64 = Amd64::detect_as_of(&processor, rules).unwrap();
            assert_eq!(amd64.unit().counters().len(), expected, "{rules}");
            assert_eq!(amd64.unit_of(&processor).counters().len(), expected, "{rules}");
            let machine = Machine::detect_as_of(&processor, rules);
            assert_eq!(machine.unit().counters().len(), expected, "{rules}");
            assert_eq!(machine.unit_of(&processor).counters().len(), expected, "{rules}");
            let first = machine.unit().counter(CounterId::general(0).unwrap()).unwrap();
            let select = if expected == 4 { 0xC001_0000 } else { 0xC001_0200 };
            assert_eq!(first.control().register().get(), select, "{rules}");
        }
    }
    // Hygon's are like AMD's; of another vendor's processor there are none, and the reason stays.
    let hygon = recorded!("hygon-dhyana.txt");
    assert_eq!(pmu_amd::legacy_counters(&hygon).counters(), CounterSet::from_bits(0b1111));
    let intel = pmu_amd::legacy_counters(&recorded!("intel-skylake.txt"));
    assert_eq!(intel.why_absent(), Some(NoInterface::OtherVendor(*b"GenuineIntel")));
    // Whatever Windows it is to be like, a processor with four has four.
    let old = Amd64::detect_as_of(&amd_processor(false, 0), x64(Windows11)).unwrap();
    assert_eq!(old.unit().counters().len(), 4);
}

/// "The four Performance Event Select Registers are the model-specific registers 0xC0010000 …; The counters
/// themselves are the model-specific registers 0xC0010004 to 0xC0010007."
#[test]
fn amds_four_legacy_counters_are_chosen_whatever_else_there_is() {
    for (core, v2) in [(false, 0), (true, 0), (true, 8)] {
        let processor = amd_processor(core, v2);
        let amd64 = Amd64::detect(&processor).unwrap().with_legacy_counters();
        assert_eq!(amd64.unit().counters(), CounterSet::from_bits(0b1111));
        assert_eq!(amd64.unit_of(&processor), *amd64.unit());
        assert_eq!(amd64.unit().global().is_some(), v2 != 0, "which governs these, too");
        for number in 0..4 {
            let counter = amd64.unit().counter(CounterId::general(number).unwrap()).unwrap();
            let number = u32::from(number);
            assert_eq!(counter.control().register().get(), 0xC001_0000 + number);
            assert_eq!(counter.value_register().get(), 0xC001_0004 + number);
        }
        // No other register is there.
        let global = if v2 == 0 { 0..0 } else { 0xC000_0300..0xC000_0303 };
        let msr = RegisterFile::new((0xC001_0000..0xC001_0008).chain(global), 0xC001_0004);
        let (platform, memory) =
            (FakePlatform::default(), CounterMemory::<[CounterSlot; 6]>::new());
        let mut session =
            Session::take(&amd64, &processor, CounterSet::GENERAL, (&msr, &platform), &memory)
                .unwrap();
        assert_eq!(session.counters().usable.len(), 4);
        for value in [0x19, 0x1A, 0x1B, 0x1C] {
            session.start(source(value)).unwrap();
        }
        assert!(session.start(source(0x1D)).is_err());
        assert_eq!(msr.get(0xC001_0003), 0x0053_0400);
        session.shut_down().unwrap();
        // A processor of another kind has none of them.
        let other = amd64.unit_of(&recorded!("intel-skylake.txt"));
        assert!(other.counters().is_empty());
    }
}
