//! Costs of a perf subsystem in register accesses: exact, and equal to the table in tests/data/accesses.md.

use pmu_core::interrupt::EventOverflow;
use pmu_core::lending::guest_control;
use pmu_core::reading::{remote_count, sample_read};
use pmu_core::{CounterSession, CounterSet, Event, EventCount, Events, service};
use pmu_tests::FakePlatform;
use pmu_tests::groups::*;
use pmu_tests::opened::*;
use pmu_virt::configuration::Configuration;
use pmu_virt::mock::Deviations;

use super::groups::{assert_rows, take};

/// A group of four on general counters, the first of which interrupts: its counts with an overflow, a period at once,
/// another event of it disabled and enabled. Then an event of its own: a period at once, and an exclusive event instead
/// of it.
fn row(configuration: Configuration, freezing: bool) -> String {
    let processor = Processor::new(configuration, freezing, Deviations::NONE);
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let (extra, platform) = (WithExtra::new(&mock), FakePlatform::default());
    let unit = &processor.unit;
    let source = Events::new(unit, &table);
    let four: CounterSet = (unit.counters() & CounterSet::GENERAL).iter().take(4).collect();
    let mut counters =
        CounterSession::take(source, unit, four, (&extra, &platform), &memory).unwrap();
    if freezing {
        counters.freeze_on_interrupt().unwrap();
    }
    let msr = &extra;
    let not = |overflow: EventOverflow| panic!("{overflow:?}");
    let events = [raw(2).every(0x1000).with_total(), raw(3), raw(4), raw(5)];
    let group = counters.open(unit, &events).unwrap();
    counters.enable(group, 0).unwrap();
    let ids: Vec<_> = counters.group_events(group).collect();
    mock.pass(&mut happened(2, 0x1000));
    take(&extra, &platform);
    let mut sample = String::new();
    service(&source, &(&msr, &platform), &memory, |overflow| {
        take(&extra, &platform);
        let counts = sample_read(&source, &msr, &memory, overflow.event, 0).unwrap();
        assert_eq!(counts.filter(|read| read.count.is_ok()).count(), 4);
        sample = take(&extra, &platform);
    })
    .unwrap();
    take(&extra, &platform);
    counters.apply_period(ids[0], 0x2000, 0, not).unwrap();
    let of_group = take(&extra, &platform);
    counters.disable(ids[2], 0).unwrap();
    let disable = take(&extra, &platform);
    counters.enable(ids[2], 0).unwrap();
    let enable = take(&extra, &platform);
    counters.close(group, 0).unwrap();
    let own = counters.open(unit, &[raw(2).every(0x1000).rotating()]).unwrap();
    counters.enable(own, 0).unwrap();
    take(&extra, &platform);
    counters.apply_period(own, 0x2000, 0, not).unwrap();
    let period = take(&extra, &platform);
    // These touch no register, wherever the events are.
    for event in [own, counters.open(unit, &[raw(3).every(0x1000).with_total()]).unwrap()] {
        table.set_period(event, 0x3000).unwrap();
        table.stop_reporting(event).unwrap();
        counters.child_event(event, 7).unwrap();
        let _ = counters.add_count(event, EventCount::default());
        counters.event_tag(event).unwrap();
        assert_eq!(counters.group_events(event).count(), 1);
        counters.event_status(event).unwrap();
        let _ = remote_count(&table, &memory, event, 0);
    }
    assert_eq!(counters.events().count(), 2);
    assert_eq!(take(&extra, &platform), "–");
    let alone = counters.open(unit, &[Event::exclusive(raw(4))]).unwrap();
    counters.enable(alone, 0).unwrap();
    let exclusive = take(&extra, &platform);
    counters.close(alone, 0).unwrap();
    take(&extra, &platform);
    let in_guests = counters.open(unit, &[raw(5).in_guests()]);
    let in_guests = in_guests.map_or("–".into(), |event| {
        counters.enable(event, 0).unwrap();
        let _ = guest_control(&source, &memory);
        take(&extra, &platform)
    });
    format!(
        "| {sample} | {period} | {of_group} | {disable} | {enable} | {exclusive} | {in_guests} |"
    )
}

#[test]
fn the_table_of_a_perf_subsystems_costs_is_what_is_measured() {
    assert_rows(row);
}
