//! Generic events on processors, against the tables of Linux' `arch/x86/events` (6.12).

use pmu::core::CounterSet;
use pmu::core::registers::{EventList, EventSelect};
use pmu::perf::{
    CacheEvent, PERF_TYPE_HARDWARE, PERF_TYPE_HW_CACHE, PERF_TYPE_RAW, PerfAttributes, PerfError,
    PerfEvent,
};
use pmu_events::{
    CoreType, HASWELL, ICELAKE, IVYBRIDGE, NEHALEMEP, SANDYBRIDGE, SAPPHIRERAPIDS, SKYLAKE, ZEN1,
    ZEN2, ZEN4,
};

/// A list in which every name stands for this `config`.
struct EveryName(u64);

impl EventList for EveryName {
    fn perf_config(&self, _: &str) -> Option<(u64, u64)> {
        Some((self.0, 0))
    }

    fn constraints(&self, _: EventSelect) -> Option<CounterSet> {
        None
    }
}

fn resolved(core_type: &CoreType, text: &str) -> Result<(u64, u64), PerfError> {
    let event = PerfEvent::parse(text, core_type)?.attr.event(core_type)?;
    let select = PerfAttributes::try_from(event)?;
    assert_eq!(select.type_, PERF_TYPE_RAW, "{text}");
    Ok((select.config, select.config1))
}

#[test]
fn generic_events_are_those_of_linux_or_what_the_vendors_list_has_for_them() {
    let check = |core_type: &CoreType, expected: &[(&str, u64, u64)]| {
        for (text, config, config1) in expected {
            let found = resolved(core_type, text);
            assert_eq!(found, Ok((*config, *config1)), "{text} on {core_type}");
        }
    };
    check(
        &NEHALEMEP,
        &[
            ("L1-dcache-loads", 0x010B, 0),
            ("L1-dcache-load-misses", 0x0151, 0),
            ("L1-dcache-stores", 0x020B, 0),
            ("L1-dcache-store-misses", 0x0251, 0),
            ("L1-dcache-prefetches", 0x014E, 0),
            ("L1-dcache-prefetch-misses", 0x024E, 0),
            ("L1-icache-loads", 0x0380, 0),
            ("L1-icache-load-misses", 0x0280, 0),
            ("dTLB-store-misses", 0x010C, 0),
            ("bus-cycles", 0x013C, 0),
            ("stalled-cycles-frontend", 0x0180_010E, 0),
            // Linux without the qualifier for all threads.
            ("stalled-cycles-backend", 0x0180_3FB1 | 1 << 21, 0),
        ],
    );
    check(
        &SANDYBRIDGE,
        &[
            ("L1-dcache-load-misses", 0x0151, 0),
            ("L1-dcache-store-misses", 0x0851, 0),
            ("L1-dcache-prefetch-misses", 0x024E, 0),
            ("L1-icache-load-misses", 0x0280, 0),
            ("dTLB-loads", 0x81D0, 0),
            ("dTLB-stores", 0x82D0, 0),
            ("iTLB-loads", 0x1085, 0),
            ("branch-loads", 0x00C4, 0),
            ("branch-load-misses", 0x00C5, 0),
            ("stalled-cycles-frontend", 0x0180_010E, 0),
        ],
    );
    check(&IVYBRIDGE, &[("stalled-cycles-frontend", 0x0180_010E, 0), ("bus-cycles", 0x013C, 0)]);
    check(
        &HASWELL,
        &[
            ("L1-dcache-loads", 0x81D0, 0),
            ("L1-dcache-load-misses", 0x0151, 0),
            ("L1-dcache-stores", 0x82D0, 0),
            ("L1-icache-load-misses", 0x0280, 0),
            ("iTLB-loads", 0x6085, 0),
        ],
    );
    check(
        &SKYLAKE,
        &[
            ("L1-dcache-loads", 0x81D0, 0),
            ("L1-dcache-load-misses", 0x0151, 0),
            ("L1-dcache-stores", 0x82D0, 0),
            ("L1-icache-load-misses", 0x0283, 0),
            // By the list, without Linux' bits of snoops, which change nothing of any response.
            ("LLC-loads", 0x01B7, 0x1_0001),
            ("LLC-stores", 0x01B7, 0x1_0002),
            // Linux leaves out walks of pages of 1 GiB.
            ("dTLB-load-misses", 0x0E08, 0),
            ("dTLB-store-misses", 0x0E49, 0),
            ("iTLB-loads", 0x2085, 0),
            ("iTLB-load-misses", 0x0E85, 0),
            ("branch-loads", 0x00C4, 0),
            ("branch-load-misses", 0x00C5, 0),
            ("bus-cycles", 0x013C, 0),
        ],
    );
    check(
        &ICELAKE,
        &[
            ("LLC-load-misses", 0x01B7, 0x3F_FFC0_0001),
            ("LLC-store-misses", 0x01B7, 0x3F_FFC0_0002),
        ],
    );
    check(
        &SAPPHIRERAPIDS,
        &[
            ("L1-dcache-loads", 0x81D0, 0),
            ("L1-icache-load-misses", 0xE424, 0),
            ("LLC-loads", 0x012A, 0x1_0001),
            ("LLC-load-misses", 0x012A, 0x3F_BFC0_0001),
            ("LLC-stores", 0x012A, 0x3F_3FFC_0002),
            ("LLC-store-misses", 0x012A, 0x3F_3FC0_0002),
            ("dTLB-load-misses", 0x0E12, 0),
            ("dTLB-store-misses", 0x0E13, 0),
            ("iTLB-load-misses", 0x0E11, 0),
        ],
    );
    check(
        &ZEN1,
        &[
            ("L1-dcache-loads", 0x0040, 0),
            ("L1-icache-loads", 0x0080, 0),
            ("L1-icache-load-misses", 0x0081, 0),
            ("dTLB-loads", 0xFF45, 0),
            ("iTLB-loads", 0x0084, 0),
            ("branch-loads", 0x00C2, 0),
            ("branch-load-misses", 0x00C3, 0),
            ("stalled-cycles-frontend", 0x0287, 0),
            ("stalled-cycles-backend", 0x0187, 0),
        ],
    );
    check(&ZEN2, &[("stalled-cycles-frontend", 0x00A9, 0), ("iTLB-load-misses", 0xFF85, 0)]);
    check(&ZEN4, &[("dTLB-loads", 0xFF45, 0), ("dTLB-load-misses", 0xF045, 0)]);
}

#[test]
fn a_generic_event_that_a_processor_lacks_is_a_typed_error() {
    for (core_type, text, type_, config) in [
        (&SKYLAKE, "node-loads", PERF_TYPE_HW_CACHE, 0x6),
        (&SKYLAKE, "L1-icache-loads", PERF_TYPE_HW_CACHE, 0x1),
        (&ZEN4, "LLC-loads", PERF_TYPE_HW_CACHE, 0x2),
        (&ZEN1, "bus-cycles", PERF_TYPE_HARDWARE, 6),
        (&SAPPHIRERAPIDS, "stalled-cycles-frontend", PERF_TYPE_HARDWARE, 7),
    ] {
        assert_eq!(resolved(core_type, text), Err(PerfError::NotOnProcessor { type_, config }));
    }
    // No such event exists.
    let config = 0x0101;
    let none = PerfAttributes { type_: PERF_TYPE_HW_CACHE, config, ..Default::default() };
    let missing = PerfError::NotOnProcessor { type_: PERF_TYPE_HW_CACHE, config };
    assert_eq!(none.event(&EveryName(0xC0)), Err(missing));
    let event: CacheEvent = "branch-loads".parse().unwrap();
    let bad = PerfAttributes { config: event.config(), ..none };
    assert_eq!(bad.event(&EveryName(1 << 22)), Err(PerfError::Bits(1 << 22)));
}

#[test]
fn other_events_stay_and_the_levels_of_generic_ones_do() {
    let raw = PerfAttributes { type_: PERF_TYPE_RAW, config: 7, ..Default::default() };
    let cycles = PerfAttributes::default();
    for select in [raw, cycles] {
        assert_eq!(PerfAttributes::try_from(select.event(&EveryName(0xA9)).unwrap()), Ok(select));
    }
    let stalled =
        PerfAttributes { config: 7, exclude_user: true, sample_period: 9, ..Default::default() };
    let expected = PerfAttributes { type_: PERF_TYPE_RAW, config: 0xA9, ..stalled };
    assert_eq!(PerfAttributes::try_from(stalled.event(&EveryName(0xA9)).unwrap()), Ok(expected));
}
