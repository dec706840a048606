//! Counters, events and sources of processors, by their identification registers.

use pmu_arm::{Identification, Pmuv3, SOURCES, counters};
use pmu_core::error::NoInterface;
use pmu_core::profile::KProfileSource;
use pmu_core::registers::{CounterId, EventSelect};
use pmu_core::{CounterSet, CounterUnit, EventSource, GenericEvent};
use pmu_tests::data;

/// Number of a common event, by the data file.
fn number(name: &str) -> u16 {
    let rows = data!("arm_events.csv");
    let row = rows.iter().find(|row| row.text("name") == name);
    row.unwrap_or_else(|| panic!("{name}")).number("number") as u16
}

/// A processor of this version, with counters, that declares these events.
fn processor(version: u64, event_counters: u64, events: &[&str]) -> Identification {
    let mut pmceid = [0; 2];
    for event in events {
        let number = usize::from(number(event));
        // Bits 31:0 of the two registers are the events from 0 on, bits 63:32 those from 0x4000 on.
        pmceid[number >> 5 & 1] |= 1 << (number & 0x1F | if number >= 0x4000 { 32 } else { 0 });
    }
    let [pmceid0_el0, pmceid1_el0] = pmceid;
    Identification {
        id_aa64dfr0_el1: version << 8,
        pmcr_el0: event_counters << 11,
        pmceid0_el0,
        pmceid1_el0,
        ..Identification::NONE
    }
}

fn width(unit: &CounterUnit, counter: Option<CounterId>) -> Option<u32> {
    unit.counter(counter.unwrap()).map(|counter| counter.width())
}

#[test]
fn processors_without_the_architectures_counters_are_refused() {
    for version in [0, 0xF] {
        let this = processor(version, 6, &["CPU_CYCLES"]);
        let why = Some(NoInterface::NoPerformanceMonitoring);
        assert_eq!(counters(&this).why_absent(), why, "{version}");
        assert!(!this.has_event(0x11));
        let pmuv3 = Pmuv3::detect(&this);
        assert!(pmuv3.unit().counters().is_empty());
        let supported = |source| pmuv3.query(source).is_supported();
        assert_eq!(
            [KProfileSource::TIME, KProfileSource::TOTAL_CYCLES].map(supported),
            [true, false]
        );
    }
}

/// Versions 1 (Armv8.0), 4 (8.1), 5 (8.4), 6 (8.5), 7, 8 and 9.
#[test]
fn width_and_number_of_counters_follow_version_and_n() {
    for (version, bits) in [(1, 32), (4, 32), (5, 32), (6, 64), (7, 64), (8, 64), (9, 64)] {
        for declared in [0, 1, 6, 16, 31] {
            let unit = counters(&processor(version, declared, &[]));
            let general = unit.counters() & CounterSet::GENERAL;
            assert_eq!(general.len(), declared.min(16) as usize, "{version}");
            assert_eq!(general.bits(), (1 << declared.min(16)) - 1);
            assert_eq!(unit.counters().len(), general.len() + 1);
            let first = width(&unit, CounterId::general(0));
            assert_eq!(first, (declared > 0).then_some(bits), "{version}");
            assert_eq!(width(&unit, CounterId::fixed(0)), Some(64));
        }
    }
}

/// MDCR_EL2.HPMN leaves the counters from there on to EL2, under an enable bit of their own.
#[test]
fn a_kernel_at_el2_has_the_counters_below_hpmn() {
    for (hpmn, usable) in [(6, 6), (4, 4), (0, 0), (31, 6)] {
        let at_el2 = Identification { mdcr_el2: Some(hpmn | 1 << 7), ..processor(1, 6, &[]) };
        assert_eq!(at_el2.event_counters(), usable);
        let unit = counters(&at_el2);
        assert_eq!((unit.counters() & CounterSet::GENERAL).len(), usable);
    }
}

#[test]
fn an_events_number_has_ten_or_sixteen_bits() {
    let illegal = |version, select| {
        let unit = counters(&processor(version, 6, &[]));
        unit.illegal_bits(EventSelect::from_bits(select))
    };
    assert_eq!(illegal(1, 0x3_03FF), 0);
    assert_eq!(illegal(1, 0x3_0400), 0x400);
    assert_eq!(illegal(4, 0x3_FFFF), 0);
    // Edge and threshold.
    assert_eq!(illegal(4, 0xFF84_0008), 0xFF84_0000);
}

/// FEAT_PMUv3_TH: PMMIR_EL1.THWIDTH.
#[test]
fn a_threshold_has_as_many_bits_as_the_processor_declares() {
    for (version, bits, mask) in
        [(8, 0, 0), (8, 1, 0x0180_0000), (9, 4, 0x0F80_0000), (9, 12, 0xFF80_0000)]
    {
        let this = Identification { pmmir_el1: bits << 20, ..processor(version, 6, &[]) };
        let unit = counters(&this);
        let legal = !unit.illegal_bits(EventSelect::from_bits(u64::MAX));
        assert_eq!(legal & 0xFF80_0000, mask, "{bits}");
        // The cycle counter has none.
        let cycles = |select| unit.counters_for(EventSelect::from_bits(select)) & CounterSet::FIXED;
        assert_eq!([cycles(0x3_0011).len(), cycles(0x0103_0011).len()], [1, 0]);
    }
    // Before, the register does not exist, whatever its value here is.
    let early = Identification { pmmir_el1: 0xF << 20, ..processor(7, 6, &[]) };
    let unit = counters(&early);
    assert_eq!(unit.illegal_bits(EventSelect::from_bits(0xFF << 24)), 0xFF << 24);
}

/// SW_INCR has number 0, and SIMD_INST_RETIRED 0x8000: no event is the cycle counter's alone.
#[test]
fn numbers_are_counted_by_event_counters_and_cycles_by_the_cycle_counter_too() {
    let unit = counters(&processor(4, 6, &[]));
    let on = |event: u64| unit.counters_for(EventSelect::from_bits(0x3_0000 | event));
    for event in [0x0000, 0x0008, 0x0100, 0x4000, 0x4004, 0x8000, 0x8001, 0xFFFF] {
        assert_eq!(on(event), CounterSet::from_bits(0b11_1111), "{event:#X}");
    }
    assert_eq!(on(0x0011), CounterSet::from_bits(1 << 32 | 0b11_1111));
}

fn generic(events: &[&str]) -> [Option<u16>; GenericEvent::COUNT] {
    let unit = counters(&processor(4, 6, events));
    GenericEvent::ALL.map(|event| {
        let select = unit.generic(event)?.select_bits();
        assert_eq!(select >> 16, 0b11, "{event:?}");
        Some(select as u16)
    })
}

#[test]
fn generic_events_are_those_that_the_processor_declares() {
    let events = |names: [&str; 7]| names.map(|name| (!name.is_empty()).then(|| number(name)));
    assert_eq!(generic(&[]), [None; 7]);
    let all = [
        "CPU_CYCLES",
        "INST_RETIRED",
        "CNT_CYCLES",
        "LL_CACHE_RD",
        "LL_CACHE_MISS_RD",
        "BR_RETIRED",
        "BR_MIS_PRED_RETIRED",
    ];
    assert_eq!(generic(&all), events(all));
    // Of a pair, one alone is not taken where the other pair is there.
    let most = [
        "CPU_CYCLES",
        "LL_CACHE_RD",
        "LL_CACHE",
        "LL_CACHE_MISS",
        "BR_RETIRED",
        "BR_PRED",
        "BR_MIS_PRED",
    ];
    let expected = ["CPU_CYCLES", "", "", "LL_CACHE", "LL_CACHE_MISS", "BR_PRED", "BR_MIS_PRED"];
    assert_eq!(generic(&most), events(expected));
    assert_eq!(generic(&["BR_PRED"]), events(["", "", "", "", "", "BR_PRED", ""]));
}

/// Bits 63:32 of PMCEID0_EL0 and PMCEID1_EL0 are reserved before FEAT_PMUv3p1.
#[test]
fn events_from_0x4000_on_are_declared_from_version_4_on() {
    for (version, declared) in [(1, false), (4, true), (6, true)] {
        let this = processor(version, 6, &["CNT_CYCLES", "BR_RETIRED"]);
        assert_eq!(this.has_event(0x4004), declared);
        assert!(this.has_event(0x21) && !this.has_event(0x01) && !this.has_event(0x4024));
        // Others have no bit.
        assert!(![0x40, 0x61, 0x4044, 0x8021, 0xC004].iter().any(|event| this.has_event(*event)));
    }
}

#[test]
fn a_source_counts_the_event_in_its_name_where_the_processor_declares_it() {
    let rows = [
        ("ProfileTotalIssues", "INST_RETIRED"),
        ("ProfileLoadInstructions", "LD_RETIRED"),
        ("ProfileBranchInstructions", "BR_RETIRED"),
        ("ProfileDcacheMisses", "L1D_CACHE_REFILL"),
        ("ProfileIcacheMisses", "L1I_CACHE_REFILL"),
        ("ProfileCacheMisses", "LL_CACHE_MISS_RD"),
        ("ProfileBranchMispredictions", "BR_MIS_PRED_RETIRED"),
        ("ProfileStoreInstructions", "ST_RETIRED"),
        ("ProfileTotalCycles", "CPU_CYCLES"),
        ("ProfileIcacheIssues", "L1I_CACHE"),
        ("ProfileDcacheAccesses", "L1D_CACHE"),
    ];
    assert_eq!(rows.len() + 1, SOURCES.len()); // and ProfileTime
    let values = data!("kprofile_source.csv");
    for (name, event) in rows {
        let source = SOURCES.iter().find(|source| source.name() == name).unwrap();
        let row = values.iter().find(|row| row.text("name") == name).unwrap();
        assert_eq!(u64::from(source.source().value()), row.number("value"), "{name}");
        assert_eq!(source.select().select_bits(), 0x3_0000 | u64::from(number(event)), "{name}");
        let only = Pmuv3::detect(&processor(4, 6, &[event]));
        for (other, _) in rows {
            let row = only.row_named(other).unwrap();
            assert_eq!(only.is_declared(row), other == name, "{event}: {other}");
        }
        assert!(!only.is_declared(SOURCES.len()) && only.is_declared(0));
    }
}

/// Neoverse N1 (Ampere Altra): ID_AA64DFR0_EL1, as the arm-cpusysregs project recorded it.
#[test]
fn a_recorded_processor_has_version_4() {
    let altra = Identification { id_aa64dfr0_el1: 0x1_1030_5408, ..Identification::NONE };
    assert_eq!(
        (altra.version(), altra.has_counters(), altra.has_long_counters()),
        (4, true, false)
    );
    assert!(!altra.has_pmmir());
}
