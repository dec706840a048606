//! Windows and reprogramming with faults and interrupts at each access, beside a branch trace.

use core::cell::{Cell, RefCell};
use core::ptr;
use core::sync::atomic::AtomicU64;

use pmu_core::{Branch, CounterError, FacilityControl};
use pmu_intel::branch_trace::{BranchTrace, BranchTraceMemory, BranchTracer};
use pmu_intel::precise::{Precise, PreciseError, PreciseReport, PreciseThreshold, ThreadRecords};
use pmu_tests::opened::happened;
use pmu_virt::mock::Fault;
use pmu_virt::{FedBranch, FedBranchKind, Privilege};

use crate::branch_trace::Tracer;
use crate::support::*;

fn call() -> FedBranch {
    FedBranch::new(0x40_0000, 0x41_0000, FedBranchKind::RelativeCall, Privilege::User)
}

/// A disturbance of a window.
#[derive(Clone, Copy, Debug)]
enum Disturbance {
    Interrupt(u32),
    Fault(Fault),
}

fn window(session: &mut Session, facility: impl FacilityControl) -> Result<(), CounterError> {
    Ok(session.lend_with(0, facility, |_, _| ())?.end(0)?)
}

/// Records and a trace share the area, and are suspended together, in either order.
#[test]
fn a_disturbed_window_of_records_and_a_trace_loses_neither() {
    let format = |name| move |processor: &Processor| processor.name == name;
    for name in ["format 3", "format 4"] {
        for processor in processors().into_iter().filter(format(name)) {
            for trace_first in [false, true] {
                for access in 1.. {
                    let disturbances = [
                        Disturbance::Interrupt(access),
                        Disturbance::Fault(Fault::At(access)),
                        Disturbance::Fault(Fault::From(access)),
                    ];
                    let ran = disturbances.map(|by| processor.window(trace_first, by));
                    if ran.into_iter().all(|accesses| accesses < access) {
                        break;
                    }
                }
            }
        }
    }
}

impl Processor {
    /// Returns the number of accesses of a window of records and a trace.
    fn window(mut self, trace_first: bool, by: Disturbance) -> u32 {
        self.records.branch_trace = true;
        let trace: &'static BranchTraceMemory<[AtomicU64; 1024]> =
            Box::leak(Box::new(BranchTraceMemory::new()));
        let trace: &'static BranchTraceMemory = trace;
        let first = ptr::from_ref(trace).cast::<AtomicU64>();
        // SAFETY: one page behind the area begins the buffer of atomic words.
        let buffer = unsafe { core::slice::from_raw_parts(first.add(512), 1024) };
        let accesses = Cell::new(0);
        let branches: &'static RefCell<u32> = Box::leak(Box::default());
        self.run_beside(buffer, |kernel, mock| {
            let what = format!("{}, {}, {trace_first}, {by:?}", self.name, self.freezes);
            let (mut session, mut recorder) = kernel.take(mock);
            // SAFETY: the mock writes to the lent memory alone, which lasts.
            let tracer =
                unsafe { BranchTracer::take(&mock.snapshot(), mock, trace, Some(kernel.memory)) };
            let mut tracer: Tracer = tracer.unwrap();
            let count = |_: Branch| *branches.borrow_mut() += 1;
            let report = |report: &PreciseReport<'_>| kernel.report(report);
            mock.on_interrupt(Box::leak(Box::new(move |mock: &Mock<'static>| {
                let records = Precise::new(&kernel.unit, kernel.memory, report);
                let traced = BranchTrace::new(trace, Some(kernel.memory), count);
                kernel.handle_with(mock, (records, traced));
            })));
            recorder.set_threshold(PreciseThreshold::NearlyFull);
            recorder.start(&mut session, &instructions(), report).unwrap();
            tracer.start(true, false).unwrap();
            mock.advance(&mut happened(0, 2 * PERIOD));
            assert!(mock.trace_branch(&call()));
            let before = mock.accesses().total();
            match by {
                Disturbance::Interrupt(access) => mock.interrupt_at(access),
                Disturbance::Fault(fault) => mock.inject(fault),
            }
            let mut run = |session: &mut Session| {
                let (records, traced) = (recorder.lent(report), tracer.lent(count));
                match trace_first {
                    true => window(session, (traced, records)),
                    false => window(session, (records, traced)),
                }
            };
            let ended = run(&mut session);
            accesses.set(mock.accesses().total() - before);
            mock.inject(Fault::None);
            mock.interrupt_at(0);
            let mut traced_after = 0;
            if ended.is_err() {
                session.reprogram(|_| ()).unwrap();
                run(&mut session).ok();
                session.reprogram(|_| ()).unwrap();
                recorder.reprogram(&mut session, report).expect(&what);
                tracer.drain(count).unwrap();
                traced_after = u64::from(mock.trace_branch(&call()));
            } else {
                assert!(mock.trace_branch(&call()), "{what}");
            }
            mock.advance(&mut happened(0, 2 * PERIOD));
            tracer.shut_down(count).unwrap();
            recorder.shut_down(&mut session, report).unwrap();
            // Numbers that are missing are those of branches.
            let reported = kernel.reported.borrow();
            assert!(reported.is_sorted_by(|before, after| before < after), "{what}: {reported:x?}");
            let traced = u64::from(*branches.borrow());
            assert_eq!(reported.len() as u64 + traced, mock.written_records(), "{what}");
            assert_eq!(traced, if ended.is_ok() { 2 } else { 1 + traced_after }, "{what}");
            assert_eq!(kernel.memory.dropped(), Default::default(), "{what}");
            session.shut_down().unwrap();
            nothing_is_enabled(mock, &what);
        });
        accesses.get()
    }
}

/// The window is dropped, and the next one ends what it began.
#[test]
fn after_a_dropped_window_the_recorder_is_lent_until_the_next_window_ends() {
    for processor in processors() {
        processor.run(|kernel, mock| {
            let what = format!("{}, {}", processor.name, processor.freezes);
            let (mut session, mut recorder) = kernel.take(mock);
            let report = |report: &PreciseReport<'_>| kernel.report(report);
            recorder.set_threshold(PreciseThreshold::NearlyFull);
            recorder.start(&mut session, &instructions(), report).unwrap();
            mock.advance(&mut happened(0, 2 * PERIOD + PERIOD / 2));
            drop(session.lend_with(0, recorder.lent(report), |_, _| ()).unwrap());
            mock.advance(&mut happened(0, 3 * PERIOD));
            assert_eq!(recorder.drain(&mut session, report), Err(PreciseError::Lent), "{what}");
            let shut = recorder.shut_down(&mut session, report);
            assert_eq!(shut, Err(PreciseError::Lent), "{what}");
            window(&mut session, recorder.lent(report)).expect(&what);
            mock.advance(&mut happened(0, PERIOD / 2));
            kernel.ends(mock, session, recorder, 3, &what);
        });
    }
}

/// Registers that lost their contents, and those that did not.
#[test]
fn a_reprogramming_that_fails_at_any_access_can_be_repeated() {
    for processor in processors() {
        for loses in [false, true] {
            for access in 1.. {
                let mut done = false;
                processor.run(|kernel, mock| {
                    let what =
                        format!("{}, {}, {loses}, {access}", processor.name, processor.freezes);
                    let (mut session, mut recorder) = kernel.take(mock);
                    let report = |report: &PreciseReport<'_>| kernel.report(report);
                    recorder.set_threshold(PreciseThreshold::NearlyFull);
                    recorder.start(&mut session, &instructions(), report).unwrap();
                    mock.advance(&mut happened(0, 2 * PERIOD));
                    if loses {
                        recorder.drain(&mut session, report).unwrap();
                        mock.lose_registers();
                        mock.set_performance_entry(0x400);
                    }
                    session.reprogram(|_| ()).unwrap();
                    mock.inject(Fault::From(access));
                    let failed = recorder.reprogram(&mut session, report);
                    mock.inject(Fault::None);
                    done = failed.is_ok();
                    if !done {
                        recorder.reprogram(&mut session, report).expect(&what);
                    }
                    mock.advance(&mut happened(0, 2 * PERIOD));
                    kernel.ends(mock, session, recorder, 4, &what);
                });
                if done {
                    break;
                }
            }
        }
    }
}

/// Each thread's event has its own tag, and its own instructions.
#[test]
fn a_switch_that_fails_at_any_access_shows_no_thread_another_ones_record() {
    for processor in processors() {
        for access in 1.. {
            let mut done = false;
            processor.run(|kernel, mock| {
                let what = format!("{}, {}, {access}", processor.name, processor.freezes);
                let (mut session, mut recorder) = kernel.take(mock);
                let report = |report: &PreciseReport<'_>| kernel.report(report);
                let of = |tag| {
                    let event = pmu_tests::opened::raw(0).user_only().every(PERIOD).tagged(tag);
                    let precision = pmu_intel::precise::Precision::ConstantSkid;
                    ThreadRecords::new(pmu_intel::precise::PreciseEvent::new(event, precision))
                };
                let (mut first, mut second) = (of(1), of(2));
                recorder.set_threshold(PreciseThreshold::NearlyFull);
                recorder.switch_in(&mut session, &mut first, report).unwrap();
                mock.advance(&mut happened(0, 3 * PERIOD));
                mock.inject(Fault::From(access));
                let out = recorder.switch_out(&mut session, &mut first, report);
                let into = out.and_then(|()| recorder.switch_in(&mut session, &mut second, report));
                mock.inject(Fault::None);
                done = out.is_ok() && into.is_ok();
                // The scheduler tries again.
                recorder.switch_out(&mut session, &mut first, report).expect(&what);
                recorder.switch_in(&mut session, &mut second, report).expect(&what);
                assert_eq!(*kernel.tags.borrow(), [1; 3], "{what}");
                mock.advance(&mut happened(0, 2 * PERIOD));
                recorder.switch_out(&mut session, &mut second, report).unwrap();
                assert_eq!(*kernel.tags.borrow(), [1, 1, 1, 2, 2], "{what}");
                kernel.all_reported(mock, &what);
                assert_eq!(recorder.counters(), pmu_core::CounterSet::NONE, "{what}");
                recorder.shut_down(&mut session, report).unwrap();
                session.shut_down().unwrap();
                nothing_is_enabled(mock, &what);
            });
            if done {
                break;
            }
        }
    }
}

/// The trace uses the area of a recorder that itself has no area.
#[test]
fn after_a_trace_beside_architectural_records_no_area_is_left() {
    let mut processor = processors().into_iter().find(|p| p.name == "architectural").unwrap();
    processor.records.branch_trace = true;
    let trace: &'static BranchTraceMemory<[AtomicU64; 1024]> =
        Box::leak(Box::new(BranchTraceMemory::new()));
    let first = ptr::from_ref(trace).cast::<AtomicU64>();
    // SAFETY: one page behind the area begins the buffer of atomic words.
    let buffer = unsafe { core::slice::from_raw_parts(first.add(512), 1024) };
    processor.run_beside(buffer, |kernel, mock| {
        let (mut session, mut recorder) = kernel.take(mock);
        // SAFETY: the mock writes to the lent memory alone, which lasts.
        let tracer =
            unsafe { BranchTracer::take(&mock.snapshot(), mock, trace, Some(kernel.memory)) };
        let mut tracer: Tracer = tracer.unwrap();
        tracer.start(true, false).unwrap();
        assert!(mock.trace_branch(&call()));
        let mut seen = 0;
        tracer.shut_down(|_| seen += 1).unwrap();
        assert_eq!(seen, 1);
        recorder.shut_down(&mut session, |_| ()).unwrap();
        session.shut_down().unwrap();
        nothing_is_enabled(mock, "beside architectural records");
    });
}

#[test]
fn with_an_interrupt_at_each_access_a_reprogramming_reports_each_record_once() {
    for processor in processors() {
        for access in 1.. {
            let mut done = false;
            processor.run(|kernel, mock| {
                let what = format!("{}, {}, {access}", processor.name, processor.freezes);
                let (mut session, mut recorder) = kernel.take(mock);
                let report = |report: &PreciseReport<'_>| kernel.report(report);
                recorder.start(&mut session, &instructions(), report).unwrap();
                mock.advance(&mut happened(0, PERIOD));
                let before = mock.accesses().total();
                mock.interrupt_at(access);
                session.reprogram(|_| ()).unwrap();
                recorder.reprogram(&mut session, report).unwrap();
                done = mock.accesses().total() - before < access;
                mock.interrupt_at(0);
                mock.advance(&mut happened(0, PERIOD));
                recorder.shut_down(&mut session, report).unwrap();
                kernel.all_reported(mock, &what);
                assert_eq!(kernel.memory.dropped(), Default::default(), "{what}");
                session.shut_down().unwrap();
                nothing_is_enabled(mock, &what);
            });
            if done {
                break;
            }
        }
    }
}

#[test]
fn events_of_different_groups_are_switched_with_their_threads() {
    use pmu_intel::precise::SampleParts;
    for processor in processors() {
        processor.run(|kernel, mock| {
            let what = format!("{}, {}", processor.name, processor.freezes);
            let (mut session, mut recorder) = kernel.take(mock);
            recorder.set_threshold(PreciseThreshold::NearlyFull);
            let all = instructions().with(kernel.unit.groups());
            let mut threads = [all, instructions()].map(ThreadRecords::new);
            let has_groups = Cell::new(0);
            for thread in [0, 1, 0, 1] {
                let report = |report: &PreciseReport<'_>| {
                    kernel.report(report);
                    let registers = report.record.registers().is_some();
                    has_groups.set(has_groups.get() + u32::from(registers));
                };
                recorder.switch_in(&mut session, &mut threads[thread], report).unwrap();
                mock.advance(&mut happened(0, 2 * PERIOD));
                recorder.switch_out(&mut session, &mut threads[thread], report).unwrap();
            }
            let fixed = !kernel.unit.groups().is_empty()
                && !["format 4", "format 5", "format 6", "architectural", "fragments"]
                    .contains(&processor.name);
            assert_eq!(has_groups.get(), if fixed { 8 } else { 4 }, "{what}");
            assert!(kernel.unit.groups().contains(SampleParts::REGISTERS), "{what}");
            kernel.all_reported(mock, &what);
            recorder.shut_down(&mut session, |_| ()).unwrap();
        });
    }
}
