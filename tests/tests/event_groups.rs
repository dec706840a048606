//! Events by name as groups of the counter layer: with the extra registers that their tables name.

mod groups;
mod opened;

use groups::*;
use opened::*;
use pmu_core::{CounterSet, Event};
use pmu_events::{CoreType, SKYLAKE};
use pmu_virt::IntelConfiguration;

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
    let group = counters.open_group(&processor.unit, &group).unwrap();
    counters.start_group(group, 0).unwrap();
    // The values of `tests/data/libpfm4.csv`'s origin, Intel's list: any response to a read, and to a request to own.
    assert_eq!(extra.values()[..2], [0x1_0001, 0x1_0002]);
    counters.shut_down().unwrap();
    assert_eq!(extra.values(), BEFORE);
}
