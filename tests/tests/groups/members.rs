//! Single events of a group, enabled and disabled: the others go on, and times and counts are those of Linux.

use pmu_core::error::CounterError;
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::{CounterSet, Event, EventCount, EventId, EventStatus};
use pmu_tests::Reason;
use pmu_tests::opened::*;
use pmu_virt::mock::{Deviations, Fault};

/// Returns a processor's first three general counters.
fn three(processor: &Processor) -> [CounterSet; 3] {
    let general = processor.unit.counters() & CounterSet::GENERAL;
    core::array::from_fn(|number| general.iter().nth(number).unwrap().only())
}

fn open(
    counters: &mut Opened<'_, '_>,
    processor: &Processor,
    events: &[Event],
) -> (EventId, Vec<EventId>) {
    let group = counters.open(&processor.unit, events).unwrap();
    (group, counters.group_events(group).collect())
}

fn count_of(value: u64, enabled: u64, running: u64) -> EventCount {
    EventCount { value, enabled, running }
}

/// Ten of each at first, 5 while one is disabled, 7 after; so many units of time as events.
#[test]
fn a_disabled_member_stands_still_while_the_others_go_on() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let (group, ids) = open(&mut counters, &processor, &[raw(2), raw(3), raw(4)]);
        let pass = |count| (2..5).for_each(|kind| happen(&mock, kind, count));
        counters.enable(group, 100).unwrap();
        pass(10);
        let others = [ids[0], ids[2]].map(|id| counters.counter_of(id));
        counters.disable(ids[1], 110).unwrap();
        counters.disable(ids[1], 112).unwrap();
        assert_eq!(counters.event_status(ids[1]), Ok(EventStatus::Off), "{processor:?}");
        pass(5);
        let mut counts = [EventCount::default(); 3];
        assert_eq!(counters.read_group(group, 115, &mut counts), Ok(3));
        let [on, off] = [count_of(15, 15, 15), count_of(10, 10, 10)];
        assert_eq!(counts, [on, off, on], "{processor:?}");
        counters.enable(ids[1], 115).unwrap();
        counters.enable(ids[1], 116).unwrap();
        assert_eq!([ids[0], ids[2]].map(|id| counters.counter_of(id)), others, "{processor:?}");
        pass(7);
        counters.disable(group, 122).unwrap();
        counters.read_group(group, 130, &mut counts).unwrap();
        let [on, off] = [count_of(22, 22, 22), count_of(17, 17, 17)];
        assert_eq!(counts, [on, off, on], "{processor:?}");
        counters.shut_down().unwrap();
        assert_eq!(running(&mock), CounterSet::NONE);
    }
}

/// As the kernel does for `PERF_EVENT_IOC_ENABLE` and `_DISABLE`, whichever event they are of.
#[test]
fn the_first_event_starts_and_stops_its_group_and_a_lone_event_itself() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let (_, ids) = open(&mut counters, &processor, &[raw(2), raw(3), raw(4)]);
        let lone = counters.open(&processor.unit, &[raw(5)]).unwrap();
        let pass = |count| (2..6).for_each(|kind| happen(&mock, kind, count));
        // Before the group runs: a member is disabled, and disabled no more.
        for id in [ids[1], ids[2], lone, ids[0]] {
            counters.disable(id, 0).unwrap();
        }
        counters.enable(ids[2], 0).unwrap();
        assert_eq!(running(&mock), CounterSet::NONE, "{processor:?}");
        counters.enable(ids[0], 0).unwrap();
        counters.enable(lone, 0).unwrap();
        pass(3);
        assert_eq!(running(&mock).len(), 3, "{processor:?}");
        for now in [3, 4] {
            counters.disable(ids[0], now).unwrap();
            counters.disable(lone, now).unwrap();
        }
        assert_eq!(running(&mock), CounterSet::NONE, "{processor:?}");
        pass(3);
        // `PERF_IOC_FLAG_GROUP`.
        for id in [ids[1], ids[2], ids[0], lone, lone] {
            counters.enable(id, 6).unwrap();
        }
        pass(2);
        let counts = [ids[0], ids[1], ids[2], lone].map(|id| counters.read(id, 8).unwrap());
        let [both, last] = [count_of(5, 5, 5), count_of(2, 2, 2)];
        assert_eq!(counts, [both, last, both, both], "{processor:?}");
        counters.close(lone, 8).unwrap();
        let gone = Err(CounterError::NoSuchEvent(lone));
        let changed = [counters.enable(lone, 8), counters.disable(lone, 8)];
        assert_eq!(changed.map(Reason::reason), [gone; 2]);
        counters.shut_down().unwrap();
    }
}

/// Another event has the only counter that could count the disabled one.
#[test]
fn a_member_without_room_keeps_a_pinned_group_on_and_makes_one_that_rotates_wait() {
    for processor in processors(Deviations::NONE) {
        for rotates in [false, true] {
            let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
            let mut counters = processor.take(&mock, &memory, &table);
            let [a, b, c] = three(&processor);
            let first = if rotates { raw(2).rotating() } else { raw(2) };
            let events = [first.on(a), raw(3).on(b), raw(4).on(c)];
            let (group, ids) = open(&mut counters, &processor, &events);
            counters.disable(ids[2], 0).unwrap();
            counters.enable(group, 0).unwrap();
            let pinned = counters.open(&processor.unit, &[raw(5).on(c)]).unwrap();
            counters.enable(pinned, 0).unwrap();
            let pass = |count| (2..6).for_each(|kind| happen(&mock, kind, count));
            pass(10);
            let enabled = counters.enable(ids[2], 10);
            pass(10);
            let states = ids.iter().map(|id| counters.event_status(*id).unwrap());
            let states: Vec<_> = states.collect();
            let counts = [0, 1, 2].map(|member| counters.read(ids[member], 20).unwrap());
            if rotates {
                assert_eq!(enabled, Ok(()), "{processor:?}");
                assert_eq!(states, [EventStatus::Inactive; 3], "{processor:?}");
                let [both, last] = [count_of(10, 20, 10), count_of(0, 10, 0)];
                assert_eq!(counts, [both, both, last], "{processor:?}");
            } else {
                assert_eq!(enabled.reason(), Err(CounterError::NoFreeCounter), "{processor:?}");
                assert_eq!(states[2], EventStatus::Off, "{processor:?}");
                let [both, last] = [count_of(20, 20, 20), count_of(0, 0, 0)];
                assert_eq!(counts, [both, both, last], "{processor:?}");
            }
            counters.close(pinned, 20).unwrap();
            if rotates {
                counters.rotate(20).unwrap();
            } else {
                counters.enable(ids[2], 20).unwrap();
            }
            pass(5);
            let counts = [0, 1, 2].map(|member| counters.read(ids[member], 25).unwrap());
            let expected = if rotates {
                [count_of(15, 25, 15), count_of(15, 25, 15), count_of(5, 15, 5)]
            } else {
                [count_of(25, 25, 25), count_of(25, 25, 25), count_of(5, 5, 5)]
            };
            assert_eq!(counts, expected, "{processor:?}");
            counters.shut_down().unwrap();
        }
    }
}

/// A pinned group takes the counter of an event that rotates.
#[test]
fn a_member_of_a_pinned_group_takes_the_counter_of_an_event_that_rotates() {
    let processor = plain(2);
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let mut counters = processor.take(&mock, &memory, &table);
    let [a, b, _] = three(&processor);
    let (group, ids) = open(&mut counters, &processor, &[raw(2).on(a), raw(3).on(b)]);
    counters.disable(ids[1], 0).unwrap();
    counters.enable(group, 0).unwrap();
    let rotating = counters.open(&processor.unit, &[raw(5).on(b).rotating()]).unwrap();
    counters.enable(rotating, 0).unwrap();
    counters.enable(ids[1], 1).unwrap();
    assert_eq!(counters.event_status(rotating), Ok(EventStatus::Inactive));
    assert_eq!(counters.counter_of(ids[1]).map(|on| on.only()), Some(b));
    // Disabled, it gives the counter back at the next turn.
    counters.disable(ids[1], 2).unwrap();
    counters.rotate(3).unwrap();
    assert_eq!(counters.counter_of(rotating).map(|on| on.only()), Some(b));
    counters.shut_down().unwrap();
}

/// A thread's group is switched out and in, with a member disabled before, and one enabled meanwhile.
#[test]
fn a_member_stays_disabled_on_its_way_between_processors_and_is_changed_while_it_is_out() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let (group, ids) = open(&mut counters, &processor, &[raw(2), raw(3), raw(4)]);
        counters.disable(ids[1], 0).unwrap();
        counters.enable(group, 0).unwrap();
        let mut thread: Vec<_> = ids.iter().copied().map(ThreadEvent::Opened).collect();
        let pass = |count| (2..5).for_each(|kind| happen(&mock, kind, count));
        let values = |thread: &[ThreadEvent]| -> Vec<u64> {
            let value = |event: &ThreadEvent| match event {
                ThreadEvent::SwitchedOut(event) => event.count().value,
                _ => panic!("{event:?}"),
            };
            thread.iter().map(value).collect()
        };
        let changed = |event: &mut ThreadEvent, change: &dyn Fn(SavedEvent) -> _| {
            let ThreadEvent::SwitchedOut(saved) = event else { panic!("{event:?}") };
            *saved = change(*saved);
        };
        pass(10);
        counters.switch_out(&mut thread, 10, |o| panic!("{o:?}")).unwrap();
        counters.switch_in(&processor.unit, &mut thread, 20).unwrap();
        pass(10);
        counters.switch_out(&mut thread, 30, |o| panic!("{o:?}")).unwrap();
        assert_eq!(values(&thread), [20, 0, 20], "{processor:?}");
        let ThreadEvent::SwitchedOut(first) = thread[0] else { panic!("{thread:?}") };
        changed(&mut thread[1], &|saved| saved.to_be_enabled(true));
        changed(&mut thread[2], &|saved| saved.disabled());
        counters.switch_in(&processor.unit, &mut thread, 40).unwrap();
        pass(10);
        counters.switch_out(&mut thread, 50, |o| panic!("{o:?}")).unwrap();
        assert_eq!(values(&thread), [30, 0, 20], "{processor:?}");
        changed(&mut thread[1], &|saved| saved.enabled(&first));
        counters.switch_in(&processor.unit, &mut thread, 60).unwrap();
        pass(10);
        counters.switch_out(&mut thread, 70, |o| panic!("{o:?}")).unwrap();
        assert_eq!(values(&thread), [40, 10, 20], "{processor:?}");
        let ThreadEvent::SwitchedOut(second) = thread[1] else { panic!("{thread:?}") };
        assert_eq!(second.count(), count_of(10, 10, 10), "{processor:?}");
        counters.shut_down().unwrap();
    }
}

/// A register faults at each access, once or for good: done or not done, and what is said to run does.
#[test]
fn a_fault_at_each_access_of_enabling_and_disabling_leaves_the_others_running() {
    for processor in processors(Deviations::NONE) {
        for enables in [false, true] {
            let mut access = 1;
            while fault(&processor, enables, access, Fault::At(access)) {
                fault(&processor, enables, access, Fault::From(access));
                access += 1;
            }
            assert!(access > 2, "{processor:?}: {access}");
        }
    }
}

/// Returns whether the operation has so many accesses.
fn fault(processor: &Processor, enables: bool, access: u32, fault: Fault) -> bool {
    let context = format!("{processor:?}, enables: {enables}, {fault:?}");
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let mut counters = processor.take(&mock, &memory, &table);
    let (group, ids) = open(&mut counters, processor, &[raw(2), raw(3), raw(4)]);
    counters.enable(group, 0).unwrap();
    let pass = |count| (2..5).for_each(|kind| happen(&mock, kind, count));
    pass(10);
    if enables {
        counters.disable(ids[1], 10).unwrap();
    }
    mock.clear();
    mock.inject(fault);
    let outcome = if enables { counters.enable(ids[1], 10) } else { counters.disable(ids[1], 10) };
    let reached = mock.accesses().total() >= access;
    mock.inject(Fault::None);
    let said: CounterSet = ids.iter().filter_map(|id| counters.counter_of(*id)).collect();
    assert!(said.without(running(&mock)).is_empty(), "{context}: {outcome:?}");
    if let (Fault::At(_), Err(error)) = (fault, outcome) {
        panic!("{context}: {error}");
    }
    if outcome.is_ok() {
        pass(5);
        let member = if enables { 15 } else { 10 };
        let values = [0, 1, 2].map(|place| total(&counters, ids[place]));
        assert_eq!(values, [15, member, 15], "{context}");
    } else {
        assert_eq!(counters.event_status(ids[1]), Ok(EventStatus::Off), "{context}");
    }
    counters.shut_down().unwrap();
    assert_eq!(running(&mock), CounterSet::NONE, "{context}");
    reached
}

/// An event whose enabling failed counts nothing after a switch either, until it is enabled again.
#[test]
fn a_member_whose_enabling_failed_stays_disabled_across_a_switch() {
    for processor in processors(Deviations::NONE) {
        let mut failures = 0;
        for access in 1.. {
            let context = format!("{processor:?}, access {access}");
            let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
            let mut counters = processor.take(&mock, &memory, &table);
            let (group, ids) = open(&mut counters, &processor, &[raw(2), raw(3)]);
            let mut thread = [0, 1].map(|place| ThreadEvent::Opened(ids[place]));
            counters.disable(ids[1], 0).unwrap();
            counters.enable(group, 0).unwrap();
            mock.clear();
            mock.inject(Fault::From(access));
            let enabled = counters.enable(ids[1], 10);
            let reached = mock.accesses().total() >= access;
            mock.inject(Fault::None);
            if !reached {
                break;
            }
            assert!(enabled.is_err(), "{context}");
            assert_eq!(counters.event_status(ids[1]), Ok(EventStatus::Off), "{context}");
            failures += 1;
            // Counters that faulted are an error of the switch.
            let _ = counters.switch_out(&mut thread, 20, |o| panic!("{o:?}"));
            let _ = counters.switch_in(&processor.unit, &mut thread, 30);
            let ThreadEvent::Opened(member) = thread[1] else { panic!("{context}: {thread:?}") };
            assert_eq!(counters.event_status(member), Ok(EventStatus::Off), "{context}");
            happen(&mock, 3, 5);
            assert_eq!(count(&counters, member), count_of(0, 0, 0), "{context}");
            assert_eq!(counters.counter_of(member), None, "{context}");
            counters.shut_down().unwrap();
            assert_eq!(running(&mock), CounterSet::NONE, "{context}");
        }
        assert!(failures > 1, "{processor:?}: {failures}");
    }
}

/// The children of a group whose second event is disabled are a group of their own, in which the second is disabled.
#[test]
fn a_child_of_a_disabled_event_is_disabled_in_its_group() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let (group, ids) = open(&mut counters, &processor, &[raw(2), raw(3)]);
        counters.disable(ids[1], 0).unwrap();
        counters.enable(group, 0).unwrap();
        let mut children = [0, 1].map(|place| counters.child_event(ids[place], 7).unwrap());
        SavedEvent::make_group(&mut children).unwrap();
        counters.close(group, 0).unwrap();
        let mut thread = children.map(ThreadEvent::SwitchedOut);
        counters.switch_in(&processor.unit, &mut thread, 10).unwrap();
        (2..4).for_each(|kind| happen(&mock, kind, 5));
        let id = |place: usize| match thread[place] {
            ThreadEvent::Opened(id) => id,
            _ => panic!("{thread:?}"),
        };
        assert_eq!(counters.event_status(id(1)), Ok(EventStatus::Off), "{processor:?}");
        let counts = [0, 1].map(|place| counters.read(id(place), 15).unwrap());
        assert_eq!(counts, [count_of(5, 5, 5), count_of(0, 0, 0)], "{processor:?}");
        counters.enable(id(1), 15).unwrap();
        assert!(counters.counter_of(id(1)).is_some(), "{processor:?}");
        // The first event of a group is never disabled.
        let mut children = [children[1], children[0]];
        SavedEvent::make_group(&mut children).unwrap();
        let mut other = children.map(|child| ThreadEvent::SwitchedOut(child.to_be_enabled(true)));
        counters.switch_out(&mut thread, 20, |o| panic!("{o:?}")).unwrap();
        counters.switch_in(&processor.unit, &mut other, 20).unwrap();
        assert_eq!(running(&mock).len(), 2, "{processor:?}");
        counters.shut_down().unwrap();
    }
}

/// `disabled` stops an event in no group, and a group's first event, until `to_be_enabled`.
#[test]
fn an_event_that_cannot_be_disabled_is_started_again() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let new = |kind| SavedEvent::new(&processor.unit, &raw(kind)).unwrap();
        let mut made = [new(3), new(4)];
        SavedEvent::make_group(&mut made).unwrap();
        let (_, ids) = open(&mut counters, &processor, &[raw(3), raw(4)]);
        let mut opened = [0, 1].map(|place| ThreadEvent::Opened(ids[place]));
        counters.switch_out(&mut opened, 0, |o| panic!("{o:?}")).unwrap();
        let saved = |event| match event {
            ThreadEvent::SwitchedOut(saved) => saved,
            _ => panic!("{event:?}"),
        };
        for [first, member] in [made, opened.map(saved)] {
            let [lone, first, member] = [new(2), first, member].map(|event| event.disabled());
            assert!(![lone, first, member].iter().any(SavedEvent::is_enabled), "{processor:?}");
            let events = [lone, first, member].map(|event| event.to_be_enabled(true));
            let started = events.map(|event| event.is_enabled());
            assert_eq!(started, [true, true, false], "{processor:?}");
            // The child of the first event can be a later event of a group.
            let mut children = [lone, first].map(|event| event.child(0));
            SavedEvent::make_group(&mut children).unwrap();
            let child = children[1].to_be_enabled(true).disabled().to_be_enabled(true);
            assert!(!child.is_enabled(), "{processor:?}");
            let mut thread = events.map(ThreadEvent::SwitchedOut);
            counters.switch_in(&processor.unit, &mut thread, 0).unwrap();
            (2..5).for_each(|kind| happen(&mock, kind, 5));
            counters.switch_out(&mut thread, 5, |o| panic!("{o:?}")).unwrap();
            let counts = thread.map(|event| saved(event).count());
            let [on, off] = [count_of(5, 5, 5), count_of(0, 0, 0)];
            assert_eq!(counts, [on, on, off], "{processor:?}");
        }
        // An event that is disabled before it has a group is disabled in its group.
        let mut events = [new(2).disabled(), new(3).disabled()];
        SavedEvent::make_group(&mut events).unwrap();
        let started = events.map(|event| event.to_be_enabled(true).is_enabled());
        assert_eq!(started, [true, false], "{processor:?}");
        counters.shut_down().unwrap();
    }
}
