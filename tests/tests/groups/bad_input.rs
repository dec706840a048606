//! Groups that cannot be, and operations that are not theirs: typed errors that name the event, and nothing changed.

use pmu_core::error::{CounterError, EventsError};
use pmu_core::registers::{EventSelect, MAX_COUNTERS};
use pmu_core::{CounterSet, Event, EventCount, EventId};
use pmu_tests::opened::*;
use pmu_virt::mock::Deviations;

fn error(member: usize, reason: CounterError) -> EventsError {
    EventsError { events: 1 << member, reason }
}

fn of_group(reason: CounterError) -> EventsError {
    EventsError { events: 0, reason }
}

/// Opens as many events as the table has room for, and closes them.
#[track_caller]
fn assert_nothing_is_open(counters: &mut Opened<'_, '_>, processor: &Processor) {
    let all: Vec<_> = (0..12).map(|_| counters.open(&processor.unit, &[raw(2)]).unwrap()).collect();
    for event in all {
        counters.close(event, 0).unwrap();
    }
}

#[test]
fn a_group_that_cannot_be_is_refused_by_the_event_that_makes_it_so() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let general = processor.unit.counters() & CounterSet::GENERAL;
        let two: CounterSet = general.iter().take(2).collect();
        let mut counters = processor.take_only(two, &mock, &memory, &table);
        let unit = &processor.unit;
        let illegal = Event::raw(EventSelect::from_bits(1 << 20));
        let elsewhere = raw(2).on(CounterSet::fixed(0b1000_0000));
        mock.clear();
        for (events, expected) in [
            (vec![raw(2), illegal], error(1, CounterError::IllegalBits(1 << 20))),
            (vec![raw(2).every(1)], error(0, CounterError::Period(1))),
            (vec![raw(2), raw(3), elsewhere], error(2, CounterError::NoCounterForEvent)),
            (vec![raw(2), raw(3), raw(4)], error(2, CounterError::NoFreeCounter)),
            (
                vec![raw(2); 13],
                error(12, CounterError::InsufficientMemory { needed: 13, lent: 12 }),
            ),
            (vec![raw(2); MAX_COUNTERS + 1], {
                error(12, CounterError::InsufficientMemory { needed: 13, lent: 12 })
            }),
        ] {
            assert_eq!(counters.open(unit, &events), Err(expected), "{processor:?}");
            assert_nothing_is_open(&mut counters, &processor);
        }
        assert_eq!(mock.accesses().total(), 0, "{processor:?}");
        let message = error(2, CounterError::NoFreeCounter).to_string();
        let expected =
            "events {2} of the group or thread: no free counter of those that can count the event";
        assert_eq!(message, expected);
        assert_eq!(counters.open(unit, &[]), Err(of_group(CounterError::NoEvents)));
        assert_eq!(of_group(CounterError::NoEvents).to_string(), "no events");
    }
}

#[test]
fn an_operation_that_is_not_the_groups_changes_nothing() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let unit = &processor.unit;
        let group = counters.open(unit, &[raw(2), raw(3)]).unwrap();
        let events: Vec<EventId> = counters.group_events(group).collect();
        let [first, second] = events[..] else { panic!("{events:?}") };
        mock.clear();
        assert_eq!(counters.disable(group, 0), Ok(()));
        let no_group = CounterError::NoCounterForEvent;
        assert_eq!(counters.enable_if_free(second, 0), Err(no_group), "{processor:?}");
        assert_eq!(mock.accesses().total(), 0);
        // The first of its events stands for the group, and another one for itself.
        counters.enable(second, 0).unwrap();
        assert!(!counters.is_enabled(first) && !counters.is_enabled(second));
        counters.enable(group, 0).unwrap();
        mock.clear();
        assert_eq!([first, second].map(|event| counters.enable(event, 0)), [Ok(()); 2]);
        assert_eq!(mock.accesses().total(), 0);
        assert!(counters.is_enabled(first) && counters.is_enabled(second));
        // A shorter array takes the first counts.
        happen(&mock, 2, 5);
        let mut count = [EventCount::default()];
        assert_eq!(counters.read_group(group, 0, &mut count), Ok(1));
        assert_eq!(count[0].value, 5);
        counters.close(group, 0).unwrap();
        assert_eq!(running(&mock), CounterSet::NONE);
        let gone = of_group(CounterError::NoSuchEvent(group));
        assert_eq!(counters.enable(group, 0), Err(gone));
        assert_eq!(counters.disable(group, 0), Err(gone));
        assert_eq!(counters.close(group, 0), Err(gone));
        assert_eq!(counters.read_group(group, 0, &mut count), Err(gone));
        assert_nothing_is_open(&mut counters, &processor);

        let group = counters.open(unit, &[raw(2), raw(3)]).unwrap();
        counters.shut_down().unwrap();
        let gone = of_group(CounterError::NoSuchEvent(group));
        assert_eq!(counters.enable(group, 0), Err(gone));
        assert_eq!(counters.group_events(group).count(), 0);
    }
}

/// An event of the group that interrupts, and keeps no total, cannot be read.
#[test]
fn a_count_that_is_not_kept_is_named() {
    let processor = plain(4);
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let mut counters = processor.take(&mock, &memory, &table);
    let group = counters.open(&processor.unit, &[raw(2), raw(3).every(0x1000)]).unwrap();
    counters.enable(group, 0).unwrap();
    let second = counters.group_events(group).nth(1).unwrap();
    let outcome = counters.read_group(group, 0, &mut [EventCount::default(); 2]);
    assert_eq!(outcome, Err(error(1, CounterError::NoTotal(second))));
}
