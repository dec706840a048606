//! The events of a group are counted together: at every access of every operation as many of each have been counted.

use core::cell::Cell;

use pmu_core::thread::ThreadEvent;
use pmu_core::{CounterSet, Event, EventCount, EventId};
use pmu_tests::enum_with_all;
use pmu_tests::opened::*;
use pmu_virt::mock::Deviations;

enum_with_all! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Operation {
        Start,
        /// Another event must move.
        StartWithMove,
        /// Events that rotate must give way.
        StartInstead,
        Stop,
        Close,
        /// It loses its counters to another group, and has them back.
        Rotate,
        Switch,
        ShutDown,
    }
}

/// Events of the three kinds of a group, and of others, happen before each access: the counts of the group are the
/// same whenever it stands still, and a fourth event, alone, counts what happened meanwhile.
#[test]
fn every_event_of_a_group_is_counted_from_and_to_the_same_access() {
    for processor in processors(Deviations::NONE) {
        // Without a register for all counters, they start one after the other.
        if processor.unit.global().is_none() {
            continue;
        }
        for operation in Operation::ALL {
            together(&processor, operation);
        }
    }
}

fn together(processor: &Processor, operation: Operation) {
    let context = format!("{processor:?}, {operation:?}");
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let (ticking, ticks) = (Cell::new(false), Cell::new(0));
    let tick = |mock: &Mock<'_>| {
        if ticking.replace(false) {
            (2..6).for_each(|kind| happen(mock, kind, 1));
            ticks.set(ticks.get() + 1);
            ticking.set(true);
        }
    };
    mock.on_access(&tick);
    let general: Vec<_> = (processor.unit.counters() & CounterSet::GENERAL).iter().collect();
    let four: CounterSet = general[..4].iter().copied().collect();
    let mut counters = processor.take_only(four, &mock, &memory, &table);
    let unit = &processor.unit;
    let only = |number: usize| general[number].only();
    let rotating = |event: Event| match operation {
        Operation::Rotate => event.rotating(),
        _ => event,
    };
    let events = [raw(2), raw(3), raw(4).on(only(0) | only(1))].map(rotating);
    let group = counters.open(unit, &events).unwrap();
    let alone = match operation {
        // It is on the counter that the third event of the group must have, and can be on another one.
        Operation::StartWithMove => {
            vec![raw(5).on(only(0) | only(3)), raw(6).on(only(1) | only(2))]
        }
        Operation::StartInstead => vec![raw(5), raw(6).rotating(), raw(7).rotating()],
        Operation::Rotate => vec![],
        _ => vec![raw(5)],
    };
    let alone: Vec<EventId> =
        alone.iter().map(|event| counters.open(unit, &[*event]).unwrap()).collect();
    let moves = operation == Operation::StartWithMove;
    for event in &alone[usize::from(moves)..] {
        counters.enable(*event, 0).unwrap();
    }
    if moves {
        counters.close(alone[1], 0).unwrap();
        counters.enable(alone[0], 0).unwrap();
    }
    let starts =
        matches!(operation, Operation::Start | Operation::StartWithMove | Operation::StartInstead);
    if !starts {
        counters.enable(group, 0).unwrap();
    }
    let read = |counters: &Opened<'_, '_>, group: EventId| {
        let mut counts = [EventCount::default(); 3];
        assert_eq!(counters.read_group(group, 9, &mut counts), Ok(3), "{context}");
        counts.map(|count| count.value)
    };
    let others = |counters: &mut Opened<'_, '_>| {
        let others = counters.open(unit, &[raw(5).rotating(), raw(6)]).unwrap();
        counters.enable(others, 0).unwrap();
        assert!(counters.group_events(others).all(|event| counters.counter_of(event).is_none()));
    };
    if operation == Operation::Rotate {
        others(&mut counters);
    }
    let before = alone.first().map(|event| counters.read(*event, 0).unwrap().value);
    let mut thread: Vec<ThreadEvent> =
        counters.group_events(group).map(ThreadEvent::Opened).collect();

    ticking.set(true);
    let [first, second, third] = match operation {
        Operation::Start | Operation::StartWithMove | Operation::StartInstead => {
            counters.enable(group, 1).unwrap();
            ticking.set(false);
            read(&counters, group)
        }
        Operation::Stop => {
            counters.disable(group, 1).unwrap();
            ticking.set(false);
            read(&counters, group)
        }
        Operation::Rotate => {
            counters.rotate(1).unwrap();
            assert!(counters.group_events(group).all(|of| counters.counter_of(of).is_none()));
            counters.rotate(2).unwrap();
            assert!(counters.group_events(group).all(|of| counters.counter_of(of).is_some()));
            ticking.set(false);
            read(&counters, group)
        }
        Operation::Switch => {
            counters.switch_out(&mut thread, 1, |o| panic!("{o:?}")).unwrap();
            counters.switch_in(unit, &mut thread, 2).unwrap();
            ticking.set(false);
            read(&counters, id_of(&thread[0]))
        }
        Operation::Close => {
            counters.close(group, 1).unwrap();
            ticking.set(false);
            assert_eq!(counters.group_events(group).count(), 0, "{context}");
            return;
        }
        Operation::ShutDown => {
            counters.shut_down().unwrap();
            ticking.set(false);
            assert_eq!(running(&mock), CounterSet::NONE, "{context}");
            return;
        }
    };
    assert_eq!((second, third), (first, first), "{context}");
    assert!(ticks.get() > 3, "{context}");
    let passes_meanwhile =
        matches!(operation, Operation::Stop | Operation::Rotate | Operation::Switch);
    assert_eq!(first > 0, passes_meanwhile && !starts, "{context}: {first}");
    if let (Some(before), false) = (before, moves) {
        let value = counters.read(alone[0], 9).unwrap().value;
        assert_eq!(value - before, ticks.get(), "{context}: what goes on misses nothing");
    }
    counters.shut_down().unwrap();
}
