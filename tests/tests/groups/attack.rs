//! Attacks on waiting events that are planned together, and on groups of which a part is elsewhere: each test shows one
//! defect.

use pmu_core::facility::SoftwareEvents;
use pmu_core::memory::{EventEntry, EventTable};
use pmu_core::shared_core::{CoreCounters, CoreThread, OnSharedCore};
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::{
    CounterSession, CounterSet, CounterUnit, Event, EventId, EventStatus, Events, SoftwareEvent,
};
use pmu_tests::groups::*;
use pmu_tests::opened::*;
use pmu_virt::configuration::IntelConfiguration;
use pmu_virt::mock::Fault;

/// Two events of a thread want the same counter. The first one's own register faults, so the counter is free for the
/// second.
#[test]
fn an_event_is_refused_only_if_its_own_registers_fail() {
    for together in [false, true] {
        let processor = Processor::intel(IntelConfiguration::new(4, 4, 0));
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let extra = WithExtra::new(&mock);
        let mut counters = extra.take(&processor, CounterSet::ALL, &memory, &table);
        let one = counters.counters().usable.iter().next().unwrap().only();
        let demand = Demand { value: 1, registers: vec![EXTRA[0]] };
        let [broken, whole] = [refined(2, &demand), raw(3)].map(|event| {
            let event = SavedEvent::new(&processor.unit, &event.on(one)).unwrap();
            ThreadEvent::SwitchedOut(event.to_be_enabled(true))
        });
        extra.broken.set(EXTRA[0]);
        let mut thread = [broken, whole];
        let outcome = if together {
            counters.switch_in(&processor.unit, &mut thread, 0)
        } else {
            let (first, second) = thread.split_at_mut(1);
            let _ = counters.switch_in(&processor.unit, first, 0);
            counters.switch_in(&processor.unit, second, 0)
        };
        println!("{outcome:?}");
        let status = thread.map(|event| match event {
            ThreadEvent::Opened(event) => counters.event_status(event).unwrap(),
            _ => panic!("{event:?}"),
        });
        assert_eq!(status[0], EventStatus::Error);
        assert!(matches!(status[1], EventStatus::Active(_)), "together {together}: {status:?}");
    }
}

/// A thread's event takes one of the counters of a group, which leaves all of its counters. The processor's own event
/// that waits gets the other one.
#[test]
fn a_counter_that_becomes_free_goes_to_an_event_that_waits() {
    let processor = Processor::intel(IntelConfiguration::new(4, 4, 0));
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let general = processor.unit.counters() & CounterSet::GENERAL;
    let two: CounterSet = general.iter().take(2).collect();
    let mut counters = processor.take_only(two, &mock, &memory, &table);
    let group = counters.open(&processor.unit, &[raw(2).rotating(), raw(3)]).unwrap();
    counters.enable(group, 0).unwrap();
    let waits = counters.open(&processor.unit, &[raw(4).rotating()]).unwrap();
    counters.enable(waits, 0).unwrap();
    assert_eq!(counters.event_status(waits), Ok(EventStatus::Inactive));
    let event = SavedEvent::new(&processor.unit, &raw(5)).unwrap();
    let mut thread = [ThreadEvent::SwitchedOut(event.to_be_enabled(true))];
    counters.switch_in(&processor.unit, &mut thread, 10).unwrap();
    assert_eq!(running(&mock).len(), 2, "an event waits, and a counter is free");
    assert!(matches!(counters.event_status(waits), Ok(EventStatus::Active(_))));
}

/// "Returns the events that failed": a thread's event whose counter is lost in the switch is among them.
#[test]
fn a_switch_names_each_event_that_does_not_run_after_a_fault() {
    let mut lost = 0;
    for access in 1.. {
        let processor = Processor::intel(IntelConfiguration::new(4, 4, 0));
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let general = processor.unit.counters() & CounterSet::GENERAL;
        let two: CounterSet = general.iter().take(2).collect();
        let mut counters = processor.take_only(two, &mock, &memory, &table);
        let group = counters.open(&processor.unit, &[raw(2).rotating(), raw(3)]).unwrap();
        counters.enable(group, 0).unwrap();
        let event = SavedEvent::new(&processor.unit, &raw(5)).unwrap();
        let mut thread = [ThreadEvent::SwitchedOut(event.to_be_enabled(true))];
        mock.clear();
        mock.inject(Fault::Twice(access));
        let outcome = counters.switch_in(&processor.unit, &mut thread, 10);
        let reached = mock.accesses().total() >= access;
        mock.inject(Fault::None);
        if !reached {
            break;
        }
        let ThreadEvent::Opened(event) = thread[0] else { panic!("{thread:?}") };
        let status = counters.event_status(event).unwrap();
        if !matches!(status, EventStatus::Active(_)) {
            lost += 1;
            let named = outcome.err().map_or(0, |error| error.events);
            assert_eq!(named, 1, "access {access}: {status:?}, {outcome:?}");
        }
    }
    assert!(lost > 0);
}

/// A member that this processor cannot count is started, although its group is elsewhere.
#[test]
fn a_close_of_a_part_of_a_group_returns_the_count_of_now() {
    let closed = [false, true].map(|reads| {
        let processor = plain(4);
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let general = processor.unit.counters() & CounterSet::GENERAL;
        let mut counters =
            processor.take_only(general.iter().next().unwrap().only(), &mock, &memory, &table);
        let mut saved = [raw(2).on(CounterSet::from_bits(2)), raw(3)]
            .map(|event| SavedEvent::new(&processor.unit, &event).unwrap().to_be_enabled(true));
        SavedEvent::make_group(&mut saved).unwrap();
        let mut thread = saved.map(ThreadEvent::SwitchedOut);
        counters.switch_in(&processor.unit, &mut thread[..1], 10).unwrap();
        let ThreadEvent::Opened(event) = thread[0] else { panic!("{thread:?}") };
        assert!(counters.is_enabled(event));
        if reads {
            counters.read(event, 100).unwrap();
        }
        counters.close(event, 100)
    });
    assert_eq!(closed[0].unwrap().enabled, 90);
    assert_eq!(closed[0], closed[1]);
}

/// A saved event is plain data. More copies of a member are switched in than a byte counts.
#[test]
fn many_copies_of_a_member_are_no_whole_group() {
    let processor = plain(4);
    let (memory, table, mock) =
        (Memory::new(), EventTable::<[EventEntry; 600]>::new(), processor.mock());
    let source = Events::new(&processor.unit, &table);
    let mut counters =
        CounterSession::take(source, &processor.unit, CounterSet::ALL, &mock, &memory).unwrap();
    let mut saved = [raw(2), raw(3)].map(|event| SavedEvent::new(&processor.unit, &event).unwrap());
    SavedEvent::make_group(&mut saved).unwrap();
    for _ in 0..258 {
        let mut copy = [ThreadEvent::SwitchedOut(saved[0])];
        counters.switch_in(&processor.unit, &mut copy, 20).unwrap();
        let ThreadEvent::Opened(event) = copy[0] else { panic!("{copy:?}") };
        let whole = counters.enable(event, 20).map_err(|error| error.events);
        assert_eq!(whole.is_ok(), counters.group_events(event).count() == 2);
        if whole.is_ok() {
            counters.disable(event, 20).unwrap();
        }
    }
}

/// The processor's sessions with software events.
fn with_software(test: impl Fn(&Processor, Events<'_, CounterUnit, SoftwareEvents>, &Mock<'_>)) {
    let processor = plain(4);
    let (table, mock) = (Table::new(), processor.mock());
    test(&processor, Events::new(&processor.unit, &table).with(SoftwareEvents), &mock);
}

/// Beside an event that gets a counter, a clock does not count whose group is elsewhere.
#[test]
fn a_software_event_of_a_part_of_a_group_does_not_count() {
    with_software(|processor, source, mock| {
        let (memory, unit) = (Memory::new(), &processor.unit);
        let mut counters =
            CounterSession::take(source, unit, CounterSet::ALL, mock, &memory).unwrap();
        let lone = counters.open(unit, &[raw(4)]).unwrap();
        counters.enable(lone, 0).unwrap();
        let clock = Event::software(SoftwareEvent::TaskClock);
        let group = counters.open(unit, &[clock, raw(2)]).unwrap();
        counters.enable(group, 0).unwrap();
        let ids: Vec<EventId> = counters.group_events(group).collect();
        let mut thread = [lone, ids[0]].map(ThreadEvent::Opened);
        let mut other = [ThreadEvent::Opened(ids[1])];
        counters.switch_out(&mut thread, 10, |_| ()).unwrap();
        counters.switch_out(&mut other, 10, |_| ()).unwrap();
        if let ThreadEvent::SwitchedOut(event) = &mut thread[1] {
            *event = event.to_be_enabled(true);
        }
        let _ = counters.switch_in(unit, &mut thread, 20);
        let ThreadEvent::Opened(event) = thread[1] else { panic!("{thread:?}") };
        assert!(!matches!(counters.event_status(event), Ok(EventStatus::Active(_))));
        assert_eq!(counters.close(event, 120).unwrap().value, 10);
    });
}

/// A software event takes no counter, so it starts without a plan, alone on its processor or on a shared core.
#[test]
fn a_software_event_starts_wherever_a_counter_is_free_or_not() {
    with_software(|processor, source, mock| {
        let (memory, core, unit) = (Memory::new(), CoreCounters::new(), &processor.unit);
        let faults = Event::software(SoftwareEvent::PageFaults);
        let thread = CoreThread::new(&core, false, pmu_intel::SiblingErratum::EVENTS);
        let source = source.with(OnSharedCore::new(thread, SoftwareEvents));
        let mut counters =
            CounterSession::take(source, unit, CounterSet::ALL, mock, &memory).unwrap();
        for event in [faults, faults.exclusive()] {
            let event = counters.open(unit, &[event]).unwrap();
            assert_eq!(counters.enable_if_free(event, 0), Ok(()));
            counters.close(event, 0).unwrap();
        }
    });
}
