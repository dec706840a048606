//! Records that a processor writes come back whole.

use pmu_core::CounterSet;
use pmu_intel::precise::{
    GeneralRegister, PreciseError, PreciseEvent, PreciseEventError, PreciseFormat, PreciseReport,
    PreciseThreshold, Precision, SampleParts,
};
use pmu_tests::opened::{happened, raw};

use crate::support::*;

#[test]
fn each_record_of_each_format_is_reported_once_and_each_interrupt_is_claimed() {
    for processor in processors() {
        processor.run(|kernel, mock| {
            let what = format!("{}, freezing: {}", processor.name, processor.freezes);
            let (mut session, mut recorder) = kernel.take(mock);
            let control = mock.with_pmu(|pmu| pmu.read(0x38F));
            let counter = recorder
                .start(&mut session, &instructions(), |report| kernel.report(report))
                .unwrap();
            for number in 1..=20 {
                mock.advance(&mut happened(0, PERIOD - 1));
                assert_eq!(mock.interrupts(), number - 1, "{what}");
                mock.advance(&mut happened(0, 1));
                assert_eq!(mock.interrupts(), number, "{what}");
                assert!(kernel.claimed.get() >= number, "{what}");
            }
            kernel.all_reported(mock, &what);
            assert_eq!(kernel.reported.borrow().len(), 20, "{what}");
            assert!(kernel.tags.borrow().iter().all(|tag| *tag == 7));
            recorder.stop(&mut session, counter, |report| kernel.report(report)).unwrap();
            mock.advance(&mut happened(0, 10 * PERIOD));
            assert_eq!((mock.written_records(), kernel.reported.borrow().len()), (20, 20));
            assert_eq!(mock.with_pmu(|pmu| pmu.read(0x38F)), control, "{what}");
            recorder.shut_down(&mut session, |_| ()).unwrap();
            let again = recorder.start(&mut session, &instructions(), |_| ());
            assert_eq!(again, Err(PreciseError::ShutDown));
            session.shut_down().unwrap();
            assert_eq!((kernel.unclaimed.get(), kernel.faulted.get()), (0, 0), "{what}");
            assert_eq!(kernel.overflows.get(), 0, "{what}: no overflow of the session's events");
            assert_eq!(kernel.memory.dropped(), Default::default(), "{what}");
        });
    }
}

#[test]
fn a_nearly_full_buffer_interrupts_once_for_many_records_and_a_stop_reports_the_rest() {
    for processor in processors() {
        processor.run(|kernel, mock| {
            let what = processor.name;
            let (mut session, mut recorder) = kernel.take(mock);
            recorder.set_threshold(PreciseThreshold::NearlyFull);
            recorder.start(&mut session, &instructions(), |_| ()).unwrap();
            let mut until = 0;
            while mock.interrupts() == 0 {
                mock.advance(&mut happened(0, PERIOD));
                until += 1;
                assert!(until < 1000, "{what}");
            }
            // A buffer of 16 KiB; Core 2, whose records have format 0, takes one page: 28 records.
            assert!(until == 27 || until > 50, "{what}: {until}");
            kernel.all_reported(mock, what);
            mock.advance(&mut happened(0, 7 * PERIOD));
            assert_eq!((mock.interrupts(), kernel.reported.borrow().len()), (1, until), "{what}");
            recorder.drain(&mut session, |report| kernel.report(report)).unwrap();
            kernel.all_reported(mock, what);
            mock.advance(&mut happened(0, 3 * PERIOD));
            recorder.shut_down(&mut session, |report| kernel.report(report)).unwrap();
            kernel.all_reported(mock, what);
            assert_eq!((kernel.reported.borrow().len(), mock.lost_records()), (until + 10, 0));
        });
    }
}

#[test]
fn counters_of_the_session_are_served_in_the_same_interrupts() {
    for processor in processors() {
        processor.run(|kernel, mock| {
            let (mut session, mut recorder) = kernel.take(mock);
            recorder.start(&mut session, &instructions(), |_| ()).unwrap();
            let event =
                session.open_event(&kernel.counters, &raw(2).every(10_000).tagged(1)).unwrap();
            session.start_event(event, 0).unwrap();
            for _ in 0..10 {
                mock.advance(&mut happened(0, PERIOD));
                mock.advance(&mut happened(2, 10_000));
            }
            kernel.all_reported(mock, processor.name);
            assert_eq!((kernel.overflows.get(), kernel.reported.borrow().len()), (10, 10));
            assert_eq!((mock.interrupts(), kernel.unclaimed.get()), (20, 0));
        });
    }
}

#[test]
fn two_events_have_their_own_records() {
    for processor in
        processors().into_iter().filter(|p| p.name != "format 0" && p.name != "format 1")
    {
        processor.run(|kernel, mock| {
            let what = processor.name;
            let (mut session, mut recorder) = kernel.take(mock);
            let report = |report: &PreciseReport<'_>| kernel.report(report);
            let first = recorder.start(&mut session, &instructions(), report).unwrap();
            let second = recorder.start(&mut session, &other(3), report).unwrap();
            assert_eq!(recorder.counters(), first.only() | second.only());
            for _ in 0..5 {
                mock.advance(&mut happened(0, PERIOD));
                mock.advance(&mut happened(3, PERIOD));
            }
            assert_eq!(*kernel.tags.borrow(), [7, 3].repeat(5), "{what}");
            recorder.stop(&mut session, first, report).unwrap();
            mock.advance(&mut happened(0, PERIOD));
            mock.advance(&mut happened(3, PERIOD));
            assert_eq!(kernel.tags.borrow().len(), 11, "{what}");
            kernel.all_reported(mock, what);
            recorder.shut_down(&mut session, report).unwrap();
            assert_eq!(mock.with_pmu(|pmu| pmu.read(0x38E)), pmu_virt::Read::Value(0), "{what}");
        });
    }
}

#[test]
fn the_handler_loads_counters_that_it_is_to_load_with_the_period_of_the_moment() {
    for processor in processors() {
        processor.run(|kernel, mock| {
            let what = processor.name;
            let (mut session, mut recorder) = kernel.take(mock);
            let event = instructions().loaded_by_handler();
            let counter = recorder.start(&mut session, &event, |_| ()).unwrap();
            mock.advance(&mut happened(0, PERIOD));
            assert_eq!(kernel.reported.borrow().len(), 1, "{what}");
            assert!(kernel.memory.set_period(counter, 10 * PERIOD), "{what}");
            // The period that runs stays; the next one is longer.
            mock.advance(&mut happened(0, PERIOD));
            assert_eq!(kernel.reported.borrow().len(), 2, "{what}");
            mock.advance(&mut happened(0, 10 * PERIOD - 1));
            assert_eq!(kernel.reported.borrow().len(), 2, "{what}");
            mock.advance(&mut happened(0, 1));
            assert_eq!(kernel.reported.borrow().len(), 3, "{what}");
            assert!(!kernel.memory.set_period(counter, 0));
            assert!(!kernel.memory.set_period(counter, 1 << 31));
            recorder.stop(&mut session, counter, |_| ()).unwrap();
            assert!(!kernel.memory.set_period(counter, 1));
            kernel.all_reported(mock, what);
        });
    }
}

#[test]
fn groups_that_were_asked_for_are_in_the_records() {
    for processor in processors() {
        let fed = |number| {
            let mut fed = instruction(number);
            fed.registers.general[0] = 0xA0 + number; // RAX
            fed.registers.general[5] = 0xB9; // RBP
            (fed.data_address, fed.data_source, fed.latency) = (0x7000 + number, 3, 55);
            fed
        };
        processor.run_with(fed, |kernel, mock| {
            let what = processor.name;
            let (mut session, mut recorder) = kernel.take(mock);
            let groups = kernel.unit.groups();
            let event = instructions().with(groups);
            assert!(groups.contains(SampleParts::REGISTERS), "{what}");
            let counter = recorder.start(&mut session, &event, |_| ()).unwrap();
            // Not in the interrupt: the threshold is not reached.
            mock.inject_pmi(pmu_virt::mock::PmiFault::Lost);
            mock.advance(&mut happened(0, PERIOD));
            let mut seen = 0;
            recorder
                .drain(&mut session, |report| {
                    seen += 1;
                    let record = &report.record;
                    let registers = record.registers().unwrap();
                    assert_eq!(registers.get(GeneralRegister::Rax), Some(0xA0), "{what}");
                    assert_eq!(registers.get(GeneralRegister::Rbp), Some(0xB9), "{what}");
                    assert_eq!(record.next_address(), Some(address(0) + 4), "{what}");
                    assert_eq!(report.counter, counter);
                    if groups.contains(SampleParts::ACCESS) {
                        let memory = record.memory().unwrap();
                        assert_eq!((memory.address, memory.source), (Some(0x7000), 3), "{what}");
                    }
                    assert_eq!(record.vectors().is_some(), groups.contains(SampleParts::VECTORS));
                    assert_eq!(
                        record.counter_values().is_some(),
                        groups.contains(SampleParts::COUNTERS),
                        "{what}"
                    );
                    let branches = record.branches().map(|branches| branches.raw().count());
                    assert_eq!(branches.is_some(), groups.branch_count() != 0, "{what}");
                    if record.time().is_some() {
                        assert_eq!(record.time(), Some(1000), "{what}");
                    }
                })
                .unwrap();
            assert_eq!(seen, 1, "{what}");
        });
    }
}

#[test]
fn what_a_processor_cannot_record_is_refused_with_the_reason() {
    for processor in processors() {
        processor.run(|kernel, mock| {
            let (mut session, mut recorder) = kernel.take(mock);
            let mut refused = |event| {
                let before = mock.accesses();
                let error = recorder.start(&mut session, &event, |_| ()).unwrap_err();
                assert_eq!(mock.accesses(), before, "{}", processor.name);
                match error {
                    PreciseError::Event(error) => error,
                    other => panic!("{other}"),
                }
            };
            let event = |precision| {
                let event = raw(0).every(PERIOD);
                PreciseEvent::new(event, precision)
            };
            let plain = PreciseEvent::new(raw(0), Precision::ConstantSkid);
            assert_eq!(refused(plain), PreciseEventError::NoPeriod);
            let format = kernel.unit.format();
            let latency = refused(instructions().with_latency(30));
            match format {
                PreciseFormat::Core => {
                    assert_eq!(latency, PreciseEventError::Groups(SampleParts::ACCESS));
                }
                _ => assert_eq!(latency, PreciseEventError::NotLatencyEvent),
            }
            if matches!(format, PreciseFormat::Core | PreciseFormat::Nehalem) {
                let zero = event(Precision::ZeroSkidRequested);
                assert_eq!(refused(zero), PreciseEventError::NextAddressOnly);
                let unlisted = other(5);
                assert_eq!(refused(unlisted), PreciseEventError::NotPrecise);
            } else {
                let exact = event(Precision::ZeroSkidRequired);
                let capable = kernel.unit.counters_for(&exact);
                // The mock is a Haswell or a Skylake, where counter 1 is exact for another event; a Sapphire Rapids;
                // or what leaf 0x23 says: general counter 0 and fixed counter 0.
                match format {
                    PreciseFormat::Haswell | PreciseFormat::Skylake => {
                        assert_eq!(capable, Err(PreciseEventError::NoExactCounter));
                        assert_eq!(refused(exact), PreciseEventError::NoExactCounter);
                    }
                    _ => assert_eq!(capable.map(CounterSet::bits), Ok(1 << 32 | 1)),
                }
            }
            let vectors = instructions().with(SampleParts::VECTORS);
            if format == PreciseFormat::Skylake {
                assert_eq!(refused(vectors), PreciseEventError::Groups(SampleParts::VECTORS));
            }
            assert_eq!(recorder.counters(), CounterSet::NONE);
        });
    }
}
