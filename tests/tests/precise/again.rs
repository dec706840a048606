//! Registers that lost their contents, or have those of another owner: programmed again, whole.

use pmu_intel::precise::{PreciseReport, PreciseThreshold, SampleParts, ThreadRecords};
use pmu_tests::opened::happened;
use pmu_virt::Read;
use pmu_virt::mock::{Fault, PmiFault};

use crate::frontend::{frontend, has_register};
use crate::latency::loads;
use crate::support::*;

/// `MSR_PEBS_LD_LAT_THRESHOLD`, `IA32_PEBS_ENABLE`, and the base and the index of architectural PEBS.
const LATENCY: u32 = 0x3F6;
const ENABLE: u32 = 0x3F1;
const BASE: u32 = 0x3F4;
const INDEX: u32 = 0x3F5;

fn read(mock: &Mock<'_>, register: u32) -> u64 {
    let read = mock.with_precise_records(|of| mock.with_pmu(|pmu| pmu.read_beside(of, register)));
    match read {
        Some(Read::Value(value)) => value,
        other => panic!("{register:#x}: {other:?}"),
    }
}

/// Another owner, such as firmware, writes a register.
fn write(mock: &Mock<'_>, register: u32, value: u64) {
    mock.with_precise_records(|of| {
        let _ = mock.with_pmu(|pmu| pmu.write_beside(of, register, value));
    });
    assert_eq!(read(mock, register), value, "{register:#x}");
}

fn lose_registers(mock: &Mock<'_>) {
    mock.lose_registers();
    mock.set_performance_entry(0x400);
}

fn named(name: &str) -> impl Iterator<Item = Processor> {
    processors().into_iter().filter(move |processor| processor.name == name)
}

#[test]
fn records_after_a_suspend_have_the_groups_of_before() {
    for processor in processors() {
        processor.run(|kernel, mock| {
            let what = format!("{}, {}", processor.name, processor.freezes);
            let (mut session, mut recorder) = kernel.take(mock);
            let groups = kernel.unit.groups();
            assert!(groups.contains(SampleParts::REGISTERS), "{what}");
            recorder.start(&mut session, &instructions().with(groups), |_| ()).unwrap();
            lose_registers(mock);
            session.reprogram(|_| ()).unwrap();
            recorder.reprogram(&mut session, |_| ()).unwrap();
            mock.inject_pmi(PmiFault::Lost);
            mock.advance(&mut happened(0, PERIOD));
            let mut seen = 0;
            let report = |report: &PreciseReport<'_>| {
                seen += 1;
                let has_vectors = groups.contains(SampleParts::VECTORS);
                assert!(report.record.registers().is_some(), "{what}");
                assert_eq!(report.record.vectors().is_some(), has_vectors, "{what}");
            };
            recorder.drain(&mut session, report).unwrap();
            assert_eq!(seen, 1, "{what}");
        });
    }
}

/// An adopter's resume may lack the recorder's part. Nothing of its safe calls makes the processor write to address 0.
#[test]
fn records_never_go_to_address_0_whatever_a_resume_forgot() {
    for processor in processors() {
        processor.run(|kernel, mock| {
            let what = format!("{}, {}", processor.name, processor.freezes);
            let is_architectural = !processor.name.starts_with("format");
            let (address, control) = if is_architectural { (BASE, INDEX) } else { (0x600, ENABLE) };
            let (mut session, mut recorder) = kernel.take(mock);
            let right = read(mock, address);
            assert_ne!(right, 0, "{what}");
            let check = |step: &str| {
                if read(mock, control) != 0 {
                    assert_eq!(read(mock, address), right, "{what}: {step}");
                }
            };
            lose_registers(mock);
            session.reprogram(|_| ()).unwrap();
            let counter = recorder.start(&mut session, &instructions(), |_| ()).unwrap();
            assert_eq!(read(mock, address), right, "{what}");
            check("start");
            let window = session.lend_with(0, recorder.lent(|_| ()), |_, _| ()).unwrap();
            lose_registers(mock);
            window.end(0).unwrap();
            assert_eq!(read(mock, address), right, "{what}");
            check("window");
            lose_registers(mock);
            session.reprogram(|_| ()).unwrap();
            let _ = recorder.start(&mut session, &other(3), |_| ());
            check("second start");
            let _ = recorder.stop(&mut session, counter, |_| ());
            check("stop");
        });
    }
}

/// The threshold's register, and the auxiliary event of Sapphire Rapids: counted in user and kernel mode, without INT.
#[test]
fn a_suspend_loses_neither_the_latency_nor_the_auxiliary_event() {
    for processor in ["format 3", "format 4", "architectural"].into_iter().flat_map(named) {
        processor.run(|kernel, mock| {
            let what = format!("{}, {}", processor.name, processor.freezes);
            let (mut session, mut recorder) = kernel.take(mock);
            recorder.start(&mut session, &loads(50), |_| ()).unwrap();
            lose_registers(mock);
            assert_eq!(read(mock, LATENCY), 0, "{what}");
            session.reprogram(|_| ()).unwrap();
            recorder.reprogram(&mut session, |_| ()).unwrap();
            assert_eq!(read(mock, LATENCY), 50, "{what}");
            if processor.name == "format 4" {
                assert_eq!(read(mock, 0x186) & 0xFFFF_FFFF, 0x43_8203, "{what}");
            }
        });
    }
}

#[test]
fn a_recorder_without_events_clears_what_firmware_left_enabled() {
    for processor in processors().into_iter().filter(|p| p.name.starts_with("format")) {
        processor.run(|kernel, mock| {
            let (mut session, mut recorder) = kernel.take(mock);
            lose_registers(mock);
            write(mock, ENABLE, 1);
            session.reprogram(|_| ()).unwrap();
            recorder.reprogram(&mut session, |_| ()).unwrap();
            assert_eq!(read(mock, ENABLE), 0, "{}", processor.name);
        });
    }
}

/// Another owner's index says nothing about this buffer, which still has records that were reported.
#[test]
fn after_another_owners_buffer_nothing_is_reported_by_its_index() {
    for processor in named("architectural").chain(named("fragments")) {
        processor.run(|kernel, mock| {
            let what = format!("{}, {}", processor.name, processor.freezes);
            let (mut session, mut recorder) = kernel.take(mock);
            let report = |report: &PreciseReport<'_>| kernel.report(report);
            recorder.set_threshold(PreciseThreshold::NearlyFull);
            recorder.start(&mut session, &instructions(), report).unwrap();
            mock.advance(&mut happened(0, 3 * PERIOD));
            let index = read(mock, INDEX);
            recorder.drain(&mut session, report).unwrap();
            assert_eq!(kernel.reported.borrow().len(), 3, "{what}");
            lose_registers(mock);
            write(mock, BASE, 8 * PHYSICAL);
            write(mock, INDEX, index);
            session.reprogram(|_| ()).unwrap();
            recorder.reprogram(&mut session, report).unwrap();
            let dropped = kernel.memory.dropped();
            assert_eq!(
                (kernel.reported.borrow().len(), dropped),
                (3, Default::default()),
                "{what}"
            );
            mock.advance(&mut happened(0, PERIOD));
            kernel.ends(mock, session, recorder, 4, &what);
        });
    }
}

/// A register for one value of all events is free again, although the failed start could not be undone.
#[test]
fn after_a_start_that_was_not_undone_another_latency_or_condition_starts() {
    for processor in processors().into_iter().filter(has_register) {
        for [first, second] in [[loads(30), loads(31)], [frontend(0x11), frontend(0x40_0406)]] {
            for access in 1.. {
                let mut done = false;
                processor.run(|kernel, mock| {
                    let what = format!("{}, {}, {access}", processor.name, processor.freezes);
                    let (mut session, mut recorder) = kernel.take(mock);
                    mock.inject(Fault::From(access));
                    done = recorder.start(&mut session, &first, |_| ()).is_ok();
                    mock.inject(Fault::None);
                    if done {
                        return;
                    }
                    session.reprogram(|_| ()).unwrap();
                    recorder.reprogram(&mut session, |_| ()).expect(&what);
                    let enabled = mock.with_precise_records(|records| records.enabled());
                    assert_eq!(enabled, Some(0), "{what}");
                    recorder.start(&mut session, &second, |_| ()).expect(&what);
                    recorder.shut_down(&mut session, |_| ()).expect(&what);
                    session.shut_down().expect(&what);
                    nothing_is_enabled(mock, &what);
                });
                if done {
                    assert!(access > 3);
                    break;
                }
            }
        }
    }
}

/// The recorder ended the thread's event while the thread ran: the half of a period from before is of no use.
#[test]
fn a_threads_event_that_the_recorder_ended_begins_a_whole_period() {
    for processor in processors() {
        processor.run(|kernel, mock| {
            let what = format!("{}, {}", processor.name, processor.freezes);
            let (mut session, mut recorder) = kernel.take(mock);
            let report = |report: &PreciseReport<'_>| kernel.report(report);
            let mut thread = ThreadRecords::new(instructions());
            recorder.switch_in(&mut session, &mut thread, report).unwrap();
            mock.advance(&mut happened(0, PERIOD / 2));
            recorder.switch_out(&mut session, &mut thread, report).unwrap();
            recorder.switch_in(&mut session, &mut thread, report).unwrap();
            recorder.stop(&mut session, thread.counter().unwrap(), report).unwrap();
            recorder.switch_in(&mut session, &mut thread, report).unwrap();
            mock.advance(&mut happened(0, PERIOD - 1));
            assert_eq!(mock.written_records(), 0, "{what}");
            mock.advance(&mut happened(0, 1));
            assert_eq!(mock.written_records(), 1, "{what}");
            recorder.switch_out(&mut session, &mut thread, report).unwrap();
            kernel.all_reported(mock, &what);
        });
    }
}

/// An interrupt at each access of a start cannot restart the counters.
#[test]
fn a_recorded_event_that_starts_as_a_restart_fails_counts_or_the_start_says_so() {
    let mut started_so = 0;
    for access in 1..30 {
        for processor in processors() {
            let started_so = &mut started_so;
            processor.run(|kernel, mock| {
                let what = format!("{}, {}, access {access}", processor.name, processor.freezes);
                let (mut session, mut recorder) = kernel.take(mock);
                let fails: &'static _ = Box::leak(Box::new(move |mock: &Mock<'static>| {
                    mock.inject(Fault::Register(0x38F));
                    let memory = &kernel.counter_memory;
                    let _ = pmu_core::service(&kernel.source(), mock, mock, memory, |_| ());
                    mock.inject(Fault::None);
                }));
                mock.on_interrupt(fails);
                mock.interrupt_at(access);
                let started = recorder.start(&mut session, &instructions(), |_| ());
                mock.interrupt_at(0);
                let Ok(counter) = started else { return };
                *started_so += 1;
                let before = session.read_reserved(counter).unwrap();
                mock.inject_pmi(PmiFault::Lost);
                mock.advance(&mut happened(0, 7));
                let after = session.read_reserved(counter).unwrap();
                assert_eq!(after, before + 7, "{what}");
            });
        }
    }
    assert!(started_so > 0);
}
