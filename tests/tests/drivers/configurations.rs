//! The vendors' drivers on the software PMU, in strict mode: on every configuration that they claim,
//! with a fault and with an interrupt at each of their accesses.
//!
//! The model decides which bits an access may hold; it is written from the manuals' tables and shares nothing with
//! the drivers.

use super::support::*;
use core::cell::{Cell, RefCell};
use pmu_amd::Amd64;
use pmu_core::access::AccessFault;
use pmu_core::error::{CounterError, NoInterface};
use pmu_core::profile::{Availability, InterfaceError, KProfileSource, Overflow, Session};
use pmu_core::registers::CounterId;
use pmu_core::{CounterSet, EventSource};
use pmu_intel::Emon;
use pmu_tests::deviations::snapshot;
use pmu_tests::reports::service_sources;
use pmu_tests::software_pmu::{HIDDEN, intel_matrix};
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::mock::{Deviation, Deviations, MockMachine, MockMsr, PmiFault};
use pmu_virt::{FedEvents, VirtualPmu};

/// Asserts that a counter that cannot be released does not count, and is reported.
#[test]
fn counters_that_stay_frozen_are_refused() {
    let deviations = Deviations::of(&[Deviation::LeftFrozen, Deviation::NarrowAcknowledge]);
    for version in [4, 5] {
        let configuration = Configuration::Intel(IntelConfiguration::new(version, 4, 0));
        let emon = Emon::detect(&snapshot(configuration, deviations)).unwrap();
        let bench = x86(&emon, configuration, deviations);
        let (mock, memory) = (bench.mock(), Memory::new());
        let outcome = bench.initialize(&mock, &memory).map(|_| ());
        let refused = matches!(
            outcome,
            Err(InterfaceError::Counters(CounterError::Unchanged(AccessFault {
                register: 0x390,
                ..
            })))
        );
        assert!(refused, "{outcome:?}");
    }
}

#[test]
fn a_driver_starts_counts_interrupts_and_stops() {
    struct Lifecycle;
    impl Test for Lifecycle {
        fn run<I: EventSource>(&self, bench: &Bench<'_, I>) {
            let memory = Memory::new();
            let reported = RefCell::new(Vec::<Overflow>::new());
            let handler = |mock: &Mock<'_>| {
                let push = |overflow| reported.borrow_mut().push(overflow);
                service_sources(&bench.interface, mock, &memory, push).unwrap();
            };
            let mock = bench.mock();
            mock.on_interrupt(&handler);
            let [before, _] = mock.control_and_status();
            let mut session = bench.initialize(&mock, &memory).unwrap();
            let usable = session.counters().usable.bits();
            let source = bench.sources[0];
            assert_eq!(session.query(source).availability, Availability::Verified);
            assert_eq!(mock.running(), 0);

            session.start(source).unwrap();
            assert_truthful(bench, &session, &mock, "started");
            bench.advance(&mock, 0, INTERVAL - 1);
            assert_eq!(session.read(source), Ok(INTERVAL - 1));
            assert!(reported.borrow().is_empty());
            bench.advance(&mock, 0, 1);
            (0..3).for_each(|_| bench.advance(&mock, 0, INTERVAL));
            assert_eq!(session.read(source), Ok(0));
            let overflow =
                Overflow { source, events: INTERVAL, counter: CounterId::general(0).unwrap() };
            assert_eq!(*reported.borrow(), [overflow; 4]);
            // Beyond one for each overflow, some are raised by unmasking.
            let interrupts = mock.interrupts();
            let exact = !bench.deviates(Deviation::RaisesOnUnmask);
            assert!(if exact { interrupts == 4 } else { interrupts >= 4 }, "{interrupts}");
            assert_truthful(bench, &session, &mock, "interrupted");

            session.stop(source).unwrap();
            assert_truthful(bench, &session, &mock, "stopped");
            bench.advance(&mock, 0, 2 * INTERVAL);
            assert_eq!(mock.interrupts(), interrupts);
            session.shut_down().unwrap();
            assert_eq!(mock.running(), 0);
            let [after, status] = mock.control_and_status();
            assert_eq!(after, before);
            mock.assert_legal();
            // A driver of the legacy counters has no status.
            if bench.interface.unit().global().is_some() {
                assert_eq!(status & usable, 0);
            }
        }
    }
    everywhere(&Lifecycle);
}

/// Firmware, or a kernel before, may have left the bit set that makes the processor freeze its counters,
/// and the counters frozen (SDM vol. 3B, "Freezing LBR and Performance Counters on PMI").
#[test]
fn counters_that_freeze_unasked_go_on() {
    const IA32_DEBUGCTL: u32 = 0x1D9;
    const FREEZE_PERFMON_ON_PMI: u64 = 1 << 12;
    for intel in intel_matrix().filter(|intel| intel.version > 1) {
        let configuration = Configuration::Intel(intel);
        let emon = Emon::detect(&snapshot(configuration, Deviations::NONE)).unwrap();
        let bench = x86(&emon, configuration, Deviations::NONE);
        let (memory, reported) = (Memory::new(), RefCell::new(0));
        let handler = |mock: &Mock<'_>| {
            let count = |_| *reported.borrow_mut() += 1;
            service_sources(&emon, mock, &memory, count).unwrap();
        };
        let mock = bench.mock();
        mock.on_interrupt(&handler);
        if let Mock::X86(mock, _) = &mock {
            let _ = mock.with_pmu(|pmu| pmu.write(IA32_DEBUGCTL, FREEZE_PERFMON_ON_PMI));
        }
        let mut session = bench.session(&mock, &memory);
        session.start(bench.sources[0]).unwrap();
        for intervals in 1..=3 {
            bench.advance(&mock, 0, INTERVAL);
            assert_eq!(*reported.borrow(), intervals, "{intel:?}");
        }
        session.shut_down().unwrap();
        mock.assert_legal();
    }
}

#[test]
fn every_counter_takes_a_source_and_interrupts_for_its_own() {
    struct Full;
    impl Test for Full {
        fn run<I: EventSource>(&self, bench: &Bench<'_, I>) {
            let memory = Memory::new();
            let reported = RefCell::new(Vec::new());
            let handler = |mock: &Mock<'_>| {
                let push = |overflow: Overflow| reported.borrow_mut().push(overflow.source);
                service_sources(&bench.interface, mock, &memory, push).unwrap();
            };
            let mock = bench.mock();
            mock.on_interrupt(&handler);
            let mut session = bench.initialize(&mock, &memory).unwrap();
            let mut started = vec![];
            for row in bench.interface.sources() {
                let source = row.source();
                if source == KProfileSource::TIME || !session.query(source).is_supported() {
                    continue;
                }
                match session.start(source) {
                    Ok(()) => started.push(source),
                    Err(error) => {
                        assert_eq!(error, InterfaceError::NoFreeCounter(source));
                        break;
                    }
                }
            }
            assert!(started.len() <= bench.interface.unit().counters().len());
            assert_eq!(mock.running(), started.len());
            for (index, source) in bench.sources.into_iter().enumerate() {
                reported.borrow_mut().clear();
                bench.advance(&mock, index, 0x1_0000);
                let expected = session.is_running(source);
                assert_eq!(reported.borrow().contains(&source), expected);
            }
            session.shut_down().unwrap();
            assert_eq!(mock.running(), 0);
        }
    }
    everywhere(&Full);
}

#[test]
fn an_interrupt_at_any_access_of_an_operation_does_no_harm() {
    struct Interrupted;
    impl Test for Interrupted {
        fn run<I: EventSource>(&self, bench: &Bench<'_, I>) {
            for (name, before, operation) in operations::<I>() {
                for access in 1..=accesses_of(bench, before, operation) {
                    let memory = Memory::new();
                    let strangers = Cell::new(0);
                    let handler = |mock: &Mock<'_>| {
                        service_sources(bench.interface, mock, &memory, |overflow| {
                            let own = overflow.source == bench.sources[0];
                            strangers.set(strangers.get() + u32::from(!own));
                        })
                        .unwrap();
                    };
                    let mock = bench.mock();
                    mock.on_interrupt(&handler);
                    let mut session = bench.initialize(&mock, &memory).unwrap();
                    before(bench, &mut session).unwrap();
                    mock.interrupt_at(access);
                    operation(bench, &mut session).unwrap();
                    let context = format!("{name}, interrupted at access {access}");
                    assert_eq!((mock.interrupts(), strangers.get()), (1, 0), "{context}");
                    assert_truthful(bench, &session, &mock, &context);
                    if name == "start" || name == "read" {
                        bench.advance(&mock, 0, INTERVAL);
                        assert_eq!(mock.interrupts(), 2, "{context}");
                    }
                    session.shut_down().unwrap();
                }
            }
        }
    }
    everywhere(&Interrupted);
}

#[test]
fn a_late_interrupt_is_serviced_and_a_lost_one_leaves_the_source_running() {
    struct Delivery;
    impl Test for Delivery {
        fn run<I: EventSource>(&self, bench: &Bench<'_, I>) {
            let memory = Memory::new();
            let overflows = Cell::new(0);
            let handler = |mock: &Mock<'_>| {
                let count = |_| overflows.set(overflows.get() + 1);
                service_sources(&bench.interface, mock, &memory, count).unwrap();
            };
            let mock = bench.mock();
            mock.on_interrupt(&handler);
            let mut session = bench.initialize(&mock, &memory).unwrap();
            session.start(bench.sources[0]).unwrap();
            mock.inject_pmi(PmiFault::Late(2));
            bench.advance(&mock, 0, INTERVAL);
            assert_eq!((mock.interrupts(), overflows.get()), (0, 0));
            // Two accesses pass, the interrupt comes before the third.
            session.read(bench.sources[0]).unwrap();
            assert_eq!(mock.interrupts(), 0);
            session.read(bench.sources[0]).unwrap();
            assert_eq!((mock.interrupts(), overflows.get()), (1, 1));

            mock.inject_pmi(PmiFault::Lost);
            bench.advance(&mock, 0, INTERVAL);
            assert_eq!(mock.interrupts(), 1);
            if !bench.deviates(Deviation::LeftFrozen) {
                assert_truthful(bench, &session, &mock, "lost");
            }
            session.stop(bench.sources[0]).unwrap();
            if bench.interface.unit().global().is_some() {
                let [_, status] = mock.control_and_status();
                assert_eq!(status & session.counters().usable.bits(), 0, "no stale status");
            }
        }
    }
    everywhere(&Delivery);
}

#[test]
fn a_hidden_pmu_is_not_detected_or_found_out() {
    let intel = Emon::detect(&snapshot(HIDDEN[0], Deviations::NONE)).map(|_| ());
    assert_eq!(intel, Err(NoInterface::NoPerformanceMonitoring));
    // AMD's legacy counters are declared by no bit; the driver finds them dead.
    let hidden = snapshot(HIDDEN[1], Deviations::NONE);
    let amd64 = Amd64::detect(&hidden).unwrap();
    let mock = MockMsr::<64>::new(VirtualPmu::new(HIDDEN[1], FedEvents::NONE).unwrap());
    let memory = Memory::new();
    let outcome = Session::take(&amd64, &hidden, CounterSet::GENERAL, &mock, &memory).map(|_| ());
    assert_eq!(outcome, Err(InterfaceError::Counters(CounterError::Unresponsive)));
}

#[test]
fn each_processor_of_a_machine_has_its_own_counters() {
    struct Machine;
    impl Test for Machine {
        fn run<I: EventSource>(&self, bench: &Bench<'_, I>) {
            // On Arm: see `processors_do_not_share_registers`.
            let [Some((first, _)), Some((second, _))] = [bench.x86_mock(), bench.x86_mock()] else {
                return;
            };
            let machine = MockMachine::new([first, second]);
            let memory = [Memory::new(), Memory::new()];
            let processors = [0, 1].map(|n| machine.processor(n).unwrap());
            let mut sessions = [0, 1].map(|n| {
                machine.run_on(n);
                let (platform, memory) = (processors[n], &memory[n]);
                Session::take(
                    &bench.interface,
                    &bench.processor,
                    CounterSet::GENERAL,
                    (&machine, platform),
                    memory,
                )
                .unwrap()
            });
            sessions[1].start(bench.sources[0]).unwrap();
            let running = |mock: &MockMsr<'_, 64>| {
                mock.with_pmu(|pmu| pmu.running().map(|event| Key::X86(event.key)).next())
            };
            assert_eq!(processors.map(running), [None, Some(bench.keys[0])]);
            machine.run_on(0);
            sessions[0].start(bench.sources[1]).unwrap();
            assert_eq!(processors.map(running), [bench.keys[1], bench.keys[0]].map(Some));
            machine.run_on(2);
            let gone = sessions[0].read(bench.sources[1]);
            assert!(matches!(gone, Err(InterfaceError::Counters(CounterError::Unchanged(_)))));
        }
    }
    everywhere(&Machine);
}
