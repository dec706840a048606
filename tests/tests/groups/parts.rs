//! A group of which a part is elsewhere, or whose counters fail: no part of it is counted.

use pmu_core::error::{CounterError, EventsError};
use pmu_core::profile::{KProfileSource, Session};
use pmu_core::thread::{SavedCounter, SavedCounters, ThreadEvent};
use pmu_core::{CounterSet, EventCount, EventId, EventSource, Events};
use pmu_intel::Emon;
use pmu_tests::groups::*;
use pmu_tests::opened::*;
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration};
use pmu_virt::mock::Deviations;

fn no_such(event: EventId) -> EventsError {
    EventsError { events: 0, reason: CounterError::NoSuchEvent(event) }
}

fn elsewhere(event: EventId) -> EventsError {
    EventsError { events: 0, reason: CounterError::GroupElsewhere(event) }
}

#[test]
fn what_is_left_of_a_group_stops_waits_for_the_rest_and_can_be_closed() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let unit = &processor.unit;
        let group = counters.open(unit, &[raw(2), raw(3)]).unwrap();
        counters.enable(group, 0).unwrap();
        let rest = counters.group_events(group).nth(1).unwrap();
        let mut part = [ThreadEvent::Opened(group)];
        happen(&mock, 3, 5);
        counters.switch_out(&mut part, 10, |o| panic!("{o:?}")).unwrap();
        assert_eq!(running(&mock), CounterSet::NONE, "{processor:?}");
        assert_eq!(counters.enable(group, 10), Err(no_such(group)));
        assert_eq!(counters.enable(rest, 10), Err(elsewhere(rest)));
        assert_eq!(counters.disable(rest, 10), Err(elsewhere(rest)));
        // With it, the group is whole, and goes on.
        counters.switch_in(unit, &mut part, 20).unwrap();
        assert_eq!(
            counters.enable(group, 20),
            Err(no_such(group)),
            "it has its place, and is opened anew"
        );
        let group = id_of(&part[0]);
        assert_eq!(running(&mock).len(), 2, "{processor:?}");
        (2..4).for_each(|kind| happen(&mock, kind, 10));
        let mut counts = [EventCount::default(); 2];
        assert_eq!(counters.read_group(group, 30, &mut counts), Ok(2));
        let mut values = counts.map(|count| count.value);
        values.sort();
        assert_eq!(values, [10, 15], "{processor:?}");
        assert!(counts.iter().all(|count| count.running == 20), "{counts:?}");
        let mut all: Vec<_> = counters.group_events(group).map(ThreadEvent::Opened).collect();
        counters.switch_out(&mut all[..1], 40, |o| panic!("{o:?}")).unwrap();
        counters.close(rest, 50).unwrap();
        assert_eq!(counters.close(rest, 50), Err(no_such(rest)));
        assert_eq!(running(&mock), CounterSet::NONE);
    }
}

#[test]
fn a_group_that_comes_in_two_parts_is_timed_from_the_second_on() {
    let processor = Processor::intel(IntelConfiguration::new(4, 8, 0));
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let mut counters = processor.take(&mock, &memory, &table);
    let unit = &processor.unit;
    let group = counters.open(unit, &[raw(2).rotating(), raw(3)]).unwrap();
    counters.enable(group, 0).unwrap();
    let mut all: Vec<_> = counters.group_events(group).map(ThreadEvent::Opened).collect();
    counters.switch_out(&mut all, 10, |o| panic!("{o:?}")).unwrap();
    let alone = counters.switch_in(unit, &mut all[..1], 20);
    let reason = CounterError::GroupElsewhere(group);
    assert_eq!(alone, Err(EventsError { events: 1, reason }));
    counters.switch_in(unit, &mut all[1..], 50).unwrap();
    let mut counts = [EventCount::default(); 2];
    counters.read_group(id_of(&all[0]), 60, &mut counts).unwrap();
    assert_eq!(counts.map(|count| (count.enabled, count.running)), [(20, 20); 2]);
}

/// The turns of the others go on.
#[test]
fn a_part_of_a_rotating_group_does_not_disturb_a_rotation() {
    let processor = Processor::intel(IntelConfiguration::new(4, 2, 0));
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let mut counters = processor.take(&mock, &memory, &table);
    let unit = &processor.unit;
    let [first, second, third] = [2, 4, 6].map(|kind| {
        let group = counters.open(unit, &[raw(kind).rotating(), raw(kind + 1)]).unwrap();
        counters.enable(group, 0).unwrap();
        group
    });
    let rest = counters.group_events(first).nth(1).unwrap();
    let mut part = [ThreadEvent::Opened(first)];
    counters.switch_out(&mut part, 1, |o| panic!("{o:?}")).unwrap();
    let mut turns = [0; 3];
    for tick in 2..10 {
        counters.rotate(tick).unwrap();
        for (turns, group) in turns.iter_mut().zip([rest, second, third]) {
            let on = |event| counters.counter_of(event).is_some();
            *turns += usize::from(counters.group_events(group).all(on));
        }
    }
    assert_eq!(turns, [0, 4, 4]);
}

/// While a thread's counters are saved, the gate of the others is closed: a rotation opens it first.
#[test]
fn an_event_whose_turn_comes_while_counters_are_saved_is_counted() {
    let processor = Processor::intel(IntelConfiguration::new(2, 4, 0));
    let emon = Emon::detect(&processor.snapshot).unwrap();
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let both = Events::new(&emon, &table);
    let source = KProfileSource::TOTAL_CYCLES;
    emon.set_interval(source, 0x1000).unwrap();
    let two = CounterSet::from_bits(0b11);
    let mut session = Session::take(both, &processor.snapshot, two, &mock, &memory).unwrap();
    session.start(source).unwrap();
    let counters = session.counters_mut();
    let events = [2, 3].map(|kind| {
        let id = counters.open(&processor.unit, &[raw(kind).rotating()]).unwrap();
        counters.enable(id, 0).unwrap();
        id
    });
    let mut area = SavedCounters::<[SavedCounter; 24]>::new();
    session.save(&mut area, |o| panic!("{o:?}")).unwrap();
    let counters = session.counters_mut();
    counters.rotate(10).unwrap();
    (2..4).for_each(|kind| happen(&mock, kind, 100));
    let on: Vec<_> = events.into_iter().filter(|of| counters.counter_of(*of).is_some()).collect();
    assert_eq!(on.len(), 2);
    for event in on {
        assert_eq!(counters.read(event, 20).unwrap().value, 100);
    }
}

/// A register of one counter does not answer any more: each group is on counters as a whole, or not at all, and no
/// counter runs for a closed one.
#[test]
fn a_broken_register_leaves_no_group_in_part() {
    for configuration in [
        Configuration::Amd(AmdConfiguration::LEGACY),
        Configuration::Intel(IntelConfiguration::new(4, 8, 0)),
    ] {
        let processor = Processor::new(configuration, false, Deviations::NONE);
        for number in 0..4 {
            for (of_value, rotates) in [(false, false), (false, true), (true, false), (true, true)]
            {
                broken(&processor, number, of_value, rotates);
            }
        }
    }
}

fn broken(processor: &Processor, number: usize, of_value: bool, rotates: bool) {
    let context = format!("{processor:?}: {number}, value: {of_value}, rotates: {rotates}");
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let extra = WithExtra::new(&mock);
    let unit = &processor.unit;
    let general: Vec<_> = (unit.counters() & CounterSet::GENERAL).iter().take(4).collect();
    let four: CounterSet = general.iter().copied().collect();
    let mut counters = extra.take(processor, four, &memory, &table);
    let turning = raw(2).on(four);
    let turning = if rotates { turning.rotating() } else { turning };
    let first = counters.open(unit, &[turning, raw(3).on(four)]).unwrap();
    counters.enable(first, 0).unwrap();
    // It gives way, so that the first group can move.
    let alone = raw(6).on(general[2].only()).rotating();
    let alone = counters.open(unit, &[alone]).unwrap();
    counters.enable(alone, 0).unwrap();
    // It needs the counters that the first group has.
    let needs = [raw(4).on(general[0].only()), raw(5).on(general[1].only())];
    let second = counters.open(unit, &needs).unwrap();
    let registers = unit.counter(general[number]).unwrap();
    let register =
        if of_value { registers.value_register() } else { registers.control().register() };
    extra.broken.set(register.get());
    let check = |counters: &Refined<'_, '_>, context: &str| {
        for group in [first, second] {
            let on = counters.group_events(group).filter(|of| counters.counter_of(*of).is_some());
            let on = on.count();
            assert!(on == 0 || on == 2, "{context}: {on}");
            for event in counters.group_events(group) {
                let has_counter = counters.counter_of(event).is_some();
                assert!(!has_counter || counters.is_enabled(event), "{context}");
            }
        }
    };
    let outcome = counters.enable(second, 1);
    let context = format!("{context}: {outcome:?}");
    check(&counters, &context);
    if outcome.is_err() && number != 2 {
        assert_eq!(counters.counter_of(alone), Some(general[2]), "{context}");
    }
    assert_eq!(outcome.is_ok(), counters.group_events(second).all(|of| counters.is_enabled(of)));
    for tick in 2..5 {
        let _ = counters.rotate(tick);
        check(&counters, &format!("{context}, tick {tick}"));
    }
    extra.broken.set(0);
    counters.close(first, 9).unwrap();
    counters.close(second, 9).unwrap();
    counters.shut_down().unwrap();
    assert_eq!(running(&mock), CounterSet::NONE, "{context}");
}
