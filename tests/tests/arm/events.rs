//! The common events by name, against the data file, and on the model.

use pmu::Event;
use pmu_events::arm;
use pmu_tests::data;

use crate::world::{execute, running, shut_down};

#[test]
fn names_and_numbers_equal_the_data_file() {
    let rows = data!("arm_events.csv");
    let listed: Vec<_> =
        arm::COMMON_EVENTS.iter().map(|event| (event.name(), event.number())).collect();
    let expected: Vec<_> =
        rows.iter().map(|row| (row.text("name"), row.number("number") as u16)).collect();
    assert_eq!(listed, expected);
}

#[test]
fn an_event_is_found_by_its_name() {
    for event in &arm::COMMON_EVENTS {
        assert_eq!(arm::event(event.name()), Some(*event));
        assert_eq!(arm::event(&event.name().to_lowercase()), Some(*event));
    }
    assert_eq!([arm::event(""), arm::event("L1D_CACHE_"), arm::event("0x11")], [None; 3]);
}

#[test]
fn an_event_that_was_found_by_name_is_counted() {
    let pmu = running(false, 1);
    let events = ["BR_RETIRED", "INST_RETIRED", "CPU_CYCLES", "STALL"];
    let events = events.map(|name| Event::from(arm::event(name).unwrap()));
    let counted = pmu.count(&events, || execute(0, 100)).unwrap();
    assert_eq!(counted.map(|count| count.value), [100, 400, 1_000, 0]);
    shut_down(pmu);
}
