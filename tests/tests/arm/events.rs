//! The common events by name, against the data file, and on the model.

use pmu::Event;
use pmu::core::registers::EventSelect;
use pmu_events::arm;
use pmu_tests::data;

use crate::world::{execute, happen, running, samples, shut_down};

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

/// Their selects end with a byte of 0, which on Intel stands for a fixed counter. 0x8000 is SIMD_INST_RETIRED.
#[test]
fn events_whose_numbers_end_with_a_byte_of_0_are_counted_and_sampled() {
    let pmu = running(true, 1);
    let simd = Event::raw(EventSelect::from_bits(0x8000));
    let increments = Event::from(arm::event("SW_INCR").unwrap());
    let started = [simd, increments].map(|event| pmu.start(&event.every(5_000).with_total()));
    for (number, times) in [(0x8000, 12_500), (0x0000, 29_999), (0x8000, 2_500)] {
        happen(0, number, times);
    }
    let totals = started.map(|event| {
        let event = event.unwrap();
        let total = pmu.read(event).unwrap().value;
        pmu.close(event).unwrap();
        total
    });
    assert_eq!((totals, samples()), ([15_000, 29_999], 3 + 5));
    shut_down(pmu);
}
