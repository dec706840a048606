//! No record of another thread, of a guest or of another privilege level is shown.

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;

use pmu_core::{Event, EventSelect};
use pmu_intel::precise::{PreciseEvent, PreciseReport, PreciseThreshold, Precision, ThreadRecords};
use pmu_tests::opened::happened;
use pmu_virt::mock::PmiFault;
use pmu_virt::{FedRecord, FedRegisters, Read};

use crate::support::*;

const KERNEL: u64 = 0xFFFF_FFFF_8000_0000;

/// Every third instruction is the kernel's; behind every third one, of user mode, the kernel continues; the third is
/// user mode's, and its data and branches are the kernel's.
fn mixed(number: u64) -> FedRecord<'static> {
    let (ip, next) = match number % 3 {
        0 => (KERNEL + number, KERNEL + number + 4),
        1 => (0x40_0000 + number, KERNEL + number),
        _ => (0x40_0000 + number, 0x40_0004 + number),
    };
    FedRecord {
        registers: FedRegisters { ip: next, ..FedRegisters::ZERO },
        data_address: KERNEL + 8,
        ..FedRecord::new(ip)
    }
}

#[test]
fn an_event_of_one_privilege_level_shows_no_address_of_the_other() {
    for processor in processors() {
        for user in [true, false] {
            processor.run_with(mixed, |kernel, mock| {
                let what = format!("{}, user: {user}", processor.name);
                let (mut session, mut recorder) = kernel.take(mock);
                let event = Event::raw(EventSelect::from_bits(0xC0)).every(PERIOD);
                let event = if user { event.user_only() } else { event.kernel_only() };
                let event = PreciseEvent::new(event, Precision::ConstantSkid);
                let event = event.with(kernel.unit.groups());
                recorder.set_threshold(PreciseThreshold::NearlyFull);
                recorder.start(&mut session, &event, |_| ()).unwrap();
                let privilege =
                    if user { pmu_virt::Privilege::User } else { pmu_virt::Privilege::Kernel };
                mock.advance(&mut pmu_tests::opened::happened_at(0, privilege, 9 * PERIOD));
                let shown = Cell::new(0);
                let is_own = |address: u64| (address < KERNEL) == user;
                recorder
                    .drain(&mut session, |report: &PreciseReport<'_>| {
                        let record = &report.record;
                        let addresses = [
                            record.address(),
                            record.next_address(),
                            record.memory().and_then(|memory| memory.address),
                        ];
                        assert!(addresses.into_iter().flatten().all(is_own), "{what}");
                        shown.set(shown.get() + 1);
                    })
                    .unwrap();
                // Without the instruction's own address, the next one's decides.
                let expected = match (user, kernel.unit.format().has_own_address()) {
                    (true, _) | (false, true) => 3,
                    (false, false) => 6,
                };
                assert_eq!(shown.get(), expected, "{what}");
                assert_eq!(kernel.memory.dropped().hidden, 9 - expected, "{what}");
            });
        }
    }
}

#[test]
fn a_switch_of_threads_reports_the_records_of_the_one_and_continues_its_period_later() {
    for processor in processors() {
        processor.run(|kernel, mock| {
            let what = processor.name;
            let (mut session, mut recorder) = kernel.take(mock);
            recorder.set_threshold(PreciseThreshold::NearlyFull);
            let mut first = ThreadRecords::new(instructions());
            let other = PreciseEvent::new(
                Event::raw(EventSelect::from_bits(0xC0)).user_only().every(PERIOD).tagged(8),
                Precision::ConstantSkid,
            );
            let mut second = ThreadRecords::new(other);
            let report = |report: &PreciseReport<'_>| kernel.report(report);
            for _ in 0..10 {
                // A period and a half each.
                recorder.switch_in(&mut session, &mut first, report).unwrap();
                mock.advance(&mut happened(0, PERIOD * 3 / 2));
                recorder.switch_out(&mut session, &mut first, report).unwrap();
                assert!(first.counter().is_none());
                let seen = kernel.tags.borrow().len();
                recorder.switch_in(&mut session, &mut second, report).unwrap();
                mock.advance(&mut happened(0, PERIOD));
                recorder.switch_out(&mut session, &mut second, report).unwrap();
                let tags = kernel.tags.borrow();
                assert!(tags[seen..].iter().all(|tag| *tag == 8), "{what}");
            }
            let of = |tag: u64| kernel.tags.borrow().iter().filter(|of| **of == tag).count();
            assert_eq!((of(7), of(8)), (15, 10), "{what}");
            kernel.all_reported(mock, what);
            // Events of no thread.
            mock.advance(&mut happened(0, 10 * PERIOD));
            assert_eq!(mock.written_records(), 25, "{what}");
        });
    }
}

#[test]
fn while_counters_are_lent_no_counter_writes_records_and_afterwards_the_periods_continue() {
    for processor in processors() {
        for begun in [0, PERIOD / 2] {
            processor.run(|kernel, mock| {
                let what = format!("{}, {begun}", processor.name);
                let (mut session, mut recorder) = kernel.take(mock);
                recorder.set_threshold(PreciseThreshold::NearlyFull);
                recorder.start(&mut session, &instructions(), |_| ()).unwrap();
                mock.advance(&mut happened(0, 2 * PERIOD + begun));
                let lent = recorder.lent(|report: &PreciseReport<'_>| kernel.report(report));
                let window = session.lend_with(0, lent, |_, _| ()).unwrap();
                // Before a guest runs, its predecessor's records are read out, and nothing writes any.
                kernel.all_reported(mock, &what);
                assert_eq!(kernel.reported.borrow().len(), 2, "{what}");
                assert_eq!(mock.with_precise_records(|precise| precise.enabled()), Some(0));
                let written: Vec<u64> =
                    words(kernel.memory)[1].iter().map(|word| word.load(Relaxed)).collect();
                // The borrower runs counters of its own.
                let _ = mock.with_pmu(|pmu| pmu.write(0x38F, 1));
                mock.advance(&mut happened(0, 10 * PERIOD));
                assert!(words(kernel.memory)[1].iter().map(|word| word.load(Relaxed)).eq(written));
                let _ = mock.with_pmu(|pmu| pmu.write(0x38F, 0));
                window.end(0).unwrap();
                mock.advance(&mut happened(0, PERIOD - begun - 1));
                assert_eq!(mock.written_records(), 2, "{what}");
                mock.advance(&mut happened(0, 1));
                assert_eq!(mock.written_records(), 3, "{what}");
                recorder.shut_down(&mut session, |report| kernel.report(report)).unwrap();
                kernel.all_reported(mock, &what);
            });
        }
    }
}

#[test]
fn what_a_predecessor_left_is_ended_and_after_a_shut_down_nothing_is_left() {
    for processor in processors() {
        processor.run(|kernel, mock| {
            let what = processor.name;
            let read = |register| match mock.with_pmu(|pmu| pmu.read(register)) {
                Read::Value(value) => value,
                _ => 0,
            };
            let (mut session, mut recorder) = kernel.take(mock);
            recorder.start(&mut session, &instructions(), |_| ()).unwrap();
            assert_ne!(mock.with_precise_records(|precise| precise.enabled()), Some(0), "{what}");
            assert!(kernel.memory.pebs_index().is_some());
            let _ = recorder;
            session.shut_down().unwrap();
            // SAFETY: the mock writes to the lent memory alone, which lasts.
            let again = unsafe {
                pmu_intel::precise::PreciseRecorder::take(
                    &kernel.unit,
                    mock,
                    kernel.memory,
                    Some(PHYSICAL),
                )
            };
            assert_eq!(again.err(), Some(pmu_intel::precise::PreciseError::MemoryInUse));
            // SAFETY: as before.
            let mut recorder = unsafe {
                pmu_intel::precise::PreciseRecorder::take(
                    &kernel.unit,
                    mock,
                    lend(),
                    Some(PHYSICAL),
                )
            }
            .unwrap();
            assert_eq!(mock.with_precise_records(|precise| precise.enabled()), Some(0), "{what}");
            let mut session = kernel.take_counters(mock);
            recorder.shut_down(&mut session, |_| ()).unwrap();
            assert_eq!((read(0x38E), read(0x186)), (0, 0), "{what}");
        });
    }
}

/// A thread's interrupt may be lost, or late: its records are reported before the next thread runs.
#[test]
fn a_lost_interrupt_loses_no_record_at_a_switch() {
    for processor in processors() {
        for pmi in [PmiFault::Lost, PmiFault::Late(3)] {
            processor.run(|kernel, mock| {
                let what = format!("{}, {pmi:?}", processor.name);
                let (mut session, mut recorder) = kernel.take(mock);
                let mut thread = ThreadRecords::new(instructions());
                let report = |report: &PreciseReport<'_>| kernel.report(report);
                recorder.switch_in(&mut session, &mut thread, report).unwrap();
                mock.inject_pmi(pmi);
                mock.advance(&mut happened(0, PERIOD));
                recorder.switch_out(&mut session, &mut thread, report).unwrap();
                kernel.all_reported(mock, &what);
                assert_eq!(kernel.reported.borrow().len(), 1, "{what}");
                mock.inject_pmi(PmiFault::None);
                recorder.switch_in(&mut session, &mut thread, report).unwrap();
                mock.advance(&mut happened(0, PERIOD));
                kernel.all_reported(mock, &what);
                assert_eq!((kernel.unclaimed.get(), kernel.faulted.get()), (0, 0), "{what}");
            });
        }
    }
}

/// The counter of an earlier start may have another thread's event.
#[test]
fn a_threads_event_that_the_recorder_ended_stops_no_other_event_and_starts_again() {
    for processor in processors() {
        for shut_down in [true, false] {
            processor.run(|kernel, mock| {
                let what = format!("{}, {shut_down}", processor.name);
                let (mut session, mut recorder) = kernel.take(mock);
                let report = |report: &PreciseReport<'_>| kernel.report(report);
                let mut stale = ThreadRecords::new(instructions());
                let mut second = ThreadRecords::new(instructions());
                recorder.switch_in(&mut session, &mut stale, report).unwrap();
                let counter = stale.counter().unwrap();
                let mut recorder = if shut_down {
                    recorder.shut_down(&mut session, report).unwrap();
                    session.shut_down().unwrap();
                    let (again, recorder) = kernel.take(mock);
                    session = again;
                    recorder
                } else {
                    recorder.stop(&mut session, counter, report).unwrap();
                    recorder
                };
                assert_eq!(stale.counter(), None, "{what}");
                recorder.switch_in(&mut session, &mut second, report).unwrap();
                assert_eq!(second.counter(), Some(counter), "{what}");
                assert_eq!(stale.counter(), None, "{what}");
                recorder.switch_out(&mut session, &mut stale, report).unwrap();
                assert_eq!(recorder.counters(), counter.only(), "{what}");
                recorder.switch_out(&mut session, &mut second, report).unwrap();
                recorder.switch_in(&mut session, &mut stale, report).unwrap();
                assert_eq!(stale.counter(), Some(counter), "{what}");
                mock.advance(&mut happened(0, PERIOD));
                kernel.all_reported(mock, &what);
                assert_eq!(kernel.reported.borrow().len(), 1, "{what}");
                recorder.shut_down(&mut session, report).unwrap();
            });
        }
    }
}
