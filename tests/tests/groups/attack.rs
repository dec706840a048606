//! Attacks on waiting events that are planned together: each test shows one defect.

use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::{CounterSet, EventStatus};
use pmu_tests::groups::*;
use pmu_tests::opened::*;
use pmu_virt::IntelConfiguration;
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
            ThreadEvent::SwitchedOut(event.to_be_started(true))
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
    counters.start(group, 0).unwrap();
    let waits = counters.open(&processor.unit, &[raw(4).rotating()]).unwrap();
    counters.start(waits, 0).unwrap();
    assert_eq!(counters.event_status(waits), Ok(EventStatus::Inactive));
    let event = SavedEvent::new(&processor.unit, &raw(5)).unwrap();
    let mut thread = [ThreadEvent::SwitchedOut(event.to_be_started(true))];
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
        counters.start(group, 0).unwrap();
        let event = SavedEvent::new(&processor.unit, &raw(5)).unwrap();
        let mut thread = [ThreadEvent::SwitchedOut(event.to_be_started(true))];
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
