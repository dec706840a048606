//! A fault or an interrupt at each access of each operation.

use pmu_intel::precise::{PreciseError, PreciseReport, PreciseThreshold, ThreadRecords};
use pmu_tests::opened::happened;
use pmu_virt::mock::Fault;

use crate::support::*;

/// An operation on a recorder with one started event.
type Operation = fn(&'static Kernel, &mut Session, &mut Recorder) -> Result<(), PreciseError>;

fn operations() -> [(&'static str, Operation); 6] {
    fn report(kernel: &'static Kernel) -> impl FnMut(&PreciseReport<'_>) {
        |report| kernel.report(report)
    }
    [
        ("start", |kernel, session, recorder| {
            recorder.start(session, &other(3), report(kernel)).map(|_| ())
        }),
        ("drain", |kernel, session, recorder| recorder.drain(session, report(kernel))),
        ("stop", |kernel, session, recorder| {
            let counter = recorder.counters().iter().next().unwrap();
            recorder.stop(session, counter, report(kernel))
        }),
        ("switch", |kernel, session, recorder| {
            let mut thread = ThreadRecords::new(other(3));
            recorder.switch_in(session, &mut thread, report(kernel))?;
            recorder.switch_out(session, &mut thread, report(kernel))
        }),
        ("lend", |kernel, session, recorder| {
            let lent = recorder.lent(report(kernel));
            let window = session.lend_with(0, lent, |_, _| ());
            let ended = window.and_then(|window| Ok(window.end(0)?));
            ended.map_err(PreciseError::Counters)
        }),
        ("shut down", |kernel, session, recorder| recorder.shut_down(session, report(kernel))),
    ]
}

/// Formats in which two events are told apart.
fn all() -> impl Iterator<Item = Processor> {
    processors().into_iter().filter(|p| !["format 0", "format 1"].contains(&p.name))
}

#[test]
fn with_an_interrupt_at_each_access_no_record_is_lost_and_none_is_reported_twice() {
    for processor in all() {
        for (name, operation) in operations() {
            for access in 1.. {
                let mut done = false;
                processor.run(|kernel, mock| {
                    let what =
                        format!("{}, {}, {name}, {access}", processor.name, processor.freezes);
                    let (mut session, mut recorder) = kernel.take(mock);
                    recorder.start(&mut session, &instructions(), |_| ()).unwrap();
                    mock.advance(&mut happened(0, PERIOD));
                    let (before, written) = (mock.accesses().total(), mock.written_records());
                    mock.interrupt_at(access);
                    operation(kernel, &mut session, &mut recorder).unwrap();
                    done = mock.accesses().total() - before < access;
                    mock.interrupt_at(0);
                    // While the counters are paused, none overflows: the interrupt is another one's.
                    if mock.written_records() != written {
                        assert_eq!(kernel.unclaimed.get(), 0, "{what}");
                    }
                    mock.advance(&mut happened(0, PERIOD));
                    let _ = recorder.shut_down(&mut session, |report| kernel.report(report));
                    kernel.all_reported(mock, &what);
                    assert_eq!((kernel.faulted.get(), mock.lost_records()), (0, 0), "{what}");
                    session.shut_down().unwrap();
                });
                if done {
                    break;
                }
            }
        }
    }
}

#[test]
fn with_a_fault_at_each_access_an_operation_fails_or_succeeds_and_a_shut_down_ends_everything() {
    for processor in all() {
        for (name, operation) in operations() {
            for access in 1.. {
                let mut done = false;
                processor.run(|kernel, mock| {
                    let what =
                        format!("{}, {}, {name}, {access}", processor.name, processor.freezes);
                    let (mut session, mut recorder) = kernel.take(mock);
                    recorder.start(&mut session, &instructions(), |_| ()).unwrap();
                    mock.advance(&mut happened(0, PERIOD));
                    let before = mock.accesses().total();
                    mock.inject(Fault::At(access));
                    // One fault is retried.
                    operation(kernel, &mut session, &mut recorder).expect(&what);
                    done = mock.accesses().total() - before < access;
                    mock.inject(Fault::None);
                    let _ = recorder.shut_down(&mut session, |report| kernel.report(report));
                    kernel.all_reported(mock, &what);
                    session.shut_down().unwrap();
                });
                processor.run(|kernel, mock| {
                    let what =
                        format!("{}, {}, {name}, from {access}", processor.name, processor.freezes);
                    let (mut session, mut recorder) = kernel.take(mock);
                    recorder.start(&mut session, &instructions(), |_| ()).unwrap();
                    mock.advance(&mut happened(0, PERIOD));
                    mock.inject(Fault::From(access));
                    let failed = operation(kernel, &mut session, &mut recorder);
                    mock.inject(Fault::None);
                    assert_eq!(failed.is_ok(), done, "{what}: {failed:?}");
                    if failed.is_err() {
                        // The second time it succeeds, or an earlier part is already done.
                        if name == "lend" {
                            session.reprogram(|_| ()).unwrap();
                            let lent = recorder.lent(|_: &PreciseReport<'_>| ());
                            if let Ok(window) = session.lend_with(0, lent, |_, _| ()) {
                                window.end(0).unwrap();
                            }
                        }
                        session.reprogram(|_| ()).unwrap();
                        recorder
                            .reprogram(&mut session, |report| kernel.report(report))
                            .expect(&what);
                    }
                    let ended = recorder.shut_down(&mut session, |report| kernel.report(report));
                    assert!(
                        matches!(ended, Ok(()) | Err(PreciseError::ShutDown)),
                        "{what}: {ended:?}"
                    );
                    assert_eq!(
                        mock.with_precise_records(|precise| precise.enabled()),
                        Some(0),
                        "{what}"
                    );
                    session.shut_down().unwrap();
                    mock.advance(&mut happened(0, 10 * PERIOD));
                    kernel.all_reported(mock, &what);
                });
                if done {
                    break;
                }
            }
        }
    }
}

#[test]
fn with_a_fault_at_each_access_of_an_interrupt_the_next_one_reports_the_records() {
    for processor in processors() {
        for access in 1..8 {
            processor.run(|kernel, mock| {
                let what = format!("{}, {}, {access}", processor.name, processor.freezes);
                let (mut session, mut recorder) = kernel.take(mock);
                recorder.start(&mut session, &instructions(), |_| ()).unwrap();
                mock.inject(Fault::At(access));
                mock.advance(&mut happened(0, PERIOD));
                mock.inject(Fault::None);
                mock.advance(&mut happened(0, PERIOD));
                kernel.all_reported(mock, &what);
                assert_eq!(
                    (kernel.reported.borrow().len(), kernel.faulted.get()),
                    (2, 0),
                    "{what}"
                );
                recorder.shut_down(&mut session, |_| ()).unwrap();
            });
        }
    }
}

/// A write of the index would drop the records that are in the buffer.
#[test]
fn a_start_that_cannot_pause_the_other_events_leaves_their_records_in_the_buffer() {
    for processor in all() {
        processor.run(|kernel, mock| {
            let what = format!("{}, {}", processor.name, processor.freezes);
            let (mut session, mut recorder) = kernel.take(mock);
            let report = |report: &PreciseReport<'_>| kernel.report(report);
            recorder.set_threshold(PreciseThreshold::NearlyFull);
            recorder.start(&mut session, &instructions(), report).unwrap();
            mock.advance(&mut happened(0, 2 * PERIOD));
            assert!(kernel.reported.borrow().is_empty(), "{what}");
            // IA32_PERF_GLOBAL_CTRL.
            mock.inject(Fault::Register(0x38F));
            let failed = recorder.start(&mut session, &other(3), report);
            assert!(matches!(failed, Err(PreciseError::Counters(_))), "{what}: {failed:?}");
            mock.inject(Fault::None);
            recorder.drain(&mut session, report).unwrap();
            mock.advance(&mut happened(0, PERIOD));
            recorder.shut_down(&mut session, report).unwrap();
            kernel.all_reported(mock, &what);
            assert_eq!(kernel.reported.borrow().len(), 3, "{what}");
        });
    }
}
