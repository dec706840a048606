//! Records beside other users of the counters and of the interrupt.

use pmu_core::{CounterError, CounterSet, Event, EventSelect};
use pmu_intel::precise::{
    PreciseError, PreciseEvent, PreciseRecorder, PreciseReport, PreciseThreshold, Precision,
    ThreadRecords,
};
use pmu_tests::opened::{happened, raw};
use pmu_virt::mock::{Fault, PmiFault};

use crate::support::*;

/// `IA32_PERF_GLOBAL_STATUS`.
// SAFETY: the mock's registers are numbers.
const STATUS: pmu_core::MsrAddress = unsafe { pmu_core::MsrAddress::new(0x38E) };

/// The handler of a kernel asks each source of NMIs.
#[test]
fn another_owners_interrupt_is_not_claimed_although_records_wait_in_the_buffer() {
    for processor in processors() {
        processor.run(|kernel, mock| {
            let what = format!("{}, {}", processor.name, processor.freezes);
            let (mut session, mut recorder) = kernel.take(mock);
            recorder.set_threshold(PreciseThreshold::NearlyFull);
            recorder.start(&mut session, &instructions(), |_| ()).unwrap();
            mock.advance(&mut happened(0, 3 * PERIOD));
            assert!(mock.interrupt_from_elsewhere());
            assert_eq!((kernel.claimed.get(), kernel.unknown.get()), (0, 1), "{what}");
            recorder.shut_down(&mut session, |report| kernel.report(report)).unwrap();
            kernel.all_reported(mock, &what);
            assert_eq!(kernel.reported.borrow().len(), 3, "{what}");
        });
    }
}

/// The area names no buffer yet.
#[test]
fn an_interrupt_while_the_memory_is_taken_loses_no_buffer() {
    for processor in processors() {
        for access in 1..8 {
            processor.run(|kernel, mock| {
                let what = format!("{}, {}, {access}", processor.name, processor.freezes);
                let mut session = kernel.take_counters(mock);
                mock.interrupt_at(access);
                // SAFETY: the mock writes to the lent memory alone, which lasts.
                let recorder = unsafe {
                    PreciseRecorder::take(&kernel.unit, mock, kernel.memory, Some(PHYSICAL))
                };
                mock.interrupt_at(0);
                assert_eq!(kernel.memory.dropped(), Default::default(), "{what}");
                recorder.unwrap().shut_down(&mut session, |_| ()).unwrap();
            });
        }
    }
}

/// Memory keeps what registers lose, and registers that lost nothing keep the index.
#[test]
fn a_reprogramming_of_registers_that_lost_nothing_reports_the_records_that_wait() {
    for processor in processors() {
        processor.run(|kernel, mock| {
            let what = format!("{}, {}", processor.name, processor.freezes);
            let (mut session, mut recorder) = kernel.take(mock);
            let report = |report: &PreciseReport<'_>| kernel.report(report);
            recorder.set_threshold(PreciseThreshold::NearlyFull);
            recorder.start(&mut session, &instructions(), report).unwrap();
            mock.advance(&mut happened(0, 3 * PERIOD));
            session.reprogram(|_| ()).unwrap();
            recorder.reprogram(&mut session, report).unwrap();
            kernel.all_reported(mock, &what);
            assert_eq!(kernel.reported.borrow().len(), 3, "{what}");
            mock.advance(&mut happened(0, 2 * PERIOD));
            kernel.ends(mock, session, recorder, 5, &what);
        });
    }
}

#[test]
fn a_suspended_session_is_resumed_with_its_records() {
    for processor in processors() {
        for loses in [false, true] {
            processor.run(|kernel, mock| {
                let what = format!("{}, {}, {loses}", processor.name, processor.freezes);
                let (mut session, mut recorder) = kernel.take(mock);
                let report = |report: &PreciseReport<'_>| kernel.report(report);
                recorder.set_threshold(PreciseThreshold::NearlyFull);
                recorder.start(&mut session, &instructions(), report).unwrap();
                let event = raw(2).every(10_000);
                let event = session.open_event(&kernel.counters, &event).unwrap();
                session.start_event(event, 0).unwrap();
                mock.advance(&mut happened(0, 3 * PERIOD));
                recorder.drain(&mut session, report).unwrap();
                session.suspend(0, |_| ()).unwrap();
                mock.advance(&mut happened(0, 3 * PERIOD));
                if loses {
                    mock.lose_registers();
                    mock.set_performance_entry(0x400);
                }
                session.resume(0, |_| ()).unwrap();
                recorder.reprogram(&mut session, report).unwrap();
                mock.advance(&mut happened(0, 2 * PERIOD));
                mock.advance(&mut happened(2, 10_000));
                kernel.ends(mock, session, recorder, 5, &what);
                assert_eq!(kernel.overflows.get(), 1, "{what}");
            });
        }
    }
}

/// An event that waited for a turn may get the counter.
#[test]
fn an_event_that_got_a_recorders_counter_after_a_reprogramming_loses_no_overflow() {
    for processor in processors() {
        processor.run(|kernel, mock| {
            let what = format!("{}, {}", processor.name, processor.freezes);
            let (mut session, mut recorder) = kernel.take(mock);
            let report = |report: &PreciseReport<'_>| kernel.report(report);
            // On general counter 0.
            let on_first = CounterSet::from_bits(1);
            let event = raw(0).on(on_first).user_only().every(PERIOD).tagged(7);
            let event = PreciseEvent::new(event, Precision::ConstantSkid);
            let counter = recorder.start(&mut session, &event, report).unwrap();
            assert_eq!(counter.only(), on_first, "{what}");
            mock.lose_registers();
            mock.set_performance_entry(0x400);
            session.reprogram(|_| ()).unwrap();
            let other = raw(2).on(on_first).every(10_000);
            let other = session.open_event(&kernel.counters, &other).unwrap();
            session.start_event(other, 0).unwrap();
            let refused = recorder.reprogram(&mut session, report);
            let not_available = CounterError::NotAvailable(on_first);
            assert_eq!(refused, Err(PreciseError::Counters(not_available)), "{what}");
            for number in 1..=3 {
                mock.advance(&mut happened(2, 10_000));
                assert_eq!(kernel.overflows.get(), number, "{what}");
            }
            session.stop_event(other, 0).unwrap();
            recorder.reprogram(&mut session, report).unwrap();
            mock.advance(&mut happened(0, PERIOD));
            kernel.ends(mock, session, recorder, 1, &what);
        });
    }
}

#[test]
fn a_recorder_whose_session_was_shut_down_first_ends_with_the_next_session() {
    for processor in processors() {
        processor.run(|kernel, mock| {
            let what = format!("{}, {}", processor.name, processor.freezes);
            let (mut session, mut recorder) = kernel.take(mock);
            let report = |report: &PreciseReport<'_>| kernel.report(report);
            recorder.set_threshold(PreciseThreshold::NearlyFull);
            let counter = recorder.start(&mut session, &instructions(), report).unwrap();
            mock.advance(&mut happened(0, 2 * PERIOD));
            session.shut_down().unwrap();
            let lost = Err(PreciseError::Counters(CounterError::NotAvailable(counter.only())));
            assert_eq!(recorder.shut_down(&mut session, report), lost, "{what}");
            mock.advance(&mut happened(0, 2 * PERIOD));
            let mut session = kernel.take_counters(mock);
            recorder.reprogram(&mut session, report).unwrap();
            mock.advance(&mut happened(0, 2 * PERIOD));
            kernel.ends(mock, session, recorder, 4, &what);
        });
    }
}

#[test]
fn events_that_rotate_leave_the_recorders_counter_alone() {
    for processor in processors() {
        processor.run(|kernel, mock| {
            let what = format!("{}, {}", processor.name, processor.freezes);
            let (mut session, mut recorder) = kernel.take(mock);
            let report = |report: &PreciseReport<'_>| kernel.report(report);
            recorder.start(&mut session, &instructions(), report).unwrap();
            let on = CounterSet::from_bits(0b10);
            let events: Vec<_> = [2, 3, 4]
                .map(|kind| {
                    let event = raw(kind).on(on).every(10_000).rotating().tagged(kind as u64);
                    let event = session.open_event(&kernel.counters, &event).unwrap();
                    session.start_event(event, 0).unwrap();
                    event
                })
                .into();
            for now in 1..=12 {
                mock.advance(&mut happened(0, PERIOD));
                for kind in [2, 3, 4] {
                    mock.advance(&mut happened(kind, 10_000));
                }
                session.rotate(now).unwrap();
            }
            kernel.all_reported(mock, &what);
            assert_eq!(kernel.reported.borrow().len(), 12, "{what}");
            assert_eq!(kernel.overflows.get(), 12, "{what}");
            for event in events {
                session.stop_event(event, 20).unwrap();
            }
            recorder.shut_down(&mut session, report).unwrap();
            session.shut_down().unwrap();
            nothing_is_enabled(mock, &what);
        });
    }
}

#[test]
fn no_recorded_event_starts_beside_an_exclusive_event() {
    for processor in processors() {
        processor.run(|kernel, mock| {
            let what = format!("{}, {}", processor.name, processor.freezes);
            let (mut session, mut recorder) = kernel.take(mock);
            let report = |report: &PreciseReport<'_>| kernel.report(report);
            let event = raw(2).exclusive();
            let event = session.open_event(&kernel.counters, &event).unwrap();
            session.start_event(event, 0).unwrap();
            let refused = recorder.start(&mut session, &instructions(), report);
            let busy = PreciseError::Counters(CounterError::NoFreeCounter);
            assert_eq!(refused, Err(busy), "{what}");
            session.stop_event(event, 0).unwrap();
            recorder.start(&mut session, &instructions(), report).unwrap();
            recorder.shut_down(&mut session, report).unwrap();
            session.shut_down().unwrap();
            nothing_is_enabled(mock, &what);
        });
    }
}

/// The handler may choose another period, and a switch of threads keeps it.
#[test]
fn a_thread_keeps_the_period_that_the_handler_chose() {
    for processor in processors() {
        processor.run(|kernel, mock| {
            let what = format!("{}, {}", processor.name, processor.freezes);
            let (mut session, mut recorder) = kernel.take(mock);
            let report = |report: &PreciseReport<'_>| kernel.report(report);
            let mut thread = ThreadRecords::new(instructions().loaded_by_handler());
            recorder.switch_in(&mut session, &mut thread, report).unwrap();
            assert!(kernel.memory.set_period(thread.counter().unwrap(), 10 * PERIOD));
            mock.advance(&mut happened(0, PERIOD));
            mock.advance(&mut happened(0, 4 * PERIOD));
            recorder.switch_out(&mut session, &mut thread, report).unwrap();
            recorder.switch_in(&mut session, &mut thread, report).unwrap();
            mock.advance(&mut happened(0, 6 * PERIOD - 1));
            assert_eq!(kernel.reported.borrow().len(), 1, "{what}");
            mock.advance(&mut happened(0, 1));
            assert_eq!(kernel.reported.borrow().len(), 2, "{what}");
            mock.advance(&mut happened(0, 10 * PERIOD - 1));
            assert_eq!(kernel.reported.borrow().len(), 2, "{what}");
            recorder.shut_down(&mut session, report).unwrap();
        });
    }
}

/// The status is unreadable, and no record of the buffer may be shown: the interrupt is the buffer's nevertheless.
#[test]
fn an_interrupt_whose_status_cannot_be_read_is_claimed_although_its_records_are_hidden() {
    for processor in processors() {
        let of_kernel = |number| pmu_virt::FedRecord {
            registers: pmu_virt::FedRegisters { ip: u64::MAX - 15, ..pmu_virt::FedRegisters::ZERO },
            ..pmu_virt::FedRecord::new((1 << 63) + number)
        };
        processor.run_with(of_kernel, |kernel, mock| {
            let what = format!("{}, {}", processor.name, processor.freezes);
            let (mut session, mut recorder) = kernel.take(mock);
            recorder.start(&mut session, &instructions(), |_| ()).unwrap();
            mock.inject(Fault::Ignored(0x38E));
            mock.advance(&mut happened(0, PERIOD));
            mock.inject(Fault::None);
            assert_eq!(kernel.memory.dropped().hidden, 1, "{what}");
            assert_eq!(kernel.unknown.get(), 0, "{what}");
            recorder.shut_down(&mut session, |_| ()).unwrap();
        });
    }
}

#[test]
fn a_lost_interrupt_of_a_buffer_is_made_up_for_by_the_next_one() {
    for processor in processors() {
        processor.run(|kernel, mock| {
            let what = format!("{}, {}", processor.name, processor.freezes);
            let (mut session, mut recorder) = kernel.take(mock);
            let select = EventSelect::from_bits(0xC0);
            let event = Event::raw(select).user_only().every(PERIOD).tagged(7);
            let event = PreciseEvent::new(event, Precision::ConstantSkid);
            recorder.start(&mut session, &event, |_| ()).unwrap();
            mock.inject_pmi(PmiFault::Lost);
            mock.advance(&mut happened(0, PERIOD));
            mock.inject_pmi(PmiFault::None);
            assert!(mock.interrupt_from_elsewhere());
            kernel.all_reported(mock, &what);
            assert_eq!(kernel.reported.borrow().len(), 1, "{what}");
            recorder.shut_down(&mut session, |_| ()).unwrap();
        });
    }
}

/// The last interrupt comes when recorder and session are gone.
#[test]
fn a_late_interrupt_is_claimed_whatever_was_stopped_meanwhile() {
    for processor in processors() {
        for late in 1..60 {
            processor.run(|kernel, mock| {
                let what = format!("{}, {}, {late}", processor.name, processor.freezes);
                let (mut session, mut recorder) = kernel.take(mock);
                let report = |report: &PreciseReport<'_>| kernel.report(report);
                recorder.start(&mut session, &instructions(), report).unwrap();
                mock.inject_pmi(PmiFault::Late(late));
                mock.advance(&mut happened(0, PERIOD));
                recorder.shut_down(&mut session, report).unwrap();
                session.shut_down().unwrap();
                while mock.interrupts() == 0 {
                    let _ = pmu_core::MsrBackend::read(mock, STATUS);
                }
                assert_eq!((kernel.unknown.get(), kernel.faulted.get()), (0, 0), "{what}");
                kernel.all_reported(mock, &what);
                nothing_is_enabled(mock, &what);
            });
        }
    }
}

/// A predecessor's bit of the status: no interrupt was ever served for it.
#[test]
fn a_bit_that_a_predecessor_left_in_the_status_stalls_no_record() {
    for processor in processors() {
        processor.run(|kernel, mock| {
            let what = format!("{}, {}", processor.name, processor.freezes);
            let report = |report: &PreciseReport<'_>| kernel.report(report);
            // IA32_PERF_GLOBAL_STATUS_SET, of versions that have it.
            let bit = if kernel.unit.needs_physical_address() { 54 } else { 62 };
            let _ = mock.with_precise_records(|records| {
                mock.with_pmu(|pmu| pmu.write_beside(records, 0x391, 1 << bit))
            });
            let (mut session, mut recorder) = kernel.take(mock);
            recorder.start(&mut session, &instructions(), report).unwrap();
            for number in 1..=3 {
                mock.advance(&mut happened(0, PERIOD));
                assert_eq!(kernel.reported.borrow().len(), number, "{what}");
            }
            recorder.shut_down(&mut session, |_| ()).unwrap();
            session.shut_down().unwrap();
            nothing_is_enabled(mock, &what);
        });
    }
}

#[test]
fn a_recorders_counter_is_not_given_to_another_owner() {
    for processor in processors() {
        processor.run(|kernel, mock| {
            let what = format!("{}, {}", processor.name, processor.freezes);
            let (mut session, mut recorder) = kernel.take(mock);
            let report = |report: &PreciseReport<'_>| kernel.report(report);
            let counter = recorder.start(&mut session, &instructions(), report).unwrap();
            assert!(session.give_back(counter.only()).is_err(), "{what}");
            mock.advance(&mut happened(0, PERIOD));
            kernel.all_reported(mock, &what);
            assert_eq!(kernel.reported.borrow().len(), 1, "{what}");
            recorder.shut_down(&mut session, report).unwrap();
            session.give_back(counter.only()).unwrap();
        });
    }
}

/// INST_RETIRED.PREC_DIST (0x01C0) of Haswell and Skylake is exact on counter 1; from Ice Lake on each event is, on
/// counters that the model, or CPUID leaf 0x23, names.
#[test]
fn an_exact_event_is_started_on_an_exact_counter_and_on_no_other() {
    for processor in processors() {
        let (select, exact) = match processor.name {
            "format 0" | "format 1" => continue,
            "format 2" | "format 3" => (0x01C0, CounterSet::from_bits(0b10)),
            _ => (0xC0, CounterSet::from_bits(1 << 32 | 1)),
        };
        processor.run(|kernel, mock| {
            let what = format!("{}, {}", processor.name, processor.freezes);
            let (mut session, mut recorder) = kernel.take(mock);
            let report = |report: &PreciseReport<'_>| kernel.report(report);
            let event = Event::raw(EventSelect::from_bits(select)).user_only().every(PERIOD);
            let event = PreciseEvent::new(event, Precision::ZeroSkidRequired);
            for _ in exact.iter() {
                let counter = recorder.start(&mut session, &event, report).expect(&what);
                assert!(exact.contains(counter), "{what}: {counter:?}");
            }
            assert_eq!(recorder.counters(), exact, "{what}");
            let busy = PreciseError::Counters(CounterError::NoFreeCounter);
            assert_eq!(recorder.start(&mut session, &event, report), Err(busy), "{what}");
            recorder.shut_down(&mut session, report).unwrap();
            session.shut_down().unwrap();
            nothing_is_enabled(mock, &what);
        });
    }
}
