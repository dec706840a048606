//! A fault at each access of each operation on opened events: done or not done, and never half; no counter runs
//! without owner.

mod opened;

use core::cell::RefCell;

use opened::*;
use pmu_core::{
    CounterError, CounterSet, EventId, EventOverflow, OpenedEvents, ThreadEvent, service,
};
use pmu_virt::mock::{Deviations, Fault};

const PERIOD: u64 = 0x1000;
/// Events of each kind that passed before the operation.
const PASSED: u64 = 0x700;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Start,
    /// The counter that it needs is another event's, which moves.
    StartWithMove,
    Stop,
    Close,
    Read,
    Rotate,
    SwitchOut,
    SwitchIn,
    TakeMore,
    GiveUp,
    OthersFixedControl,
    Reprogram,
    ShutDown,
}

const OPERATIONS: [Operation; 13] = [
    Operation::Start,
    Operation::StartWithMove,
    Operation::Stop,
    Operation::Close,
    Operation::Read,
    Operation::Rotate,
    Operation::SwitchOut,
    Operation::SwitchIn,
    Operation::TakeMore,
    Operation::GiveUp,
    Operation::OthersFixedControl,
    Operation::Reprogram,
    Operation::ShutDown,
];

/// The session's counters: two general ones and a fixed one if there is one. Events 0 and 1 run, the second can
/// be on the first counter only for the operation that moves the first; event 2 is the operation's.
struct Case<'a, 'm> {
    counters: Opened<'a, 'm>,
    events: [EventId; 3],
    thread: [ThreadEvent; 1],
}

fn two(processor: &Processor) -> (CounterSet, CounterSet, CounterSet) {
    let mut general = (processor.unit.counters() & CounterSet::GENERAL).iter();
    let (first, second, third) =
        (general.next().unwrap(), general.next().unwrap(), general.next().unwrap());
    (first.only(), second.only(), third.only())
}

fn prepare<'a, 'm>(
    processor: &'a Processor,
    operation: Operation,
    mock: &'m Mock<'m>,
    memory: &'a Memory,
    table: &'a Table,
) -> Case<'a, 'm> {
    let (first, second, third) = two(processor);
    let mut only = first | second;
    if operation != Operation::Rotate {
        only = only | third;
    }
    let mut counters = processor.take_only(only, mock, memory, table);
    let unit = &processor.unit;
    let sampling = |kind| raw(kind).every(PERIOD).with_total().rotating();
    let narrow = if operation == Operation::StartWithMove { first } else { CounterSet::ALL };
    let events = [
        counters.open_event(unit, &sampling(2)).unwrap(),
        counters.open_event(unit, &raw(3)).unwrap(),
        counters.open_event(unit, &sampling(4).on(narrow)).unwrap(),
    ];
    let mut thread = [ThreadEvent::Unused];
    // The last event has some of its period behind it.
    counters.start_event(events[2], 0).unwrap();
    happen(mock, 4, PASSED);
    let stops = matches!(
        operation,
        Operation::Stop | Operation::Close | Operation::Read | Operation::SwitchOut
    );
    if operation == Operation::SwitchIn {
        thread = [ThreadEvent::Opened(events[2])];
        counters.switch_out(&mut thread, 0, |o| panic!("{o:?}")).unwrap();
    } else if !stops {
        counters.stop_event(events[2], 0).unwrap();
    }
    counters.start_event(events[0], 0).unwrap();
    counters.start_event(events[1], 0).unwrap();
    if operation == Operation::Rotate {
        counters.start_event(events[2], 0).unwrap();
        assert_eq!(counters.counter_of(events[2]), None);
    }
    (2..4).for_each(|kind| happen(mock, kind, PASSED));
    Case { counters, events, thread }
}

fn operate(
    processor: &Processor,
    operation: Operation,
    case: &mut Case<'_, '_>,
) -> Result<(), CounterError> {
    let Case { counters, events, thread } = case;
    let (_, _, third) = two(processor);
    let others = (processor.unit.counters() & CounterSet::GENERAL).iter().nth(3).unwrap().only();
    match operation {
        Operation::Start | Operation::StartWithMove => counters.start_event(events[2], 1),
        Operation::Stop => counters.stop_event(events[2], 1),
        Operation::Close => counters.close_event(events[2], 1).map(|_| ()),
        Operation::Read => counters.read_event(events[2], 1).map(|_| ()),
        Operation::Rotate => counters.rotate(1),
        Operation::SwitchOut => {
            thread[0] = ThreadEvent::Opened(events[2]);
            counters.switch_out(thread, 1, |o| panic!("{o:?}"))
        }
        Operation::SwitchIn => {
            let outcome = counters.switch_in(&processor.unit, thread, 1);
            if let ThreadEvent::Opened(event) = thread[0] {
                events[2] = event;
            }
            outcome
        }
        Operation::TakeMore => counters.take_more(&processor.unit, others).map(|_| ()),
        Operation::GiveUp => counters.give_up(third),
        Operation::OthersFixedControl => counters.set_others_fixed_control(0xF0, 0xB0),
        Operation::Reprogram => counters.reprogram(|o| panic!("{o:?}")).map(|_| ()),
        Operation::ShutDown => counters.shut_down(),
    }
}

fn applies(processor: &Processor, operation: Operation) -> bool {
    operation != Operation::OthersFixedControl || processor.fixed()
}

fn accesses_of(processor: &Processor, operation: Operation) -> u32 {
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let mut case = prepare(processor, operation, &mock, &memory, &table);
    mock.clear();
    operate(processor, operation, &mut case).unwrap();
    mock.accesses().total()
}

/// The counters that run are those that are said to run.
#[track_caller]
fn assert_truthful(case: &Case<'_, '_>, mock: &Mock<'_>, context: &str) {
    let said: CounterSet =
        case.events.iter().filter_map(|event| case.counters.counter_of(*event)).collect();
    assert_eq!(running(mock), said, "{context}");
}

#[test]
fn after_a_fault_that_passes_an_operation_was_done_or_can_be_done_again() {
    for processor in processors(Deviations::NONE) {
        for operation in OPERATIONS.into_iter().filter(|o| applies(&processor, *o)) {
            for access in 1..=accesses_of(&processor, operation) {
                transient(&processor, operation, access);
            }
        }
    }
}

fn transient(processor: &Processor, operation: Operation, access: u32) {
    let context = format!("{processor:?}, {operation:?}, access {access}");
    let (memory, table) = (Memory::new(), Table::new());
    let reports = RefCell::new(Vec::<EventOverflow>::new());
    let handler = |mock: &Mock<'_>| {
        let source = OpenedEvents::new(&processor.unit, &table);
        service(&source, mock, mock, &memory, |o| reports.borrow_mut().push(o)).unwrap();
    };
    let mock = processor.mock();
    mock.on_interrupt(&handler);
    let mut case = prepare(processor, operation, &mock, &memory, &table);
    mock.inject(Fault::At(access));
    let outcome = operate(processor, operation, &mut case);
    mock.inject(Fault::None);
    let context = format!("{context}: {outcome:?}");
    assert!(!matches!(outcome, Err(CounterError::Faulted(_))), "{context}");
    assert_truthful(&case, &mock, &context);
    if operation == Operation::ShutDown {
        case.counters.shut_down().unwrap();
        assert_eq!(running(&mock), CounterSet::NONE, "{context}");
        return;
    }
    if outcome.is_err() && operation != Operation::Rotate {
        // The others go on.
        assert!(case.counters.is_started(case.events[0]), "{context}");
        assert!(case.counters.is_started(case.events[1]), "{context}");
        if operation == Operation::SwitchIn {
            // It is opened here, stopped.
            case.counters.start_event(case.events[2], 1).unwrap();
        } else {
            operate(processor, operation, &mut case).unwrap();
        }
        assert_truthful(&case, &mock, &context);
    }
    // Nothing counted was lost, and nothing of a period.
    let rotated = operation == Operation::Rotate;
    if rotated {
        assert!(case.events.iter().all(|event| case.counters.is_started(*event)), "{context}");
        for now in 2..8 {
            if case.counters.counter_of(case.events[2]).is_none() {
                case.counters.rotate(now).unwrap();
            }
        }
    }
    for (place, kind) in [(0, 2), (1, 3), (2, 4)] {
        let event = case.events[place];
        if case.counters.counter_of(event).is_none() {
            continue;
        }
        assert_eq!(case.counters.read_event(event, 2).unwrap().value, PASSED, "{context}: {place}");
        let expected = u32::from(place != 1);
        happen(&mock, kind, PERIOD - PASSED - 1);
        assert_eq!(reports.take(), [], "{context}: {place} is early");
        happen(&mock, kind, 1);
        assert_eq!(reports.take().len() as u32, expected, "{context}: {place}");
        assert_eq!(case.counters.read_event(event, 2).unwrap().value, PERIOD, "{context}");
    }
    case.counters.shut_down().unwrap();
    assert_eq!(running(&mock), CounterSet::NONE, "{context}");
}

#[test]
fn after_a_fault_that_stays_no_counter_runs_without_an_owner() {
    for processor in processors(Deviations::NONE) {
        for operation in OPERATIONS.into_iter().filter(|o| applies(&processor, *o)) {
            for access in 1..=accesses_of(&processor, operation) {
                for ends_by_reprogramming in [false, true] {
                    persistent(&processor, operation, access, ends_by_reprogramming);
                }
            }
        }
    }
}

fn persistent(processor: &Processor, operation: Operation, access: u32, reprograms: bool) {
    let context = format!("{processor:?}, {operation:?}, from access {access}");
    let (memory, table) = (Memory::new(), Table::new());
    let reports = RefCell::new(Vec::<EventOverflow>::new());
    let handler = |mock: &Mock<'_>| {
        let source = OpenedEvents::new(&processor.unit, &table);
        let _ = service(&source, mock, mock, &memory, |o| reports.borrow_mut().push(o));
    };
    let mock = processor.mock();
    mock.on_interrupt(&handler);
    let mut case = prepare(processor, operation, &mock, &memory, &table);
    mock.inject(Fault::From(access));
    let outcome = operate(processor, operation, &mut case);
    let context = format!("{context}: {outcome:?}");
    // What is written last to a counter that is taken is of no consequence.
    let Some(outcome) = outcome.err() else {
        assert_eq!(operation, Operation::TakeMore, "{context}");
        return;
    };
    assert!(
        matches!(
            outcome,
            CounterError::Access(_) | CounterError::Faulted(_) | CounterError::Unresponsive
        ),
        "{context}"
    );
    if !matches!(outcome, CounterError::Faulted(_)) && operation != Operation::Rotate {
        assert_truthful(&case, &mock, &context);
        assert!(case.counters.is_started(case.events[0]), "{context}");
        assert!(case.counters.is_started(case.events[1]), "{context}");
    }
    // Whatever is said to run is on a counter that runs.
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
    (2..5).for_each(|kind| happen(&mock, kind, 2 * PERIOD));
    for report in reports.take() {
        assert!(case.counters.is_started(report.event), "{context}: {report:?}");
    }
    if reprograms && operation != Operation::ShutDown {
        let _ = case.counters.reprogram(|_| ()).unwrap();
        assert_truthful(&case, &mock, &context);
        // Each event can be stopped, started and closed.
        for event in case.events {
            if operation == Operation::Close && event == case.events[2] {
                continue;
            }
            if case.counters.is_started(event) {
                case.counters.stop_event(event, 3).unwrap();
            }
            if !matches!(case.thread[0], ThreadEvent::Switched(_)) || event != case.events[2] {
                case.counters.start_event(event, 3).unwrap();
                case.counters.close_event(event, 3).unwrap();
            }
        }
        assert_eq!(running(&mock), CounterSet::NONE, "{context}");
    }
    if !reprograms && operation != Operation::ShutDown {
        // Those whose counter faulted, too.
        for event in case.events {
            let closed = case.counters.close_event(event, 3).map(|_| ());
            let gone =
                matches!(operation, Operation::Close | Operation::SwitchOut | Operation::SwitchIn);
            let none = Err(CounterError::NoSuchEvent(event));
            assert!(closed.is_ok() || gone && closed == none, "{context}: {closed:?}");
        }
    }
    case.counters.shut_down().unwrap();
    assert_eq!(running(&mock), CounterSet::NONE, "{context}");
}
