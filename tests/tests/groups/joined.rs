//! Events that join a group one by one, as `perf_event_open` makes groups: the same as a group that is opened at once.

use pmu_core::error::{CounterError, EventsError};
use pmu_core::registers::{EventSelect, MAX_COUNTERS};
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::{CounterSet, Event, EventCount, EventId};
use pmu_tests::groups::*;
use pmu_tests::opened::*;
use pmu_virt::mock::Deviations;

fn of_group(reason: CounterError) -> EventsError {
    EventsError { events: 0, reason }
}

/// Opens an event, and then the others beside it.
fn join(
    counters: &mut Opened<'_, '_>,
    processor: &Processor,
    events: &[Event],
) -> Result<Vec<EventId>, EventsError> {
    let unit = &processor.unit;
    let mut opened = vec![counters.open(unit, &[events[0]])?];
    for event in &events[1..] {
        // Whichever event of the group the caller names.
        let other = opened[opened.len() / 2];
        opened.push(counters.open_member(unit, other, event)?);
    }
    Ok(opened)
}

#[test]
fn joined_one_by_one_a_group_is_that_of_events_opened_at_once() {
    let (mut whole, mut refused) = (0, 0);
    for processor in processors(Deviations::NONE) {
        let mut random = Random(27);
        for _ in 0..60 {
            let own = processor.unit.counters();
            let events: Vec<_> = (0..1 + random.below(5) as usize)
                .map(|kind| raw(kind % 4).on(some_counters(&mut random, own)))
                .collect();
            let count = |at_once: bool| {
                let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
                let mut counters = processor.take(&mock, &memory, &table);
                let opened = match at_once {
                    true => counters
                        .open(&processor.unit, &events)
                        .map(|group| counters.group_events(group).collect()),
                    false => join(&mut counters, &processor, &events),
                };
                let ids: Vec<EventId> = match (opened, events.len()) {
                    (Err(error), _) => return Err(error),
                    (Ok(ids), 1) => {
                        counters
                            .open_member(&processor.unit, ids[0], &raw(0).every(1))
                            .unwrap_err();
                        ids
                    }
                    (Ok(ids), _) => ids,
                };
                let group = ids[0];
                assert_eq!(counters.group_events(group).collect::<Vec<_>>(), ids);
                counters.enable(group, 10).unwrap();
                (0..4).for_each(|kind| happen(&mock, kind, 7 + kind as u64));
                let mut counts = [EventCount::default(); 6];
                let read = counters.read_group(group, 20, &mut counts).unwrap();
                counters.close(group, 30).unwrap();
                counters.shut_down().unwrap();
                Ok(counts[..read].to_vec())
            };
            let (expected, joined) = (count(true), count(false));
            match events.len() {
                1 => assert_eq!(joined.is_ok(), expected.is_ok(), "{processor:?}"),
                _ => assert_eq!(joined, expected, "{processor:?}: {events:?}"),
            }
            match joined {
                Ok(_) => whole += 1,
                Err(_) => refused += 1,
            }
        }
    }
    assert!(whole > 100 && refused > 100, "{whole}, {refused}");
}

#[test]
fn an_event_that_cannot_join_leaves_the_group_as_it_was() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let general = processor.unit.counters() & CounterSet::GENERAL;
        let two: CounterSet = general.iter().take(2).collect();
        let mut counters = processor.take_only(two, &mock, &memory, &table);
        let unit = &processor.unit;
        mock.clear();
        let first = counters.open(unit, &[raw(1)]).unwrap();
        let illegal = Event::raw(EventSelect::from_bits(1 << 20));
        let refused = |member: usize, reason| EventsError { events: 1 << member, reason };
        let expected = refused(1, CounterError::IllegalBits(1 << 20));
        assert_eq!(counters.open_member(unit, first, &illegal), Err(expected));
        assert_eq!(counters.group_events(first).count(), 1, "{processor:?}");
        let second = counters.open_member(unit, first, &raw(2)).unwrap();
        let group = first;
        let expected = Err(refused(2, CounterError::NoFreeCounter));
        assert_eq!(counters.open_member(unit, second, &raw(3)), expected, "{processor:?}");
        assert_eq!(counters.group_events(group).collect::<Vec<_>>(), [first, second]);
        assert_eq!(mock.accesses().total(), 0, "{processor:?}");

        counters.enable(group, 0).unwrap();
        let started = of_group(CounterError::IsEnabled(first));
        assert_eq!(counters.open_member(unit, second, &raw(3)), Err(started), "{processor:?}");
        (1..3).for_each(|kind| happen(&mock, kind, 5));
        let mut counts = [EventCount::default(); 2];
        assert_eq!(counters.read_group(group, 1, &mut counts), Ok(2));
        assert_eq!(counts.map(|count| count.value), [5; 2], "{processor:?}");
        counters.close(group, 1).unwrap();
        let closed = of_group(CounterError::NoSuchEvent(first));
        assert_eq!(counters.open_member(unit, first, &raw(2)), Err(closed));
        // Each place of the table is free again.
        let all: Vec<_> = (0..12).map(|_| counters.open(unit, &[raw(2)]).unwrap()).collect();
        assert_eq!(all.len(), 12);
    }
}

/// A group has its events in the order of their places, by which they are read.
#[test]
fn the_places_of_a_group_ascend_or_an_event_finds_none() {
    let processor = plain(4);
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let mut counters = processor.take(&mock, &memory, &table);
    let unit = &processor.unit;
    let mut all: Vec<_> = (0..12).map(|_| counters.open(unit, &[raw(2)]).unwrap()).collect();
    let last = all.pop().unwrap();
    for place in [0, 5] {
        counters.close(all[place], 0).unwrap();
    }
    let full = CounterError::InsufficientMemory { needed: 13, lent: 12 };
    let expected = Err(EventsError { events: 0b10, reason: full });
    assert_eq!(counters.open_member(unit, last, &raw(1)), expected);
    assert_eq!(counters.group_events(last).count(), 1);
    // The free place before the leader is not taken.
    let beside = counters.open_member(unit, all[3], &raw(1)).unwrap();
    assert_eq!(beside, all[5]);
    assert_eq!(counters.open(unit, &[raw(1)]), Ok(all[0]));
}

#[test]
fn no_more_events_join_than_a_processor_has_counters() {
    let processor = plain(4);
    let (memory, mock) = (Memory::new(), processor.mock());
    let table = LargeTable::new();
    let with_extra = WithExtra::new(&mock);
    let all = processor.unit.counters();
    let mut counters = with_extra.take(&processor, all, &memory, &table);
    let unit = &processor.unit;
    let first = counters.open(unit, &[raw(0)]).unwrap();
    let mut joined = 1;
    let error = loop {
        match counters.open_member(unit, first, &raw(0)) {
            Ok(_) => joined += 1,
            Err(error) => break error,
        }
    };
    assert!(joined <= all.iter().count() && joined < MAX_COUNTERS);
    assert_eq!(error, EventsError { events: 1 << joined, reason: CounterError::NoFreeCounter });
}

/// A thread's group of which one event is elsewhere. Counted as whole with the event that joins, it would be started.
#[test]
fn no_event_joins_a_group_that_is_not_whole_here() {
    let processor = plain(4);
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let mut counters = processor.take(&mock, &memory, &table);
    let unit = &processor.unit;
    let mut saved = [1, 2].map(|kind| SavedEvent::new(unit, &raw(kind)).unwrap());
    SavedEvent::make_group(&mut saved).unwrap();
    let mut thread = [ThreadEvent::SwitchedOut(saved[0])];
    let _ = counters.switch_in(unit, &mut thread, 0);
    let ThreadEvent::Opened(event) = thread[0] else { panic!("{thread:?}") };
    let expected = of_group(CounterError::GroupElsewhere(event));
    assert_eq!(counters.open_member(unit, event, &raw(3)), Err(expected));
    assert_eq!(counters.enable(event, 0), Err(expected));
}

#[test]
fn a_group_takes_turns_as_its_first_event_does() {
    let processor = plain(2);
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let general = processor.unit.counters() & CounterSet::GENERAL;
    let two: CounterSet = general.iter().take(2).collect();
    let mut counters = processor.take_only(two, &mock, &memory, &table);
    let unit = &processor.unit;
    // The first rotates, and the second, which does not say so, with it; a pinned event takes both their counters.
    let first = counters.open(unit, &[raw(0).rotating()]).unwrap();
    counters.open_member(unit, first, &raw(1)).unwrap();
    let group = first;
    counters.enable(group, 0).unwrap();
    let pinned = counters.open(unit, &[raw(2)]).unwrap();
    counters.enable(pinned, 0).unwrap();
    assert!(counters.group_events(group).all(|event| counters.counter_of(event).is_none()));
    counters.disable(pinned, 10).unwrap();
    counters.rotate(10).unwrap();
    assert!(counters.group_events(group).all(|event| counters.counter_of(event).is_some()));
}
