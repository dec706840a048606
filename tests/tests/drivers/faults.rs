//! The vendors' drivers on the software PMU, in strict mode, with a fault at each of their accesses: on every
//! configuration that they detect. `configurations.rs` has the drivers without faults.

use super::support::*;
use core::cell::Cell;
use pmu_core::EventSource;
use pmu_core::access::AccessFault;
use pmu_core::error::CounterError;
use pmu_core::profile::{InterfaceError, Session};
use pmu_core::thread::{SavedCounter, SavedCounters};
use pmu_tests::reports::service_sources;
use pmu_virt::mock::{Deviation, Fault};

/// Returns the registers of the accesses that faulted.
fn faulted(mock: &Mock<'_>) -> Vec<u32> {
    mock.records().iter().filter(|r| r.outcome.is_err()).map(|r| r.register).collect()
}

#[test]
fn after_a_fault_that_passes_a_source_is_started_or_stopped_and_never_half() {
    struct Transient;
    impl Test for Transient {
        fn run<I: EventSource>(&self, bench: &Bench<'_, I>) {
            for (name, before, operation) in operations::<I>() {
                for access in 1..=accesses_of(bench, before, operation) {
                    let (mock, memory) = (bench.mock(), Memory::new());
                    let mut session = bench.session(&mock, &memory);
                    before(bench, &mut session).unwrap();
                    mock.clear();
                    mock.inject(Fault::At(access));
                    let outcome = operation(bench, &mut session);
                    let context = format!("{name}, access {access}: {outcome:?}");
                    assert!(
                        !matches!(
                            outcome,
                            Err(InterfaceError::Counters(CounterError::StateUnknown(_)))
                        ),
                        "{context}"
                    );
                    if let Err(InterfaceError::Counters(CounterError::Unchanged(AccessFault {
                        register,
                        ..
                    }))) = outcome
                    {
                        assert_eq!(faulted(&mock), [register], "{context}");
                    }
                    mock.inject(Fault::None);
                    assert_truthful(bench, &session, &mock, &context);
                    // And it works on.
                    if !session.is_running(bench.sources[0]) && name != "shut down" {
                        session.start(bench.sources[0]).unwrap();
                        assert_truthful(bench, &session, &mock, &context);
                    }
                    session.shut_down().unwrap();
                    assert_eq!(mock.running(), 0, "{context}");
                }
            }
        }
    }
    everywhere(&Transient);
}

#[test]
fn after_a_fault_that_stays_the_register_is_named_and_nothing_false_is_said() {
    struct Persistent;
    impl Test for Persistent {
        fn run<I: EventSource>(&self, bench: &Bench<'_, I>) {
            for (name, before, operation) in operations::<I>() {
                for access in 1..=accesses_of(bench, before, operation) {
                    let (mock, memory) = (bench.mock(), Memory::new());
                    let mut session = bench.session(&mock, &memory);
                    before(bench, &mut session).unwrap();
                    mock.clear();
                    mock.inject(Fault::From(access));
                    let outcome = operation(bench, &mut session);
                    let context = format!("{name}, from access {access}: {outcome:?}");
                    match outcome {
                        Ok(()) => panic!("{context}: the fault went unnoticed"),
                        Err(InterfaceError::Counters(CounterError::Unchanged(fault))) => {
                            // Nothing was changed.
                            assert!(faulted(&mock).contains(&fault.register), "{context}");
                            let was_running = name != "start";
                            assert_eq!(session.is_running(bench.sources[0]), was_running);
                            assert_truthful(bench, &session, &mock, &context);
                        }
                        Err(InterfaceError::Counters(CounterError::StateUnknown(fault))) => {
                            assert!(faulted(&mock).contains(&fault.register), "{context}");
                            // It counts for no source, and is not used again.
                            assert!(!session.is_running(bench.sources[0]), "{context}");
                            let not_started = InterfaceError::NotStarted(bench.sources[0]);
                            assert_eq!(session.read(bench.sources[0]), Err(not_started));
                            assert_eq!(session.stop(bench.sources[0]), Err(not_started));
                        }
                        Err(other) => panic!("{context}: {other:?}"),
                    }
                    // Once the registers answer again, everything can be stopped.
                    mock.inject(Fault::None);
                    session.shut_down().unwrap();
                    assert_eq!(mock.running(), 0, "{context}");
                }
            }
        }
    }
    everywhere(&Persistent);
}

/// A missing register of a counter costs that counter; a missing register of all counters is named.
#[test]
fn a_missing_register_is_named_at_initialization() {
    struct Missing;
    impl Test for Missing {
        fn run<I: EventSource>(&self, bench: &Bench<'_, I>) {
            let (used, usable) = {
                let (mock, memory) = (bench.mock(), Memory::new());
                let usable = bench.session(&mock, &memory).counters().usable;
                let mut used: Vec<u32> = mock
                    .records()
                    .iter()
                    .filter(|r| r.operation != pmu_core::access::AccessOperation::ReadCounter)
                    .map(|r| r.register)
                    .collect();
                used.sort_unstable();
                used.dedup();
                (used, usable)
            };
            let counters = bench.interface.unit().iter().map(|(number, counter)| {
                (number, [counter.control().register().get(), counter.value_register().get()])
            });
            let counters: Vec<_> = counters.collect();
            for register in used {
                let (mock, memory) = (bench.mock(), Memory::new());
                mock.inject(Fault::Register(register));
                let context =
                    format!("{register:#X}, {:?}, {}", bench.configuration, bench.deviations);
                let outcome = bench.initialize(&mock, &memory).map(|session| session.counters());
                let of_counter = counters.iter().find(|(_, own)| own.contains(&register));
                match (outcome, of_counter) {
                    (Ok(found), Some((number, _))) => {
                        assert_eq!(found.usable, usable.without(number.only()), "{context}");
                        assert!(
                            found.unresponsive.contains(*number) || !usable.contains(*number),
                            "{context}"
                        );
                    }
                    (
                        Err(InterfaceError::Counters(CounterError::Unresponsive)),
                        Some((number, _)),
                    ) => {
                        assert!(usable.without(number.only()).is_empty(), "{context}");
                    }
                    (Err(InterfaceError::Counters(CounterError::Unchanged(fault))), None) => {
                        assert_eq!(fault.register, register);
                    }
                    // Without these there are no full-width writes, and no PEBS to disable.
                    (Ok(found), None) => {
                        assert!(matches!(register, 0x1A0 | 0x345 | 0x3F1), "{context}");
                        assert_eq!(found.usable, usable, "{context}");
                    }
                    other => panic!("{context}: {other:?}"),
                }
                assert_eq!(mock.running(), 0);
            }
        }
    }
    // A counter that firmware left running and whose select is missing cannot be stopped.
    everywhere_but(Deviation::LeftRunning, &Missing);
}

#[test]
fn a_fault_at_any_access_of_initialization_leaves_no_counter_running() {
    struct Initialize;
    impl Test for Initialize {
        fn run<I: EventSource>(&self, bench: &Bench<'_, I>) {
            let (accesses, usable) = {
                let (mock, memory) = (bench.mock(), Memory::new());
                let usable = bench.session(&mock, &memory).counters().usable;
                (mock.accesses(), usable)
            };
            for access in 1..=accesses {
                for fault in [Fault::At(access), Fault::From(access)] {
                    let (mock, memory) = (bench.mock(), Memory::new());
                    mock.inject(fault);
                    let context =
                        format!("{fault:?}, {:?}, {}", bench.configuration, bench.deviations);
                    match (bench.initialize(&mock, &memory).map(|s| s.counters()), fault) {
                        // A transient fault is survived.
                        (Ok(found), Fault::At(_)) => assert_eq!(found.usable, usable, "{context}"),
                        (
                            Err(InterfaceError::Counters(CounterError::Unchanged(fault))),
                            Fault::From(_),
                        ) => {
                            assert!(faulted(&mock).contains(&fault.register), "{context}");
                        }
                        (
                            Err(InterfaceError::Counters(CounterError::Unresponsive)),
                            Fault::From(_),
                        ) => {}
                        // Once verified, a counter that cannot be written is still a counter.
                        (Ok(found), Fault::From(_)) => {
                            assert!(bench.interface.unit().global().is_none(), "{context}");
                            assert!(found.usable.without(usable).is_empty(), "{context}");
                        }
                        (other, _) => panic!("{context}: {other:?}"),
                    }
                    assert_eq!(mock.running(), 0);
                    // Once it has passed, initialization succeeds.
                    mock.inject(Fault::None);
                    let memory = Memory::new();
                    bench.session(&mock, &memory).shut_down().unwrap();
                }
            }
        }
    }
    everywhere_but(Deviation::LeftRunning, &Initialize);
}

/// Services one interrupt with a fault at each of its accesses; `then` gets the outcome, and the number of interrupts
/// of another interval.
fn service_with_faults<I: EventSource>(
    bench: &Bench<'_, I>,
    fault_at: fn(u32) -> Fault,
    then: impl Fn(&Mock<'_>, &Session<'_, &I, &Mock<'_>>, Result<(), AccessFault>, &str),
) {
    let accesses = Cell::new(0);
    for access in 0.. {
        let memory = Memory::new();
        let outcome = Cell::new(Ok(()));
        let fault = Cell::new(if access == 0 { Fault::None } else { fault_at(access) });
        let handler = |mock: &Mock<'_>| {
            if mock.interrupts() == 1 {
                mock.clear();
            }
            mock.inject(fault.take());
            let serviced = service_sources(&bench.interface, mock, &memory, |_| ());
            mock.inject(Fault::None);
            outcome.set(outcome.get().and(serviced.map(drop).map_err(|error| error.fault)));
            if access == 0 && mock.interrupts() == 1 {
                accesses.set(mock.accesses());
            }
        };
        let mock = bench.mock();
        mock.on_interrupt(&handler);
        let mut session = bench.initialize(&mock, &memory).unwrap();
        session.start(bench.sources[0]).unwrap();
        bench.advance(&mock, 0, INTERVAL);
        let context =
            format!("service, access {access}: {:?}, {}", outcome.get(), bench.deviations);
        assert!(mock.interrupts() >= 1, "{context}");
        then(&mock, &session, outcome.get(), &context);
        session.shut_down().unwrap();
        assert_eq!(mock.running(), 0, "{context}");
        if access == accesses.get() {
            break;
        }
    }
}

#[test]
fn a_fault_in_the_interrupt_path_is_reported_with_its_register() {
    struct Service;
    impl Test for Service {
        fn run<I: EventSource>(&self, bench: &Bench<'_, I>) {
            service_with_faults(bench, Fault::At, |mock, _, outcome, context| match outcome {
                Ok(()) => assert_eq!(faulted(mock).len(), usize::from(!context.contains(" 0:"))),
                Err(fault) => assert_eq!(faulted(mock), [fault.register], "{context}"),
            });
        }
    }
    everywhere(&Service);
}

#[test]
fn after_a_fault_that_passes_the_interrupt_path_goes_on() {
    struct GoesOn;
    impl Test for GoesOn {
        fn run<I: EventSource>(&self, bench: &Bench<'_, I>) {
            service_with_faults(bench, Fault::At, |mock, session, _, context| {
                assert_truthful(bench, session, mock, context);
                bench.advance(mock, 0, INTERVAL);
                assert_eq!(mock.interrupts(), 2, "{context}");
            });
        }
    }
    everywhere(&GoesOn);
}

/// A register that no longer answers is named. A source that is reported as running counts and interrupts; any other
/// does not.
#[test]
fn after_a_fault_that_stays_the_interrupt_path_says_nothing_false() {
    struct Truthful;
    impl Test for Truthful {
        fn run<I: EventSource>(&self, bench: &Bench<'_, I>) {
            service_with_faults(bench, Fault::From, |mock, session, outcome, context| {
                assert_eq!(outcome.is_err(), !context.contains(" 0:"), "{context}");
                if let Err(fault) = outcome {
                    assert!(faulted(mock).contains(&fault.register), "{context}");
                }
                let said = session.is_running(bench.sources[0]);
                let before = mock.interrupts();
                bench.advance(mock, 0, INTERVAL);
                let interrupted = mock.interrupts() - before;
                if said {
                    assert!(interrupted >= 1, "{context}");
                }
            });
        }
    }
    everywhere(&Truthful);
}

#[test]
fn a_counter_that_ignores_writes_is_left_out() {
    struct Ignored;
    impl Test for Ignored {
        fn run<I: EventSource>(&self, bench: &Bench<'_, I>) {
            let usable = {
                let (mock, memory) = (bench.mock(), Memory::new());
                bench.session(&mock, &memory).counters().usable
            };
            let counters = bench.interface.unit().iter();
            for (number, counter) in counters.filter(|(number, _)| usable.contains(*number)) {
                let (mock, memory) = (bench.mock(), Memory::new());
                mock.inject(Fault::Ignored(counter.value_register().get()));
                match bench.initialize(&mock, &memory).map(|session| session.counters()) {
                    Ok(found) => {
                        assert_eq!(found.usable, usable.without(number.only()));
                        assert!(found.unresponsive.contains(number));
                    }
                    Err(error) => {
                        assert_eq!(error, InterfaceError::Counters(CounterError::Unresponsive));
                        assert_eq!(usable, number.only(), "the only one");
                    }
                }
            }
        }
    }
    everywhere(&Ignored);
}

/// A session's operations beside starting and stopping, with a transient and with a permanent fault at each of their
/// accesses.
#[test]
fn a_fault_at_any_access_of_a_switch_or_of_freezing_leaves_nothing_half() {
    type Area = SavedCounters<[SavedCounter; 8]>;
    struct Switch;
    impl Test for Switch {
        fn run<I: EventSource>(&self, bench: &Bench<'_, I>) {
            for name in ["save", "restore", "restore after another", "freeze"] {
                for fault_at in [Fault::At as fn(u32) -> Fault, Fault::From] {
                    for access in 1.. {
                        let (mock, memory) = (bench.mock(), Memory::new());
                        let mut session = bench.session(&mock, &memory);
                        let (mut area, mut another) = (Area::new(), Area::new());
                        if name != "freeze" {
                            session.start(bench.sources[0]).unwrap();
                        }
                        if name.starts_with("restore") {
                            session.save(&mut area, |_| ()).unwrap();
                        }
                        if name == "restore after another" {
                            session.start(bench.sources[1]).unwrap();
                            session.save(&mut another, |_| ()).unwrap();
                        }
                        mock.clear();
                        mock.inject(fault_at(access));
                        let outcome = match name {
                            "save" => session.save(&mut area, |_| ()),
                            "freeze" => session.freeze_on_interrupt(),
                            _ => session.restore(&area),
                        };
                        let (made, failed) = (mock.accesses(), faulted(&mock));
                        mock.inject(Fault::None);
                        let context = format!("{name}, {:?}: {outcome:?}", fault_at(access));
                        if outcome == Err(InterfaceError::Counters(CounterError::FreezeUnsupported))
                        {
                            break;
                        }
                        if access > made {
                            assert_eq!(outcome, Ok(()), "{context}");
                            break;
                        }
                        match outcome {
                            // A transient fault is survived, or undone; a permanent one is reported.
                            Ok(()) => assert_eq!(fault_at(access), Fault::At(access), "{context}"),
                            Err(InterfaceError::Counters(CounterError::Unchanged(fault))) => {
                                assert!(failed.contains(&fault.register), "{context}");
                                assert_truthful(bench, &session, &mock, &context);
                            }
                            Err(InterfaceError::Counters(CounterError::StateUnknown(fault))) => {
                                assert!(failed.contains(&fault.register), "{context}");
                                assert_eq!(fault_at(access), Fault::From(access), "{context}");
                            }
                            Err(_) => panic!("{context}"),
                        }
                        session.shut_down().unwrap();
                        assert_eq!(mock.running(), 0, "{context}");
                    }
                }
            }
        }
    }
    everywhere(&Switch);
}
