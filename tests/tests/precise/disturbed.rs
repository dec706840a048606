//! A fault or an interrupt at each access of each operation.

use pmu_core::{CounterError, CounterSet};
use pmu_intel::precise::{
    PreciseError, PreciseEvent, PreciseReport, PreciseThreshold, ThreadRecords,
};
use pmu_tests::opened::{happened, raw};
use pmu_virt::mock::Fault;

use crate::frontend::{frontend, has_register};
use crate::latency::loads;
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

/// Returns the operations, without those that start a second event where two are not told apart.
fn operations_on(processor: &Processor) -> impl Iterator<Item = (&'static str, Operation)> + use<> {
    let is_one = ["format 0", "format 1"].contains(&processor.name);
    operations().into_iter().filter(move |(name, _)| !is_one || !["start", "switch"].contains(name))
}

/// Formats in which two events are told apart.
fn all() -> impl Iterator<Item = Processor> {
    processors().into_iter().filter(|p| !["format 0", "format 1"].contains(&p.name))
}

#[test]
fn with_an_interrupt_at_each_access_no_record_is_lost_and_none_is_reported_twice() {
    for processor in processors() {
        for (name, operation) in operations_on(&processor) {
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
    for processor in processors() {
        for (name, operation) in operations_on(&processor) {
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

/// One fault is retried, wherever the interrupt comes.
#[test]
fn with_a_fault_and_an_interrupt_at_each_two_accesses_each_record_is_reported_once() {
    let is_meant =
        |p: &Processor| ["format 0", "format 3", "format 4", "fragments"].contains(&p.name);
    for processor in processors().into_iter().filter(is_meant) {
        for (name, operation) in operations_on(&processor) {
            for (fault, interrupt) in (1..30).flat_map(|at| (1..30).map(move |other| (at, other))) {
                processor.run(|kernel, mock| {
                    let (mut session, mut recorder) = kernel.take(mock);
                    recorder.start(&mut session, &instructions(), |_| ()).unwrap();
                    mock.advance(&mut happened(0, PERIOD));
                    mock.inject(Fault::At(fault));
                    mock.interrupt_at(interrupt);
                    let ended = operation(kernel, &mut session, &mut recorder);
                    mock.inject(Fault::None);
                    mock.interrupt_at(0);
                    let what = format!(
                        "{}, {}, {name}, {fault}, {interrupt}",
                        processor.name, processor.freezes
                    );
                    ended.expect(&what);
                    mock.advance(&mut happened(0, PERIOD));
                    let _ = recorder.shut_down(&mut session, |report| kernel.report(report));
                    kernel.all_reported(mock, &what);
                    assert_eq!((kernel.faulted.get(), mock.lost_records()), (0, 0), "{what}");
                    session.shut_down().unwrap();
                    nothing_is_enabled(mock, &what);
                });
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

/// Returns the number of events that can be started beside those that are started, and stops them.
fn free_for_records(
    kernel: &'static Kernel,
    session: &mut Session,
    recorder: &mut Recorder,
) -> usize {
    let mut started = vec![];
    let report = |report: &PreciseReport<'_>| kernel.report(report);
    let refused = loop {
        match recorder.start(session, &other(3), report) {
            Ok(counter) => started.push(counter),
            Err(error) => break error,
        }
    };
    assert_eq!(refused, PreciseError::Counters(CounterError::NoFreeCounter));
    for counter in &started {
        recorder.stop(session, *counter, report).unwrap();
    }
    started.len()
}

/// Returns the counters that are free for an event of the session.
fn free_counters(kernel: &'static Kernel, session: &mut Session) -> CounterSet {
    let mut free = CounterSet::NONE;
    while let Ok((counter, _)) = session.reserve(&kernel.counters, &raw(3), CounterSet::ALL) {
        free = free | counter.only();
    }
    free.iter().for_each(|counter| session.release_reserved(counter).unwrap());
    free
}

/// Returns events whose start and stop fail. The software PMU has load latencies beside the Debug Store alone.
fn failing(processor: &Processor) -> impl Iterator<Item = PreciseEvent> + use<> {
    let has_latency = processor.name.starts_with("format");
    let frontend = has_register(processor).then(|| frontend(0x11));
    [Some(other(3)), has_latency.then(|| loads(30)), frontend].into_iter().flatten()
}

/// The operation after the failed start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Start,
    ShutDown,
    Reprogram,
}

/// The next start, stop, shutdown or reprogramming takes back what the failed start could not. The second event needs
/// a second counter beside its own on the processor of format 4.
#[test]
fn a_start_that_fails_and_cannot_be_undone_leaves_no_counter_reserved_for_good() {
    for processor in all() {
        for event in failing(&processor) {
            for next in [Next::Start, Next::ShutDown, Next::Reprogram] {
                let _ = (1..).find(|access| processor.fails_to_start(&event, *access, next));
            }
        }
    }
}

impl Processor {
    /// Starts an event while all accesses from this one on fail. Returns whether there were fewer accesses.
    fn fails_to_start(self, event: &PreciseEvent, access: u32, next: Next) -> bool {
        let mut done = false;
        self.run(|kernel, mock| {
            let what = format!("{}, {}, {event:?}, {access}, {next:?}", self.name, self.freezes);
            let (mut session, mut recorder) = kernel.take(mock);
            let report = |report: &PreciseReport<'_>| kernel.report(report);
            recorder.start(&mut session, &instructions(), |_| ()).unwrap();
            mock.advance(&mut happened(0, PERIOD));
            let free = free_for_records(kernel, &mut session, &mut recorder);
            let counters = recorder.counters();
            let free_before = free_counters(kernel, &mut session);
            mock.inject(Fault::From(access));
            let started = recorder.start(&mut session, event, report);
            mock.inject(Fault::None);
            done = matches!(started, Ok(_) | Err(PreciseError::Event(_)));
            if done {
                return;
            }
            assert_eq!(recorder.counters(), counters, "{what}");
            // The event may be counted: its records are no event's.
            mock.advance(&mut happened(3, 3 * PERIOD));
            if next == Next::Reprogram {
                session.reprogram(|_| ()).unwrap();
                recorder.reprogram(&mut session, report).expect(&what);
                assert_eq!(free_counters(kernel, &mut session), free_before, "{what}");
            }
            if next != Next::ShutDown {
                assert_eq!(free_for_records(kernel, &mut session, &mut recorder), free, "{what}");
                let before = kernel.tags.borrow().len();
                mock.advance(&mut happened(0, PERIOD));
                assert_eq!(kernel.tags.borrow().len(), before + 1, "{what}");
            }
            recorder.shut_down(&mut session, report).expect(&what);
            assert!(kernel.tags.borrow().iter().all(|tag| *tag == 7), "{what}");
            let reported = kernel.reported.borrow().len() as u64;
            let dropped = kernel.memory.dropped().unattributed;
            assert_eq!(reported + u64::from(dropped), mock.written_records(), "{what}");
            let free_now = free_counters(kernel, &mut session);
            assert_eq!(free_now, free_before | (counters & CounterSet::GENERAL), "{what}");
            session.shut_down().unwrap();
            nothing_is_enabled(mock, &what);
        });
        done
    }
}

/// A stop that fails between the two counters of an event of load latencies is repeated.
#[test]
fn a_stop_that_fails_at_any_access_can_be_repeated() {
    for processor in all() {
        for event in failing(&processor) {
            for access in 1.. {
                let mut done = false;
                processor.run(|kernel, mock| {
                    let what = format!("{}, {event:?}, {access}", processor.name);
                    let (mut session, mut recorder) = kernel.take(mock);
                    let free = free_for_records(kernel, &mut session, &mut recorder);
                    let Ok(counter) = recorder.start(&mut session, &event, |_| ()) else {
                        done = true;
                        return;
                    };
                    mock.inject(Fault::From(access));
                    done = recorder.stop(&mut session, counter, |_| ()).is_ok();
                    mock.inject(Fault::None);
                    if !done {
                        recorder.stop(&mut session, counter, |_| ()).expect(&what);
                    }
                    let now = free_for_records(kernel, &mut session, &mut recorder);
                    assert_eq!((now, recorder.counters().len()), (free, 0), "{what}");
                    recorder.shut_down(&mut session, |_| ()).unwrap();
                    session.shut_down().unwrap();
                    nothing_is_enabled(mock, &what);
                });
                if done {
                    break;
                }
            }
        }
    }
}

/// A window that cannot begin leaves the records in the buffer, and a window that begins reports them.
#[test]
fn a_window_that_fails_to_suspend_the_records_loses_none() {
    // An access fails twice with its retry, or all fail from then on.
    for (processor, failing) in all().flat_map(|of| [(of, 2), (of, u32::MAX)]) {
        for access in 1.. {
            let mut done = false;
            processor.run(|kernel, mock| {
                let what =
                    format!("{}, {}, {access}, {failing}", processor.name, processor.freezes);
                let (mut session, mut recorder) = kernel.take(mock);
                let report = |report: &PreciseReport<'_>| kernel.report(report);
                recorder.set_threshold(PreciseThreshold::NearlyFull);
                recorder.start(&mut session, &instructions(), |_| ()).unwrap();
                mock.advance(&mut happened(0, 3 * PERIOD));
                assert!(kernel.reported.borrow().is_empty(), "{what}");
                mock.inject(Fault::From(access));
                let ends = (mock.accesses().total() + access - 1).saturating_add(failing);
                mock.on_access(Box::leak(Box::new(move |mock: &Mock<'_>| {
                    if mock.accesses().total() == ends {
                        mock.inject(Fault::None);
                    }
                })));
                let window = session.lend_with(0, recorder.lent(report), |_, _| ());
                mock.inject(Fault::None);
                done = window.is_ok();
                if let Ok(window) = window {
                    window.end(0).unwrap();
                } else {
                    recorder.drain(&mut session, report).expect(&what);
                }
                kernel.all_reported(mock, &what);
                assert_eq!((kernel.reported.borrow().len(), mock.lost_records()), (3, 0), "{what}");
                recorder.shut_down(&mut session, report).unwrap();
            });
            if done {
                break;
            }
        }
    }
}
