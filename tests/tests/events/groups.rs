//! Events by name as groups of the counter layer: with the extra registers that their tables name.

use pmu::perf::{PERF_TYPE_RAW, PerfAttributes, PerfError};
use pmu_core::{CounterSet, Event};
use pmu_events::{CoreType, SKYLAKE};
use pmu_tests::groups::*;
use pmu_tests::opened::*;
use pmu_virt::configuration::IntelConfiguration;

/// An extra register that the counter layer does not take would be left unwritten.
#[test]
fn every_extra_register_of_the_tables_has_an_address() {
    let mut refined = 0;
    for core_type in CoreType::all() {
        for event in core_type.events() {
            let extras: Vec<_> = event.encodings().filter_map(|encoding| encoding.extra).collect();
            for extra in &extras {
                let address = extra.address().map(|address| address.get());
                assert_eq!(address, Some(extra.register), "{core_type}: {event:?}");
            }
            assert!(extras.len() <= 4, "{core_type}: {event:?}");
            refined += usize::from(!extras.is_empty());
        }
    }
    assert!(refined > 5000, "{refined}");
}

/// Two off-core responses have the two registers, and a third one of the same value shares.
#[test]
fn off_core_responses_by_name_share_two_registers() {
    let processor = Processor::intel(IntelConfiguration::new(4, 8, 3));
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let extra = WithExtra::new(&mock);
    let mut counters = extra.take(&processor, CounterSet::ALL, &memory, &table);
    let event = |name| Event::from(SKYLAKE.event(name).unwrap());
    let group = [
        event("INST_RETIRED.ANY_P"),
        event("OFFCORE_RESPONSE.DEMAND_DATA_RD.ANY_RESPONSE"),
        event("OFFCORE_RESPONSE.DEMAND_RFO.ANY_RESPONSE"),
        event("OFFCORE_RESPONSE.DEMAND_DATA_RD.ANY_RESPONSE").user_only(),
    ];
    let group = counters.open(&processor.unit, &group).unwrap();
    counters.enable(group, 0).unwrap();
    // The values of `tests/data/libpfm4.csv`'s origin, Intel's list: any response to a read, and to a request to own.
    assert_eq!(extra.values()[..2], [0x1_0001, 0x1_0002]);
    counters.shut_down().unwrap();
    assert_eq!(extra.values(), BEFORE);
}

/// Intel's lists say which event has which register; perf has its value in `config1`.
#[test]
fn events_with_an_extra_register_have_it_in_perfs_attributes_too() {
    let mut converted = 0;
    for core_type in CoreType::all() {
        for event in core_type.events() {
            let Some(extra) = event.extra().filter(|extra| extra.value != 0) else { continue };
            let perf = PerfAttributes::try_from(Event::from(event));
            let perf = perf.unwrap_or_else(|error| panic!("{core_type}: {event:?}: {error}"));
            assert_eq!(perf.config1, extra.value, "{core_type}: {event:?}");
            let back = Event::try_from(perf).unwrap();
            assert_eq!(back.extra(), extra.address().map(|of| (of, extra.value)), "{event:?}");
            converted += 1;
        }
    }
    assert!(converted > 5000, "{converted}");
    let raw =
        PerfAttributes { type_: PERF_TYPE_RAW, config: 0xC0, config1: 1, ..Default::default() };
    assert_eq!(Event::try_from(raw), Err(PerfError::NoExtraRegister(0xC0)));
    let hardware = PerfAttributes { config1: 1, ..Default::default() };
    assert_eq!(Event::try_from(hardware), Err(PerfError::NoExtraRegister(0)));
}
