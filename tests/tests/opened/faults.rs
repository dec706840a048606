//! A fault at each access of each operation on opened events: done or not done, and never half; no counter runs
//! without an owner.

use core::cell::RefCell;

use pmu_core::error::CounterError;
use pmu_core::interrupt::EventOverflow;
use pmu_core::thread::ThreadEvent;
use pmu_core::{CounterSet, Events, service};
use pmu_tests::Reason;
use pmu_tests::StateRegisters;
use pmu_tests::opened::operations::*;
use pmu_tests::opened::*;
use pmu_virt::mock::{Deviations, Fault};

/// Events of each kind that passed before the operation.
const PASSED: u64 = 0x700;

fn accesses_of(processor: &Processor, scene: Scene) -> u32 {
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let mut case = scene.prepare(processor, PASSED, &mock, &memory, &table);
    mock.clear();
    scene.operate(processor, &mut case, |o| panic!("{o:?}")).unwrap();
    mock.accesses().total()
}

/// The running counters are those that the session reports.
#[track_caller]
fn assert_truthful(case: &Case<'_, '_>, mock: &Mock<'_>, context: &str) {
    let said: CounterSet =
        case.events.iter().filter_map(|event| case.counters.counter_of(*event)).collect();
    assert_eq!(running(mock), said, "{context}");
}

#[test]
fn a_fault_that_passes_is_survived_by_every_operation() {
    for processor in processors(Deviations::NONE) {
        for scene in Scene::all(&processor) {
            for access in 1..=accesses_of(&processor, scene) {
                transient(&processor, scene, access);
            }
        }
    }
}

fn transient(processor: &Processor, scene: Scene, access: u32) {
    let operation = scene.operation;
    let context = format!("{processor:?}, {scene:?}, access {access}");
    let (memory, table) = (Memory::new(), Table::new());
    let reports = RefCell::new(Vec::<EventOverflow>::new());
    let handler = |mock: &Mock<'_>| {
        let source = Events::new(&processor.unit, &table);
        service(&source, mock, &memory, |o| reports.borrow_mut().push(*o)).unwrap();
    };
    let mock = processor.mock();
    mock.on_interrupt(&handler);
    let mut case = scene.prepare(processor, PASSED, &mock, &memory, &table);
    mock.inject(Fault::At(access));
    let outcome = scene.operate(processor, &mut case, |o| panic!("{o:?}"));
    mock.inject(Fault::None);
    let context = format!("{context}: {outcome:?}");
    assert_eq!(outcome, Ok(()), "{context}");
    assert_truthful(&case, &mock, &context);
    if operation == Operation::ShutDown {
        case.counters.shut_down().unwrap();
        assert_eq!(running(&mock), CounterSet::NONE, "{context}");
        return;
    }
    // No count was lost, and no part of a period.
    let rotated = operation == Operation::Rotate;
    if rotated {
        assert!(case.events.iter().all(|event| case.counters.is_enabled(*event)), "{context}");
        for now in 2..8 {
            if case.counters.counter_of(case.events[2]).is_none() {
                case.counters.rotate(now).unwrap();
            }
        }
    }
    let alone = operation == Operation::StartExclusive;
    for place in [2, 0, 1] {
        let event = case.events[place];
        if alone && place == 0 {
            // The others come back, with what they had.
            case.counters.disable(case.events[2], 2).unwrap();
            case.counters.rotate(2).unwrap();
        }
        if case.counters.counter_of(event).is_none() {
            assert!(!alone, "{context}: {place}");
            continue;
        }
        assert_eq!(case.counters.read(event, 2).unwrap().value, PASSED, "{context}: {place}");
        let expected = u32::from(place != 1);
        let is_anew = operation == Operation::ApplyPeriod && place == 2;
        let left = if is_anew { PERIOD } else { PERIOD - PASSED };
        scene.happen(&mock, place, left - 1);
        assert_eq!(reports.take(), [], "{context}: {place} is early");
        scene.happen(&mock, place, 1);
        assert_eq!(reports.take().len() as u32, expected, "{context}: {place}");
        assert_eq!(case.counters.read(event, 2).unwrap().value, PASSED + left, "{context}");
    }
    case.counters.shut_down().unwrap();
    assert_eq!(running(&mock), CounterSet::NONE, "{context}");
}

#[test]
fn after_a_fault_that_stays_no_counter_runs_without_an_owner() {
    for processor in processors(Deviations::NONE) {
        for scene in Scene::all(&processor) {
            for access in 1..=accesses_of(&processor, scene) {
                for ends_by_reprogramming in [false, true] {
                    persistent(&processor, scene, access, ends_by_reprogramming);
                }
            }
        }
    }
}

fn persistent(processor: &Processor, scene: Scene, access: u32, reprograms: bool) {
    let operation = scene.operation;
    let context = format!("{processor:?}, {scene:?}, from access {access}");
    let (memory, table) = (Memory::new(), Table::new());
    let reports = RefCell::new(Vec::<EventOverflow>::new());
    let handler = |mock: &Mock<'_>| {
        let source = Events::new(&processor.unit, &table);
        let _ = service(&source, mock, &memory, |o| reports.borrow_mut().push(*o));
    };
    let mock = processor.mock();
    mock.on_interrupt(&handler);
    let mut case = scene.prepare(processor, PASSED, &mock, &memory, &table);
    mock.inject(Fault::From(access));
    let outcome = scene.operate(processor, &mut case, |o| panic!("{o:?}"));
    let context = format!("{context}: {outcome:?}");
    // The last write to a counter that is taken has no consequence.
    let Some(outcome) = outcome.err() else {
        assert_eq!(operation, Operation::TakeMore, "{context}");
        return;
    };
    assert!(
        matches!(
            outcome,
            CounterError::Unchanged(_) | CounterError::StateUnknown(_) | CounterError::Unresponsive
        ),
        "{context}"
    );
    if !matches!(outcome, CounterError::StateUnknown(_)) && operation != Operation::Rotate {
        assert_truthful(&case, &mock, &context);
        assert!(case.counters.is_enabled(case.events[0]), "{context}");
        assert!(case.counters.is_enabled(case.events[1]), "{context}");
    }
    // Every event reported as running is on a running counter.
    for event in case.events {
        if let Some(counter) = case.counters.counter_of(event) {
            let runs = running(&mock).contains(counter);
            assert!(
                runs || operation == Operation::Reprogram || operation == Operation::ShutDown,
                "{context}: {event:?}"
            );
        }
    }
    // Overflows meanwhile: nothing is reported of an event that is not started.
    mock.interrupt_from_elsewhere();
    mock.inject(Fault::None);
    (0..3).for_each(|place| scene.happen(&mock, place, 2 * PERIOD));
    for report in reports.take() {
        assert!(case.counters.is_enabled(report.event), "{context}: {report:?}");
    }
    if reprograms && operation != Operation::ShutDown {
        let _ = case.counters.reprogram(|_| ()).unwrap();
        assert_truthful(&case, &mock, &context);
        // Each event can be stopped, started and closed.
        for event in case.events {
            if operation == Operation::Close && event == case.events[2] {
                continue;
            }
            if case.counters.is_enabled(event) {
                case.counters.disable(event, 3).unwrap();
            }
            if !matches!(case.thread[0], ThreadEvent::SwitchedOut(_)) || event != case.events[2] {
                case.counters.enable(event, 3).unwrap();
                case.counters.close(event, 3).unwrap();
            }
        }
        assert_eq!(running(&mock), CounterSet::NONE, "{context}");
    }
    if !reprograms && operation != Operation::ShutDown {
        // Those whose counter faulted, too.
        for event in case.events {
            let closed = case.counters.close(event, 3).map(|_| ()).reason();
            let gone =
                matches!(operation, Operation::Close | Operation::SwitchOut | Operation::SwitchIn);
            let none = Err(CounterError::NoSuchEvent(event));
            assert!(closed.is_ok() || gone && closed == none, "{context}: {closed:?}");
        }
    }
    case.counters.shut_down().unwrap();
    assert_eq!(running(&mock), CounterSet::NONE, "{context}");
}

/// The event's period was over when it was stopped. Its counter's bit of the status stays set.
#[test]
fn an_overflow_that_cannot_be_acknowledged_is_not_the_next_events() {
    let has_status = |processor: &Processor| processor.unit.global().is_some();
    for processor in processors(Deviations::NONE).into_iter().filter(has_status) {
        let context = format!("{processor:?}");
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let first = general(&processor, 0);
        let mut counters = processor.take_only(first, &mock, &memory, &table);
        let unit = &processor.unit;
        let [over, next] =
            [2, 3].map(|kind| counters.open(unit, &[raw(kind).every(PERIOD)]).unwrap());
        counters.enable(over, 0).unwrap();
        mock.pass(&mut happened(2, PERIOD));
        let acknowledge = unit.global().unwrap().acknowledge.get();
        mock.inject(Fault::Register(acknowledge));
        let stopped = counters.disable(over, 1).reason();
        assert!(matches!(stopped, Err(CounterError::StateUnknown(f)) if f.register == acknowledge));
        mock.inject(Fault::None);
        let started = counters.enable(next, 2);
        let source = Events::new(unit, &table);
        let interrupt = || service(&source, &mock, &memory, |o| panic!("{context}: {o:?}"));
        interrupt().unwrap();
        assert_eq!(started.reason(), Err(CounterError::NoFreeCounter), "{context}");
        counters.reprogram(|o| panic!("{o:?}")).unwrap();
        counters.enable(next, 3).unwrap();
        interrupt().unwrap();
        counters.shut_down().unwrap();
        assert_eq!(mock.with_pmu(|pmu| pmu.state()).global_status(), 0, "{context}");
    }
}

/// The other event needs its counter, which does not stop.
#[test]
fn an_event_that_cannot_leave_its_counter_for_another_is_not_read_as_stopped() {
    for processor in processors(Deviations::NONE) {
        let context = format!("{processor:?}");
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let [first, second] = [0, 1].map(|n| general(&processor, n));
        let unit = &processor.unit;
        let [moving, other] = [raw(2).on(first | second), raw(3).on(first)]
            .map(|event| counters.open(unit, &[event]).unwrap());
        counters.enable(moving, 0).unwrap();
        happen(&mock, 2, PASSED);
        let on = counters.counter_of(moving).unwrap();
        assert_eq!(on.only(), first, "{context}");
        let select = unit.counter(on).unwrap().control().register().get();
        mock.inject(Fault::Register(select));
        let started = counters.enable(other, 1).reason();
        mock.inject(Fault::None);
        let faulted = matches!(started, Err(CounterError::StateUnknown(f)) if f.register == select);
        assert!(faulted, "{context}: {started:?}");
        let lost = Err(CounterError::CounterLost(moving));
        assert_eq!(counters.read(moving, 2), lost, "{context}");
        assert!(!counters.is_enabled(moving) && !counters.is_enabled(other), "{context}");
        counters.enable(moving, 3).unwrap();
        assert_eq!(counters.counter_of(moving).map(|on| on.only()), Some(second), "{context}");
        counters.shut_down().unwrap();
        assert_eq!(running(&mock), CounterSet::NONE, "{context}");
    }
}

/// The bit may be set, and the fault last.
#[test]
fn a_freeze_that_fails_halfway_stops_no_event_and_is_over_after_the_shut_down() {
    for processor in processors(Deviations::NONE).into_iter().filter(|of| of.freezing) {
        for again in [false, true] {
            for access in 1.. {
                let context = format!("{processor:?}, {again}, {access}");
                let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
                let reports = RefCell::new(0);
                let handler = |mock: &Mock<'_>| {
                    let source = Events::new(&processor.unit, &table);
                    service(&source, mock, &memory, |_| *reports.borrow_mut() += 1).unwrap();
                };
                mock.on_interrupt(&handler);
                let plain = Processor { freezing: false, ..processor };
                let mut session = plain.take(&mock, &memory, &table);
                mock.inject(Fault::From(access));
                let failed = session.freeze_on_interrupt();
                mock.inject(Fault::None);
                if again {
                    session.freeze_on_interrupt().unwrap();
                }
                let event = session.open(&processor.unit, &[raw(2).every(0x1000)]).unwrap();
                session.enable(event, 0).unwrap();
                happen(&mock, 2, 3 * 0x1000);
                assert_eq!(*reports.borrow(), 3, "{context}");
                session.shut_down().unwrap();
                assert_eq!(mock.with_pmu(|pmu| pmu.state().debug_control()), 0, "{context}");
                if failed.is_ok() {
                    break;
                }
            }
        }
    }
}
