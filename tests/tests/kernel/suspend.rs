//! Processors that are suspended, with all that runs on them.

use core::sync::atomic::{AtomicU32, Ordering};

use pmu::core::frame::ProcessorNumber;
use pmu::core::profile::{InterfaceError, KProfileSource};
use pmu::core::thread::{SavedEvent, ThreadEvent};
use pmu::core::{Event, EventCount, EventStatus, GenericEvent};
use pmu::{PmuError, PmuSample};
use pmu_kprofile::ProfileError;
use pmu_tests::opened::{processors, running};
use pmu_virt::mock::{Deviations, Fault};

use crate::world::{Happens, Machine, TestPmu, World, machines, sampling};

const PERIOD: u64 = 10_007;

fn cycles() -> Event {
    Event::generic(GenericEvent::Cycles).every(PERIOD)
}

/// Runs a test on a machine of each configuration, whose processors are up, with and without a loss of the registers.
fn on_each(test: impl Fn(&'static Machine, &'static TestPmu, &dyn Fn())) {
    for processors in machines() {
        for loses in [true, false] {
            let (machine, pmu) = Machine::of(processors);
            machine.up();
            test(machine, pmu, &|| {
                if loses {
                    machine.mocks[0].lose_registers();
                }
            });
            machine.down();
        }
    }
}

fn hits(buffer: &[AtomicU32]) -> u32 {
    buffer.iter().map(|hits| hits.load(Ordering::Relaxed)).sum()
}

/// Returns how often the watchdog's event overflowed, and whether it ever found the processor stuck.
fn watchdogs(machine: &Machine) -> (usize, bool) {
    let interrupted = machine.interrupted.take();
    (interrupted.len(), interrupted.iter().any(|(_, of)| of.is_stuck))
}

/// Counted and sampled events, of the processor and of a thread, beside a profile and a watchdog.
#[test]
fn a_suspended_processor_continues_every_event_where_it_was() {
    on_each(|machine, pmu, lose| {
        let happen = |count| machine.happen(0, Happens::Instructions, count);
        let buffer: [AtomicU32; 16] = Default::default();
        let instructions = Event::generic(GenericEvent::Instructions);
        pmu.profile(cycles(), 0..64, &buffer, || {
            let opened = pmu.with(|session, unit| {
                let counters = session.counters_mut();
                let event = SavedEvent::new(unit, &instructions)?.to_be_enabled(true);
                let mut thread = [ThreadEvent::SwitchedOut(event)];
                counters.switch_in(unit, &mut thread, 0)?;
                let sampled = instructions.every(PERIOD).with_total().tagged(7);
                let sampled = counters.open(unit, &[sampled])?;
                counters.enable(sampled, 0)?;
                Ok::<_, PmuError>((thread, sampled))
            });
            let (mut thread, sampled) = opened.unwrap().unwrap();
            happen(PERIOD - 1);
            machine.happen(0, Happens::Cycles, 3 * PERIOD - 1);
            assert_eq!(hits(&buffer), 2);
            for round in 0..3 {
                sampling(|sample| panic!("{sample:?}"), || pmu.processor_suspended()).unwrap();
                assert!(running(&machine.mocks[0]).is_empty());
                lose();
                happen(100); // Not counted.
                pmu.processor_resumed().unwrap();
                assert_eq!(machine.overflows.take().len(), 0, "{round}");
            }
            happen(1);
            let [(0, overflow)] = machine.overflows.take()[..] else { panic!("no overflow") };
            assert_eq!((overflow.tag, overflow.period), (7, PERIOD));
            machine.happen(0, Happens::Cycles, 1);
            assert_eq!(hits(&buffer), 3, "{:?}", machine.configuration);
            happen(5);
            pmu.with(|session, _| {
                let counters = session.counters_mut();
                counters.switch_out(&mut thread, 0, |_| ()).unwrap();
                let ThreadEvent::SwitchedOut(saved) = thread[0] else { panic!("{thread:?}") };
                let EventCount { value, .. } = counters.close(sampled, 0).unwrap();
                assert_eq!([saved.count().value, value], [PERIOD + 5; 2]);
            })
            .unwrap();
        })
        .unwrap();
    });
}

/// The last period before the suspend is nearly over, and the tick comes only after the rest of it.
#[test]
fn a_processor_that_resumes_is_not_stuck() {
    on_each(|machine, pmu, lose| {
        pmu.watch(PERIOD, 10).unwrap();
        pmu.touch();
        machine.happen(0, Happens::Cycles, 10 * PERIOD);
        machine.happen(0, Happens::Cycles, 10 * PERIOD - 1);
        assert_eq!(watchdogs(machine), (1, false));
        pmu.processor_suspended().unwrap();
        lose();
        pmu.processor_resumed().unwrap();
        machine.interrupted.take();
        machine.happen(0, Happens::Cycles, 1);
        assert_eq!(watchdogs(machine), (1, false), "{:?}", machine.configuration);
        machine.happen(0, Happens::Cycles, 10 * PERIOD);
        assert_eq!(watchdogs(machine), (1, true));
    });
}

#[test]
fn an_overflow_that_is_pending_at_a_suspend_is_reported_once() {
    on_each(|machine, pmu, lose| {
        let sampled = Event::generic(GenericEvent::Instructions).every(PERIOD).tagged(7);
        let id = pmu.with(|session, unit| {
            let counters = session.counters_mut();
            let id = counters.open(unit, &[sampled])?;
            counters.enable(id, 0).map(|()| id)
        });
        let id = id.unwrap().unwrap();
        machine.pass(0, Happens::Instructions, PERIOD + 3);
        let mut reported = vec![];
        let note = |sample: &PmuSample<'_, World>| reported.push((sample.event, sample.tag));
        sampling(note, || pmu.processor_suspended()).unwrap();
        machine.mocks[0].deliver();
        lose();
        pmu.processor_resumed().unwrap();
        assert_eq!((reported, machine.overflows.take().len()), (vec![(id, 7)], 0));
        machine.happen(0, Happens::Instructions, PERIOD);
        assert_eq!(machine.overflows.take().len(), 1, "{:?}", machine.configuration);
    });
}

#[test]
fn a_suspended_processor_refuses_operations_and_serves_requests_as_it_resumes() {
    on_each(|machine, pmu, lose| {
        let buffer: [AtomicU32; 16] = Default::default();
        let processor = ProcessorNumber::from_index(0);
        let no_answer =
            ProfileError::Hardware { processor, error: InterfaceError::NoAnswer(processor) };
        let source = KProfileSource::TOTAL_ISSUES;
        let profile =
            |work: &dyn Fn()| machine.on(1, || pmu.profile(source, 0..64, &buffer, work)).map(drop);
        // The profile ends while the processor is suspended: its source stops as the processor resumes.
        let stopped = profile(&|| {
            machine.on(0, || pmu.processor_suspended()).unwrap();
        });
        assert_eq!(stopped, Err(PmuError::Profile(no_answer)));
        let suspended = PmuError::Suspended;
        assert_eq!(pmu.processor_suspended(), Err(suspended));
        assert_eq!(pmu.processor_up(&machine.snapshot()), Err(PmuError::IsUp));
        assert_eq!(pmu.count(&[cycles()], || unreachable!()), Err(suspended));
        assert_eq!(pmu.watch(PERIOD, 10), Err(suspended));
        assert_eq!(pmu.with(|_, _| ()), Err(suspended));
        lose();
        pmu.processor_resumed().unwrap();
        assert!(running(&machine.mocks[0]).is_empty(), "{:?}", machine.configuration);
        // One that begins meanwhile does not start, and leaves nothing.
        pmu.processor_suspended().unwrap();
        assert_eq!(profile(&|| unreachable!()), Err(PmuError::Profile(no_answer)));
        lose();
        pmu.processor_resumed().unwrap();
        assert!(running(&machine.mocks[0]).is_empty(), "{:?}", machine.configuration);
        // One that goes down instead, and comes back.
        pmu.processor_suspended().unwrap();
        lose();
        pmu.processor_down().unwrap();
        pmu.processor_up(&machine.snapshot()).unwrap();
        let events = [Event::generic(GenericEvent::Cycles)];
        let counts = pmu.count(&events, || machine.happen(0, Happens::Cycles, 9)).unwrap();
        assert_eq!(counts[0].value, 9);
    });
}

/// A fault at each access of a suspend and of a resume: the error is told, and a second call brings back everything.
#[test]
fn a_resume_that_failed_is_repaired_by_the_next_one() {
    let mut failed = [0; 2];
    for processor in processors(Deviations::NONE) {
        for (at, in_resume) in (1..40).flat_map(|at| [(at, false), (at, true)]) {
            let (machine, pmu) = Machine::new(processor.configuration);
            machine.up();
            pmu.watch(PERIOD, 100).unwrap();
            let own = pmu.with(|session, unit| {
                let counters = session.counters_mut();
                let event = Event::generic(GenericEvent::Instructions);
                let id = counters.open(unit, &[event])?;
                counters.enable(id, 0).map(|()| id)
            });
            let own = own.unwrap().unwrap();
            let buffer: [AtomicU32; 16] = Default::default();
            let context = format!("{:?}, {at}, {in_resume}", machine.configuration);
            let mock = &machine.mocks[0];
            pmu.profile(cycles(), 0..64, &buffer, || {
                machine.happen(0, Happens::Instructions, 1_000);
                let fault = |of_resume| {
                    let is_here = in_resume == of_resume;
                    mock.inject(if is_here { Fault::From(at) } else { Fault::None });
                };
                fault(false);
                let suspended =
                    sampling(|sample| panic!("{sample:?}"), || pmu.processor_suspended());
                mock.inject(Fault::None);
                failed[0] += u32::from(suspended.is_err());
                mock.lose_registers();
                fault(true);
                let resumed = pmu.processor_resumed();
                mock.inject(Fault::None);
                failed[1] += u32::from(resumed.is_err());
                for error in [suspended.err(), resumed.err()].into_iter().flatten() {
                    assert!(
                        matches!(
                            error,
                            PmuError::Interface(_) | PmuError::Counters(_) | PmuError::Profile(_)
                        ),
                        "{context}: {error:?}"
                    );
                }
                if resumed.is_err() {
                    pmu.processor_resumed().unwrap_or_else(|error| panic!("{context}: {error:?}"));
                }
                machine.interrupted.take();
                let before = hits(&buffer);
                machine.happen(0, Happens::Cycles, 200 * PERIOD);
                assert_eq!(hits(&buffer) - before, 200, "{context}");
                let stuck = machine.interrupted.take().iter().filter(|(_, of)| of.is_stuck).count();
                assert_eq!(stuck, 1, "{context}: the first period is given");
                machine.happen(0, Happens::Instructions, 7);
                pmu.with(|session, _| {
                    let counters = session.counters_mut();
                    let status = counters.event_status(own);
                    assert!(matches!(status, Ok(EventStatus::Active(_))), "{context}: {status:?}");
                    let count = counters.read(own, 0).unwrap().value;
                    let kept = suspended.is_ok() && resumed.is_ok();
                    let may_be = if kept { 1_007..1_008 } else { 7..1_008 };
                    assert!(may_be.contains(&count), "{context}: {count}");
                })
                .unwrap();
            })
            .unwrap();
            machine.down();
        }
    }
    assert!(failed.iter().all(|failed| *failed > 20), "{failed:?}");
}

/// A profile whose source cannot start on a processor that comes up: `processor_resumed` starts it.
#[test]
fn a_processor_that_came_up_without_its_profiles_resumes_them() {
    for processor in processors(Deviations::NONE) {
        let mut failed = 0;
        for at in 1..160 {
            let (machine, pmu) = Machine::new(processor.configuration);
            machine.up();
            let buffer: [AtomicU32; 16] = Default::default();
            let context = format!("{:?}, {at}", machine.configuration);
            let profiles = || {
                pmu.processor_down().unwrap();
                machine.mocks[0].inject(Fault::From(at));
                let up = pmu.processor_up(&machine.snapshot());
                machine.mocks[0].inject(Fault::None);
                match up {
                    Err(PmuError::Profile(_)) => {
                        assert_eq!(pmu.processor_up(&machine.snapshot()), Err(PmuError::IsUp));
                        let counters = pmu.with(|session, _| session.counters()).unwrap();
                        if counters.unresponsive.is_empty() && !counters.usable.is_empty() {
                            failed += 1;
                            pmu.processor_resumed().unwrap();
                        } else {
                            pmu.processor_down().unwrap();
                            pmu.processor_up(&machine.snapshot()).unwrap();
                        }
                    }
                    // Not up: from the beginning.
                    Err(_) => drop(pmu.processor_up(&machine.snapshot()).unwrap()),
                    Ok(_) => {}
                }
                assert_eq!(pmu.processor_up(&machine.snapshot()), Err(PmuError::IsUp), "{context}");
                machine.happen(0, Happens::Cycles, 3 * PERIOD);
                machine.happen(0, Happens::Instructions, 3 * 0x1_0000);
                assert_eq!(hits(&buffer), 6, "{context}");
            };
            pmu.profile(cycles(), 0..64, &buffer, || {
                pmu.profile(KProfileSource::TOTAL_ISSUES, 0..64, &buffer, profiles).unwrap();
            })
            .unwrap();
            machine.down();
            assert_eq!(pmu.processor_down(), Err(PmuError::NotUp));
        }
        assert!(failed > 3, "{:?}: {failed}", processor.configuration);
    }
}

/// Called in a handler, which cannot change lists: the processor is down, and the same call again, in a task, brings
/// the lists up to date.
#[test]
fn a_processor_that_went_down_without_the_lists_does_so_again() {
    on_each(|machine, pmu, _| {
        let buffer: [AtomicU32; 16] = Default::default();
        let source = KProfileSource::TOTAL_ISSUES;
        pmu.profile(source, 0..64, &buffer, || {
            machine.is_in_interrupt.set(true);
            let down = pmu.processor_down();
            machine.is_in_interrupt.set(false);
            assert_eq!(down, Err(PmuError::Profile(ProfileError::WrongContext)));
            pmu.processor_down().unwrap();
            assert_eq!(pmu.processor_down(), Err(PmuError::NotUp));
            pmu.processor_up(&machine.snapshot()).unwrap();
        })
        .unwrap();
    });
}
