//! Stops and starts that race with a sample, late interrupts, and faults.

use core::cell::Cell;

use pmu_amd::ibs::IbsKind;
use pmu_core::{CounterError, CounterSet, EventId, MsrOperation};
use pmu_virt::mock::{Deviation, Deviations, Fault, PmiFault};

use crate::support::*;

/// Operations of a task, in which a sample comes at each access.
type Operation = fn(&Kernel, &mut Session<'_>, EventId) -> Result<(), CounterError>;

fn stop(_: &Kernel, session: &mut Session<'_>, event: EventId) -> Result<(), CounterError> {
    session.stop_event(event, 0)
}

fn restart(_: &Kernel, session: &mut Session<'_>, event: EventId) -> Result<(), CounterError> {
    session.stop_event(event, 0)?;
    session.start_event(event, 0)
}

fn window(kernel: &Kernel, session: &mut Session<'_>, _: EventId) -> Result<(), CounterError> {
    let window = session.lend(0, |sample| kernel.note(&sample))?;
    Ok(window.end(0)?)
}

fn suspend(kernel: &Kernel, session: &mut Session<'_>, _: EventId) -> Result<(), CounterError> {
    session.suspend(0, |sample| kernel.note(&sample))?;
    session.resume(0, |sample| kernel.note(&sample)).map(drop)
}

fn reprogram(kernel: &Kernel, session: &mut Session<'_>, _: EventId) -> Result<(), CounterError> {
    session.reprogram(|sample| kernel.note(&sample)).map(drop)
}

/// Returns whether this access of a stop takes away the valid bit of a sample that came just before it.
///
/// Without a second control register the enable bit shares its register with the valid bit. The sample is then not
/// reported: nothing tells it from one that never was. In the old model it was reported by its interrupt; but so was,
/// in its place, the sample of before, wherever the interrupt was another owner's.
fn takes_the_trace(processor: &Processor, mock: &Mock<'_>, kind: IbsKind, access: usize) -> bool {
    let trace = mock.trace();
    assert_eq!(trace.dropped(), 0, "the trace is long enough");
    let record = trace.records().nth(access - 1).expect("the access");
    !processor.unit(kind).capabilities().control2()
        && (record.operation, record.register) == (MsrOperation::Write, control(kind).0)
}

/// Lets a sample come before each access of an operation in turn. `late`: its interrupt comes late.
fn race(operation: Operation, late: Option<PmiFault>, deviations: Deviations, restarts: bool) {
    let is_late = late.is_some() || deviations.contains(Deviation::LateIbs);
    for (processor, kind) in units() {
        let processor = Processor { deviations, ..processor };
        for access in 1.. {
            let what = format!("{}, {kind:?}, {late:?} before {access}", processor.name);
            sampler!(processor, kind => mock, kernel, session);
            let event = kernel.start(&mut session, &processor.event(kind)).unwrap();
            mock.clear();
            let (left, fed) = (Cell::new(access), Cell::new(false));
            let before = |mock: &Mock<'_>| {
                left.set(left.get() - 1);
                if left.get() == 0 {
                    mock.inject_pmi(late.unwrap_or_default());
                    fed.set(kernel.run(mock, 2 * PERIOD));
                    mock.inject_pmi(PmiFault::None);
                }
            };
            mock.on_access(&before);
            operation(&kernel, &mut session, event).unwrap();
            let done = left.get() > 0;
            left.set(i32::MAX);
            // Interrupts that have not come yet come now.
            mock.deliver_sample();
            if !restarts {
                assert!(!kernel.run(&mock, 2 * PERIOD), "{what}: stopped");
            }
            assert_eq!(is_enabled(&mock), restarts, "{what}");
            assert!(!is_valid(&mock, kind), "{what}: a sample is left");
            let sampled = kernel.sampled().len() as u32;
            assert_eq!(sampled, fed.get().into(), "{what}");
            if is_late && fed.get() && takes_the_trace(&processor, &mock, kind, access as usize) {
                assert_eq!(kernel.reported(), [], "{what}: without a trace");
                kernel.sampled[kind as usize].borrow_mut().clear();
            }
            kernel.all_reported(&what);
            assert_eq!(kernel.unclaimed.get(), 0, "{what}");
            assert_eq!(kernel.claimed.get(), mock.interrupts(), "{what}");
            if !restarts {
                session.start_event(event, 0).unwrap();
            }
            // What is left of the period is no longer than the period.
            assert!(kernel.run(&mock, PERIOD + 15), "{what}: samples on");
            mock.deliver_sample();
            if !is_late || late.is_some() {
                kernel.all_reported(&what);
            }
            session.stop_event(event, 0).unwrap();
            kernel.all_reported(&what);
            mock.on_access(&nothing);
            session.shut_down().unwrap();
            assert!(!is_enabled(&mock), "{what}");
            if done {
                break;
            }
        }
    }
}

fn nothing(_: &Mock<'_>) {}

#[test]
fn a_stop_loses_no_sample_and_a_sample_undoes_no_stop() {
    race(stop, None, Deviations::NONE, false);
}

#[test]
fn an_interrupt_that_comes_after_the_stop_is_claimed_and_its_sample_reported() {
    race(stop, None, Deviations::of(&[Deviation::LateIbs]), false);
    for accesses in 0..4 {
        race(stop, Some(PmiFault::Late(accesses)), Deviations::NONE, false);
    }
}

#[test]
fn a_restart_loses_no_sample_and_samples_on() {
    race(restart, None, Deviations::NONE, true);
    race(restart, None, Deviations::of(&[Deviation::LateIbs]), true);
    for accesses in 0..6 {
        race(restart, Some(PmiFault::Late(accesses)), Deviations::NONE, true);
    }
}

/// A sample at each access of what else takes the unit from its event and brings it back.
#[test]
fn a_window_a_suspend_and_a_reprogramming_lose_no_sample_that_comes_meanwhile() {
    for operation in [window as Operation, suspend, reprogram] {
        race(operation, None, Deviations::NONE, true);
    }
}
