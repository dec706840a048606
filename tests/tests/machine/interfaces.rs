//! The names, rows and first intervals of each interface, and the processors that have it.

use core::sync::atomic::Ordering;

use pmu::Machine;
use pmu_amd::{Amd64, Generation, Zen};
use pmu_core::error::{CounterError, NoInterface};
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::EventSelect;
use pmu_core::x86::Snapshot;
use pmu_core::x86::raw_cpuid::CpuIdResult;
use pmu_core::{CounterSession, CounterSet, Event, EventSource, Events, GenericEvent};
use pmu_intel::Emon;
use pmu_tests::Reason;
use pmu_tests::{FakePlatform, RegisterFile, result};

/// CPUID of an AMD processor: its family and model, leaf 0x80000001's ECX and EDX, and leaf 0x80000022's EAX
/// and EBX.
#[derive(Clone, Copy)]
struct Amd {
    family: u32,
    model: u32,
    features: [u32; 2],
    perfmon_v2: [u32; 2],
}

impl Amd {
    const LONG_MODE: u32 = 1 << 29;
    const CORE_EXTENSION: u32 = 1 << 23;

    fn of(family: u32, model: u32) -> Self {
        Self { family, model, features: [0, Self::LONG_MODE], perfmon_v2: [0, 0] }
    }

    fn snapshot(self) -> Snapshot {
        let (base, extended) = (self.family.min(0xF), self.family.saturating_sub(0xF));
        let signature =
            extended << 20 | (self.model >> 4) << 16 | base << 8 | (self.model & 0xF) << 4;
        Snapshot::capture(move |leaf: u32, _: u32| -> CpuIdResult {
            result(match leaf {
                0 => [1, 0x6874_7541, 0x444D_4163, 0x6974_6E65],
                1 => [signature, 0, 0, 0],
                0x8000_0000 => [0x8000_0022, 0, 0, 0],
                0x8000_0001 => [0, 0, self.features[0], self.features[1]],
                0x8000_0022 => [self.perfmon_v2[0], self.perfmon_v2[1], 0, 0],
                _ => [0; 4],
            })
        })
    }
}

/// The names are Windows' but for Zen's, which Windows does not have; that Amd64 stops without memory, and Emon goes
/// on, is Windows' too.
#[test]
fn an_interface_has_its_name_its_rows_and_their_first_intervals() {
    let (emon, amd64) = (Emon::declared(), Amd64::declared());
    let zen = Zen::detect(&Amd::of(0x19, 0x61).snapshot()).unwrap();
    let amd = Machine::detect(&Amd::of(0x19, 0x61).snapshot());
    let zen_machine = Machine::detect_zen(&Amd::of(0x19, 0x61).snapshot());
    let none = Machine::detect(&Snapshot::capture(|_: u32, _: u32| result([0; 4])));
    let all: [(&dyn EventSource<Processor = Snapshot, Facility = ()>, _, _); 6] = [
        (&emon, "Emon", false),
        (&amd64, "Amd64", true),
        (&zen, "Zen", true),
        (&amd, "Amd64", true),
        (&zen_machine, "Zen", true),
        (&none, "Default", false),
    ];
    for (interface, name, requires_memory) in all {
        assert_eq!((interface.name(), interface.requires_memory()), (name, requires_memory));
        let rows = interface.table().rows().len();
        for row in 1..rows {
            let interval = interface.intervals()[row].load(Ordering::Relaxed);
            assert!(interface.is_declared(row), "{name}: {row}");
            assert_eq!(interval, 65_536, "{name}: {row}");
        }
        assert_eq!(interface.intervals()[0].load(Ordering::Relaxed), 10_000);
        for beyond in [rows, rows + 1, usize::MAX] {
            assert!(!interface.is_declared(beyond), "{name}: {beyond} of {rows}");
        }
    }
}

/// SDM vol. 2A, CPUID leaf 0x23: subleaf 0's EBX declares the second unit mask (bit 0; 47:40 of a select) and EQ (bit
/// 1; bit 36); subleaf 1 has the bitmaps of the general and the fixed counters, which replace leaf 0x0A's.
#[test]
fn counters_and_bits_of_leaf_0x23_replace_those_of_leaf_0x0a() {
    let unit = |version: u32, features: u32, bitmaps: [u32; 2]| {
        let processor = Snapshot::capture(move |leaf: u32, subleaf: u32| -> CpuIdResult {
            result(match (leaf, subleaf) {
                (0, _) => [0x23, 0x756E_6547, 0x6C65_746E, 0x4965_6E69],
                (7, 0) => [1, 0, 0, 0],
                (7, 1) => [1 << 8, 0, 0, 0],
                (0x0A, _) => [0x0830_0400 | version, 0, 0, 3 | 48 << 5],
                (0x23, 0) => [0b11, features, 0, 0],
                (0x23, 1) => [bitmaps[0], bitmaps[1], 0, 0],
                _ => [0; 4],
            })
        });
        pmu_intel::counters(&processor)
    };
    let (unit_mask_2, equal) = (0xFF << 40, 1 << 36);
    for (features, legal) in
        [(0, 0), (1, unit_mask_2), (2, equal), (3, unit_mask_2 | equal), (!3, 0)]
    {
        let both = EventSelect::from_bits(unit_mask_2 | equal);
        let illegal = unit(6, features, [0xF, 7]).illegal_bits(both);
        assert_eq!(illegal, (unit_mask_2 | equal) & !legal, "{features:#b}");
    }
    let counters = |version, bitmaps| unit(version, 0, bitmaps).counters().bits();
    assert_eq!(counters(6, [0b1010, 0b1001]), 0b1001 << 32 | 0b1010);
    assert_eq!(counters(6, [0, 0]), 0b111 << 32 | 0b1111);
    // Before version 6 there are no registers for more than ten.
    assert_eq!(counters(6, [0xFFF, 0b1]), 1 << 32 | 0xFFF);
    assert_eq!(counters(5, [0xFFF, 0b1]), 1 << 32 | 0x3FF);
}

/// APM vol. 3, appendix E: PerfMonV2 is bit 0 of leaf 0x80000022's EAX, and its counters are EBX bits 3:0; the core
/// extension is bit 23 of leaf 0x80000001's ECX.
#[test]
fn counters_of_amd_are_those_that_cpuid_declares() {
    let counters = |core, perfmon_v2| {
        let processor = Amd { features: [core, Amd::LONG_MODE], perfmon_v2, ..Amd::of(0x19, 0) };
        let unit = pmu_amd::counters(&processor.snapshot());
        (unit.counters().len(), unit.global().is_some())
    };
    assert_eq!(counters(0, [0, 0]), (4, false));
    assert_eq!(counters(Amd::CORE_EXTENSION, [0, 0]), (6, false));
    assert_eq!(counters(!Amd::CORE_EXTENSION, [0, 0]), (4, false));
    // Counters without the feature, and the feature without counters.
    assert_eq!(counters(0, [!1, 6]), (4, false));
    assert_eq!(counters(Amd::CORE_EXTENSION, [1, !0xF]), (6, false));
    assert_eq!(counters(0, [1, 0xF6]), (6, true));
    assert_eq!(counters(Amd::CORE_EXTENSION, [1, 5]), (5, true));
}

/// AMD's PPRs: PMCx120, cycles of P0's clock, comes with Zen 4.
#[test]
fn reference_cycles_of_amd_come_with_zen_4() {
    for (family, model, has) in [
        (0x15, 2, false),
        (0x17, 0x71, false),
        (0x19, 0x0F, false),
        (0x19, 0x10, true),
        (0x19, 0x21, false),
        (0x19, 0x50, false),
        (0x19, 0x61, true),
        (0x19, 0xA0, true),
        (0x1A, 0x44, true),
    ] {
        let unit = pmu_amd::counters(&Amd::of(family, model).snapshot());
        let there = unit.generic(GenericEvent::ReferenceCycles).is_some();
        assert_eq!(there, has, "family {family:#X} model {model:#X}");
    }
}

/// APM vol. 3, appendix E: SVM is bit 2 of leaf 0x80000001's ECX.
#[test]
fn an_event_of_guests_takes_svm() {
    const SVM: u32 = 1 << 2;
    for (ecx, has) in [(0, false), (SVM, true), (!(SVM | Amd::CORE_EXTENSION), false)] {
        let processor = Amd { features: [ecx, Amd::LONG_MODE], ..Amd::of(0x19, 0x21) };
        let unit = pmu_amd::counters(&processor.snapshot());
        let memory = CounterMemory::<[CounterSlot; 8]>::new();
        let events = EventTable::<[EventEntry; 2]>::new();
        let (msr, platform) = (RegisterFile::amd(), FakePlatform::default());
        let opened = Events::new(&unit, &events);
        let mut counters =
            CounterSession::take(opened, &unit, CounterSet::ALL, (&msr, &platform), &memory)
                .unwrap();
        let event = Event::generic(GenericEvent::Instructions).in_guests();
        let refused = counters.open(&unit, &[event]).reason().err();
        assert_eq!(refused, (!has).then_some(CounterError::GuestModeUnsupported), "{ecx:#x}");
        counters.shut_down().unwrap();
    }
}

/// AMD's revision guides, by family; those of Zen are compared with the lists of events elsewhere.
#[test]
fn a_generation_before_zen_is_its_family() {
    for (family, generation) in [
        (0x06, None),
        (0x0F, Some(Generation::Hammer)),
        (0x10, Some(Generation::Family10h)),
        (0x11, Some(Generation::Family11h)),
        (0x12, Some(Generation::Family12h)),
        (0x13, None),
        (0x14, Some(Generation::Family14h)),
        (0x15, Some(Generation::Family15h)),
        (0x16, Some(Generation::Family16h)),
        (0x18, None),
        (0x1B, None),
    ] {
        for model in [0, 0x41] {
            let found = Generation::of(&Amd::of(family, model).snapshot());
            assert_eq!(found, generation, "family {family:#X}");
        }
    }
}

#[test]
fn a_zen_without_long_mode_or_under_a_hypervisor_that_hides_its_counters_is_not_taken() {
    let zen = Amd::of(0x19, 0x61);
    assert!(Zen::detect(&zen.snapshot()).is_some());
    let snapshot = Amd { features: [0, !Amd::LONG_MODE], ..zen }.snapshot();
    assert!(Zen::detect(&snapshot).is_none());
    assert_eq!(pmu_amd::counters(&snapshot).why_absent(), Some(NoInterface::NoLongMode));
    // A hypervisor that says it is Microsoft's, without the partition privilege for counters.
    let hides = Snapshot::capture(move |leaf: u32, subleaf: u32| -> CpuIdResult {
        let mut found = zen.snapshot().leaf(leaf, subleaf);
        match leaf {
            1 => found.ecx |= 1 << 31,
            0x4000_0000 => found = result([0x4000_0003, 0x7263_694D, 0x666F_736F, 0x7648_2074]),
            0x4000_0001 => found.eax = 0x3123_7648,
            _ => {}
        }
        found
    });
    assert_eq!(pmu_amd::counters(&hides).why_absent(), Some(NoInterface::HiddenByHypervisor));
    assert!(Zen::detect(&hides).is_none());
}
