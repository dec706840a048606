//! Events of threads, changed while they are off the processor: as the session changes open ones.

use pmu_core::error::CounterError;
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::{EventCount, EventId};
use pmu_tests::Reason;
use pmu_tests::opened::*;
use pmu_virt::mock::Deviations;

/// A change of an event.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    Enable,
    Disable,
    Remove,
}

use Change::{Disable, Enable, Remove};

/// A thread with a group of three events and an event alone.
const EVENTS: usize = 4;

/// Does it to an open event, by the session.
fn change_open(counters: &mut Opened<'_, '_>, change: Change, event: EventId) {
    match change {
        Enable => counters.enable(event, 0).unwrap(),
        Disable => counters.disable(event, 0).unwrap(),
        Remove => drop(counters.close_member(event, 0).unwrap()),
    }
}

/// Returns the counts of a thread's events after two changes, by the session or as data.
fn counts(
    processor: &Processor,
    changes: [(Change, usize); 2],
    as_data: bool,
) -> [Option<u64>; EVENTS] {
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let unit = &processor.unit;
    let mut counters = processor.take(&mock, &memory, &table);
    let group = counters.open(unit, &[raw(2), raw(3), raw(4)]).unwrap();
    let alone = counters.open(unit, &[raw(5)]).unwrap();
    counters.enable(group, 0).unwrap();
    counters.enable(alone, 0).unwrap();
    let members: Vec<_> = counters.group_events(group).collect();
    let mut thread = [members[0], members[1], members[2], alone].map(ThreadEvent::Opened);
    let mut worked = 0;
    let work = || {
        worked += 1;
        (2..6).for_each(|kind| happen(&mock, kind, 10 * worked));
    };
    let mut work = work;
    work();
    for (change, index) in changes {
        if thread[index] == ThreadEvent::Unused {
            continue;
        }
        if as_data {
            counters.switch_out(&mut thread, 0, |o| panic!("{o:?}")).unwrap();
            match change {
                Enable => ThreadEvent::enable(&mut thread, index).unwrap(),
                Disable => ThreadEvent::disable(&mut thread, index).unwrap(),
                Remove => ThreadEvent::remove(&mut thread, index).unwrap(),
            }
            counters.switch_in(unit, &mut thread, 0).unwrap();
        } else {
            change_open(&mut counters, change, id_of(&thread[index]));
            if change == Remove {
                thread[index] = ThreadEvent::Unused;
            }
        }
        work();
    }
    thread.map(|event| match event {
        ThreadEvent::Opened(id) => Some(total(&counters, id)),
        _ => None,
    })
}

#[test]
fn a_change_of_data_is_what_the_session_does_to_open_events() {
    let all = || {
        [Enable, Disable, Remove]
            .into_iter()
            .flat_map(|change| (0..EVENTS).map(move |index| (change, index)))
    };
    for processor in processors(Deviations::NONE) {
        for first in all() {
            for second in all() {
                let changes = [first, second];
                let (expected, found) =
                    (counts(&processor, changes, false), counts(&processor, changes, true));
                assert_eq!(found, expected, "{processor:?}, {changes:?}");
            }
        }
    }
}

/// A fork and an exit: the child counts as the parent, in groups of its own, and its counts are added.
#[test]
fn a_child_has_the_groups_of_its_parent_and_its_counts_are_the_parents() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let unit = &processor.unit;
        let mut counters = processor.take(&mock, &memory, &table);
        let saved = |kind: usize| {
            SavedEvent::new(unit, &raw(kind).tagged(kind as u64)).unwrap().to_be_enabled(true)
        };
        let mut group = [saved(2), saved(3)];
        SavedEvent::make_group(&mut group).unwrap();
        let mut parent = [
            ThreadEvent::SwitchedOut(group[0]),
            ThreadEvent::Unused,
            ThreadEvent::SwitchedOut(saved(5)),
            ThreadEvent::SwitchedOut(group[1]),
        ];
        let small = ThreadEvent::inherit(&parent, &mut [ThreadEvent::Unused; 3], |tag| tag);
        assert_eq!(small.reason(), Err(CounterError::InsufficientMemory { needed: 4, lent: 3 }));
        let mut child = [ThreadEvent::Unused; 5];
        ThreadEvent::inherit(&parent, &mut child, |tag| tag + 100).unwrap();
        assert_eq!(
            child.map(|event| event == ThreadEvent::Unused),
            [false, true, false, false, true]
        );
        let again = ThreadEvent::inherit(&parent, &mut child, |tag| tag);
        assert_eq!(again.reason(), Err(CounterError::InsufficientMemory { needed: 1, lent: 5 }));
        counters.switch_in(unit, &mut parent, 0).unwrap();
        (2..6).for_each(|kind| happen(&mock, kind, 10));
        counters.switch_out(&mut parent, 5, |o| panic!("{o:?}")).unwrap();
        counters.switch_in(unit, &mut child, 5).unwrap();
        assert_eq!(counters.event_tag(id_of(&child[3])), Ok(103));
        // Its group is one, and not the parent's.
        let mut read = [EventCount::default(); 3];
        assert_eq!(counters.read_group(id_of(&child[0]), 5, &mut read), Ok(2));
        (2..6).for_each(|kind| happen(&mock, kind, 7));
        let running = ThreadEvent::inherit(&child, &mut [ThreadEvent::Unused; 5], |tag| tag);
        assert_eq!(running.reason(), Err(CounterError::IsEnabled(id_of(&child[0]))));
        // Stopping the child's group leaves the parent's as it is.
        counters.switch_out(&mut child, 9, |o| panic!("{o:?}")).unwrap();
        ThreadEvent::disable(&mut child, 0).unwrap();
        ThreadEvent::add_counts(&mut parent, &child);
        counters.switch_in(unit, &mut parent, 9).unwrap();
        (2..6).for_each(|kind| happen(&mock, kind, 1));
        let of_parent = [0, 2, 3].map(|index| total(&counters, id_of(&parent[index])));
        assert_eq!(of_parent, [18; 3], "{processor:?}");
    }
}

#[test]
fn what_no_event_is_or_what_runs_is_refused_and_left() {
    let processor = &processors(Deviations::NONE)[0];
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let mut counters = processor.take(&mock, &memory, &table);
    let id = counters.open(&processor.unit, &[raw(2)]).unwrap();
    for change in [ThreadEvent::enable, ThreadEvent::disable, ThreadEvent::remove] {
        let mut thread = [ThreadEvent::Unused; 2];
        assert_eq!(change(&mut thread, 1).reason(), Err(CounterError::NoEvents));
        assert_eq!(change(&mut thread, 2).reason(), Err(CounterError::NoEvents));
        let mut thread = [ThreadEvent::Unused, ThreadEvent::Opened(id)];
        assert_eq!(change(&mut thread, 1).reason(), Err(CounterError::IsEnabled(id)));
        assert_eq!(thread, [ThreadEvent::Unused, ThreadEvent::Opened(id)]);
    }
}
