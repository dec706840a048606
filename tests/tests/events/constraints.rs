//! The counters to which an event is confined, by its encoding: as the vendor's lists have them, and as Linux has them.

use core::ops::RangeInclusive;
use std::collections::BTreeMap;
use std::path::Path;

use pmu::perf::{PERF_TYPE_RAW, PerfAttributes, RawConfig};
use pmu_core::error::CounterError;
use pmu_core::registers::{CounterId, EventSelect};
use pmu_core::{CounterSet, Event};
use pmu_events::{CoreType, HASWELL, ICELAKE, KNIGHTSLANDING, SAPPHIRERAPIDS, SKYLAKE, ZEN4};
use pmu_tests::Reason;
use pmu_tests::opened::{Memory, Processor, Table};
use pmu_virt::configuration::IntelConfiguration;

/// Returns the general counters of an encoding.
fn general(core_type: &CoreType, select: u64) -> Option<u64> {
    let counters = core_type.constraints(EventSelect::from_bits(select))?;
    Some((counters & CounterSet::GENERAL).bits())
}

fn raw(text: &str, core_type: &CoreType) -> Event {
    let config = text.parse::<RawConfig>().unwrap().bits();
    let attributes = PerfAttributes { type_: PERF_TYPE_RAW, config, ..Default::default() };
    attributes.event(core_type).unwrap()
}

/// Counters 0–3 of the eight count retired loads (the list's `counters` of `MEM_LOAD_RETIRED.L3_MISS`).
#[test]
fn a_raw_configuration_runs_on_no_counter_that_cannot_count_it() {
    let processor = Processor::intel(IntelConfiguration::new(5, 8, 3));
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let mut counters = processor.take(&mock, &memory, &table);
    let event = raw("cpu/event=0xd1,umask=0x20/", &SAPPHIRERAPIDS);
    for expected in [Ok(()), Ok(()), Ok(()), Ok(()), Err(CounterError::NoFreeCounter)] {
        let id = counters.open(&processor.unit, &[event]).unwrap();
        assert_eq!(counters.enable(id, 0).reason(), expected);
        assert!(counters.counter_of(id).is_none_or(|counter| counter.number() < 4));
    }
    // Another event moves none of them, and has one of the others.
    let branches = raw("cpu/event=0xc4/", &SAPPHIRERAPIDS);
    let id = counters.open(&processor.unit, &[branches]).unwrap();
    assert_eq!(counters.enable(id, 0), Ok(()));
    assert!(counters.counter_of(id).unwrap().number() >= 4);
    counters.shut_down().unwrap();
}

#[test]
fn a_raw_configuration_keeps_the_fixed_counter_of_its_event() {
    let processor = Processor::intel(IntelConfiguration::new(5, 8, 3));
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let mut counters = processor.take(&mock, &memory, &table);
    for (text, fixed) in [("r00c0", 0), ("r003c", 1), ("r0300", 2)] {
        let event = raw(text, &SAPPHIRERAPIDS);
        let id = counters.open(&processor.unit, &[event]).unwrap();
        counters.enable(id, 0).unwrap();
        assert_eq!(counters.counter_of(id), CounterId::fixed(fixed), "{text}");
    }
    counters.shut_down().unwrap();
}

/// The constraints in Linux' `arch/x86/events/intel/core.c` (6.12): the first line that matches, by event, or by event
/// and unit mask. Where Intel's lists have fewer counters, the lists decide: of stalls on Sapphire Rapids; of load
/// latency, which Linux confines so in its constraints of PEBS; and of an event whose qualifiers Linux leaves out.
#[test]
fn constraints_are_those_of_linux_or_narrower_where_the_list_says_so() {
    type Line = (RangeInclusive<u64>, Option<u64>, u64);
    let golden_cove: &[Line] = &[
        (0x2E..=0x2E, None, 0xFF),
        (0x3C..=0x3C, None, 0xFF),
        (0x01..=0x8F, None, 0xF),
        (0xA3..=0xA3, Some(0x01), 0xF),
        (0xA3..=0xA3, Some(0x02), 0xF),
        (0xA3..=0xA3, Some(0x08), 0xF),
        (0xA4..=0xA4, Some(0x04), 0x1),
        (0xA4..=0xA4, Some(0x08), 0x1),
        (0xCD..=0xCD, Some(0x02), 0x1),
        (0xCE..=0xCE, None, 0x1),
        (0xD0..=0xDF, None, 0xF),
        (0x90..=0xFE, None, 0xFF),
    ];
    let skylake: &[Line] = &[(0xC0..=0xC0, Some(0x01), 0x2), (0x01..=0xFE, None, 0xF)];
    let haswell: &[Line] = &[
        (0x48..=0x48, Some(0x01), 0x4),
        (0xC0..=0xC0, Some(0x01), 0x2),
        (0xCD..=0xCD, None, 0x8),
        (0xA3..=0xA3, Some(0x08), 0x4),
        (0xA3..=0xA3, Some(0x0C), 0x4),
        (0x01..=0xFE, None, 0xF),
    ];
    let narrower: &[(&str, u64)] = &[
        ("CYCLE_ACTIVITY.STALLS_L?D_MISS", 0xF),
        ("CYCLE_ACTIVITY.STALLS_L?_MISS", 0xF),
        ("MEM_TRANS_RETIRED.LOAD_LATENCY_GT_*", 0xFE),
    ];
    for (core_type, lines, counters, lists) in [
        (&SAPPHIRERAPIDS, golden_cove, 0xFF, narrower),
        (&SKYLAKE, skylake, 0xF, &[("INST_RETIRED.TOTAL_CYCLES_PS", 0b1101)]),
        (&HASWELL, haswell, 0xF, &[]),
    ] {
        let mut differ = BTreeMap::new();
        for event in core_type.events().filter(|event| !event.is_fixed_only()) {
            let select = event.select().select_bits();
            let (number, unit_mask) = (select & 0xFF, select >> 8 & 0xFF);
            let line = lines.iter().find(|(numbers, mask, _)| {
                numbers.contains(&number) && mask.is_none_or(|mask| mask == unit_mask)
            });
            let linux = line.unwrap().2;
            let here = general(core_type, select).unwrap();
            if here & counters != linux {
                differ.insert(event.name().to_string(), here);
            }
        }
        let of_list = lists.iter().flat_map(|(pattern, counters)| {
            let named = core_type.matching(pattern).unwrap();
            named.map(|event| (event.name().to_string(), *counters))
        });
        assert_eq!(differ, of_list.collect(), "{core_type}");
    }
}

/// Each row's own encoding, in full, is confined as the row says, or as those that share it do together.
#[test]
fn the_encoding_of_each_row_is_confined_as_the_row_says() {
    for core_type in CoreType::all() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pmu-events/data");
        let text = std::fs::read_to_string(path.join(format!("{core_type}.csv"))).unwrap();
        let mut confined = BTreeMap::<u64, (u64, Vec<&str>)>::new();
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split(',').collect();
            // General counters, of events that need not be sampled precisely.
            if fields[7].is_empty() || fields[7].starts_with('F') || fields[8] == "2" {
                continue;
            }
            let event = core_type.event(fields[0]).unwrap();
            let bits = fields[7].split('+').fold(0, |bits, part| {
                let (first, last) = part.split_once('-').unwrap_or((part, part));
                let [first, last] = [first, last].map(|number| number.parse::<u32>().unwrap());
                (first..=last).fold(bits, |bits, number| bits | 1 << number)
            });
            for encoding in event.encodings() {
                let (all, names) =
                    confined.entry(encoding.select.select_bits()).or_insert((u64::MAX, vec![]));
                *all &= bits;
                names.push(fields[0]);
            }
        }
        for (select, (bits, names)) in confined {
            assert_eq!(general(core_type, select), Some(bits), "{core_type}: {names:?}");
        }
    }
}

#[test]
fn qualifiers_and_modes_leave_an_event_where_it_is() {
    // Modes, INT, EN, pin control, IN_TX and IN_TXCP.
    for bit in [16, 17, 19, 20, 22, 32, 33] {
        assert_eq!(general(&SAPPHIRERAPIDS, 0x20D1 | 1 << bit), Some(0xF), "bit {bit}");
    }
    // Edge, any thread, inversion, counter mask: not in the list beside this event.
    for bit in [18, 21, 23, 24, 31] {
        assert_eq!(general(&SAPPHIRERAPIDS, 0x20D1 | 1 << bit), Some(0xF), "bit {bit}");
    }
}

/// By the lists: of Skylake's 0xC0, PREC_DIST is on counter 1, TOTAL_CYCLES_PS (counter mask 10, inverted) on 0, 2 and
/// 3, ANY_P on 0–3; of Knights Landing's 0xC0, ANY_PS is on counter 0, and ANY_P on 0 and 1; of Ice Lake's 0xA3, unit
/// masks 4, 0x10 and 0x14 are on 0–7, and others on 0–3.
#[test]
fn an_encoding_that_the_table_lacks_has_the_counters_of_those_nearest() {
    for (core_type, select, expected) in [
        (&SKYLAKE, 0x01C0, Some(0b0010)),
        (&SKYLAKE, 0x0A80_01C0, Some(0b1101)),
        // The two have no counter in common.
        (&SKYLAKE, 0x0100_01C0, Some(0b1111)),
        (&KNIGHTSLANDING, 0x00C0, Some(0b0011)),
        (&ICELAKE, 0x04A3, Some(0xFF)),
        (&ICELAKE, 0x20A3, Some(0xF)),
        (&SAPPHIRERAPIDS, 0xFFD1, Some(0xF)),
        (&SAPPHIRERAPIDS, 0x00FF, None),
        (&ZEN4, 0x0003, Some(0xFFFF)),
        (&ZEN4, 0x1_0000_008E, Some(0xFFFF)),
        (&ZEN4, 0x7_0000_008E, None),
    ] {
        assert_eq!(general(core_type, select), expected, "{core_type}: {select:#X}");
    }
    // Only a fixed counter has it.
    let slots = SAPPHIRERAPIDS.constraints(EventSelect::from_bits(0x0400));
    assert_eq!(slots, Some(CounterSet::fixed(0b1000)));
    let instructions = SAPPHIRERAPIDS.constraints(EventSelect::from_bits(0x00C0)).unwrap();
    assert_eq!(instructions & CounterSet::FIXED, CounterSet::FIXED);
}
