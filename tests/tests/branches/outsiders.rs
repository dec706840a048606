//! Branches of another thread are never shown, and what others do to the registers is overcome.

use super::support::*;
use core::cell::RefCell;
use pmu_core::access::{RegisterAddress, RegisterBackend};
use pmu_core::branch_recording::{BranchError, BranchRecorder};
use pmu_core::branches::{BranchFilter, BranchFreeze, Branches};
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::{CounterSession, CounterSet, Events, service};
use pmu_tests::opened::{happened, raw};
use pmu_virt::GuestFacility;
use pmu_virt::branches::BranchConfiguration;
use pmu_virt::mock::Fault;

#[test]
fn a_thread_whose_predecessor_was_stopped_or_read_sees_none_of_its_branches() {
    type Operation = fn(&mut Recorder<'_, '_>);
    let before: [(&str, Operation); 3] = [
        ("stop", |recorder| recorder.stop().unwrap()),
        ("read", |recorder| drop(addresses(recorder))),
        ("nothing", |_| ()),
    ];
    for processor in processors() {
        for (name, operation) in before {
            let (unit, mock, records) = (processor.unit(), processor.mock(), Records::new());
            let mut recorder = BranchRecorder::take(&unit, &mock, &records).unwrap();
            recorder.start(BranchFilter::USER).unwrap();
            // With a register for the depth that does not stop the recording: the branch comes afterwards.
            recorder.clear().unwrap();
            mock.branch(&user(1));
            operation(&mut recorder);
            recorder.switch_in::<32>(None).unwrap();
            assert_eq!(addresses(&mut recorder), [], "{}, {name}", processor.name);
            no_breach(&mock, processor.name);
        }
    }
}

#[test]
fn a_thread_whose_predecessors_recording_was_lost_sees_none_of_its_branches() {
    for processor in processors() {
        let lost = RefCell::new(0);
        for failing in 1..200 {
            with_samples(&processor, false, |mock, recorder, _, _| {
                mock.branch(&user(1));
                mock.inject(Fault::From(failing));
                mock.advance(&mut happened(3, 100_000));
                mock.inject(Fault::None);
                if !recorder.is_recording() {
                    *lost.borrow_mut() += 1;
                    recorder.switch_in::<32>(None).unwrap();
                    assert_eq!(addresses(recorder), [], "{}, {failing}", processor.name);
                }
            });
        }
        assert!(*lost.borrow() > 0, "{}", processor.name);
    }
}

#[test]
fn a_lost_recording_that_an_interrupt_starts_again_is_recording() {
    for processor in processors() {
        let again = RefCell::new(0);
        for failing in 1..200 {
            for clears in [false, true] {
                with_samples(&processor, false, |mock, recorder, counters, _| {
                    mock.inject(Fault::From(failing));
                    mock.advance(&mut happened(3, 100_000));
                    mock.inject(Fault::None);
                    if recorder.is_recording() || is_recording(mock) {
                        return;
                    }
                    counters.reprogram(|_| ()).unwrap();
                    if clears {
                        recorder.clear().unwrap();
                    }
                    assert_eq!(is_recording(mock), recorder.is_recording());
                    mock.advance(&mut happened(3, 200_000));
                    let at = format!("{}, {failing}, {clears}", processor.name);
                    assert_eq!(is_recording(mock), recorder.is_recording(), "{at}");
                    *again.borrow_mut() += u32::from(is_recording(mock));
                });
            }
        }
        assert!(*again.borrow() > 0, "{}", processor.name);
    }
}

/// Of each access of a switch or clear that fails for good: no sample shows another thread's branches.
#[test]
fn a_sample_after_a_switch_that_fails_has_no_branch_of_another_thread() {
    type Switch = fn(&mut Recorder<'_, '_>) -> bool;
    let switches: [(&str, Switch); 3] = [
        ("clear", |recorder| recorder.clear().is_ok()),
        ("switch in", |recorder| recorder.switch_in::<32>(None).is_ok()),
        ("switch out, in", |recorder| {
            let out = recorder.switch_out::<32>(None);
            recorder.switch_in::<32>(None).is_ok() && out.is_ok()
        }),
    ];
    for processor in processors() {
        for freezing in [false, processor.unit().can_freeze()] {
            for (name, switch) in switches {
                for failing in 1..200 {
                    let mut ended = false;
                    with_samples(&processor, freezing, |mock, recorder, _, samples| {
                        mock.branch(&user(1));
                        mock.inject(Fault::From(failing));
                        ended = switch(recorder);
                        mock.inject(Fault::None);
                        if ended {
                            return;
                        }
                        mock.branch(&user(2));
                        mock.advance(&mut happened(3, 100_000));
                        let at = format!("{}, {freezing}, {name}, {failing}", processor.name);
                        let of_another =
                            samples.borrow().taken[0].addresses().contains(&user(1).from);
                        assert!(!of_another, "{at}");
                        // After a restart the samples are whole.
                        recorder.restart().unwrap();
                        mock.branch(&user(3));
                        mock.advance(&mut happened(3, 100_000));
                        let newest = samples.borrow().taken[1].addresses().first().copied();
                        assert_eq!(newest, Some(user(3).from), "{at}");
                        assert!(!addresses(recorder).contains(&user(1).from), "{at}");
                        no_breach(mock, &at);
                    });
                    if ended {
                        break;
                    }
                    assert!(failing < 199, "{}, {name}", processor.name);
                }
            }
        }
    }
}

/// Another owner's counter interrupts while no session has the counters, so no service releases the records.
#[test]
fn records_that_no_service_released_are_released_as_the_recording_goes_on() {
    type Operation = fn(&mut Recorder<'_, '_>) -> Result<(), BranchError>;
    let operations: [(&str, Operation); 5] = [
        ("restart", |recorder| recorder.restart()),
        ("read, restart", |recorder| {
            recorder.read()?;
            recorder.restart()
        }),
        ("start", |recorder| recorder.start(BranchFilter::ALL).map(|_| ())),
        ("switch out, in", |recorder| {
            recorder.switch_out::<32>(None)?;
            recorder.switch_in::<32>(None)
        }),
        ("reprogram", |recorder| recorder.reprogram()),
    ];
    for processor in processors().into_iter().filter(|processor| processor.unit().can_freeze()) {
        for (name, operation) in operations {
            with_samples(&processor, true, |mock, recorder, counters, _| {
                counters.shut_down().unwrap();
                // The recording ended with the session.
                assert!(!is_recording(mock) && !recorder.is_recording());
                recorder.restart().unwrap();
                mock.branch(&user(1));
                mock.with_branch_records(GuestFacility::pmi_raised);
                assert!(!is_recording(mock));
                mock.branch(&user(2));
                operation(recorder).unwrap();
                assert!(is_recording(mock), "{}, {name}", processor.name);
                mock.branch(&user(3));
                let newest = addresses(recorder)[0];
                assert_eq!(newest, user(3).from, "{}, {name}", processor.name);
                no_breach(mock, processor.name);
            });
        }
    }
}

#[test]
fn a_recording_has_its_filter_and_freezes_again_after_a_suspend() {
    type Operation = fn(&mut Recorder<'_, '_>) -> Result<(), BranchError>;
    let operations: [(&str, Operation); 4] = [
        ("reprogram", |recorder| recorder.reprogram()),
        ("start", |recorder| recorder.start(BranchFilter::USER).map(|_| ())),
        ("stop, reprogram, restart", |recorder| {
            recorder.stop()?;
            recorder.reprogram()?;
            assert!(!recorder.is_recording());
            recorder.restart()
        }),
        ("freeze, start", |recorder| {
            let _ = recorder.freeze_on_interrupt();
            recorder.start(BranchFilter::USER).map(|_| ())
        }),
    ];
    // SAFETY: the mock's registers are numbers.
    let msr = |address| unsafe { RegisterAddress::new(address) };
    for processor in processors() {
        let freezing = processor.unit().can_freeze();
        for (name, operation) in operations {
            with_samples(&processor, freezing, |mock, recorder, counters, samples| {
                recorder.start(BranchFilter::USER).unwrap();
                // The power is lost: DEBUGCTL, and the filter or the enabling register.
                mock.write(msr(0x1D9), 0).unwrap();
                let lost: &[u32] = match processor.branches {
                    _ if processor.is_amd() => &[0xC000_010F, 0xC000_010E],
                    BranchConfiguration::Legacy { .. } => &[0x1C8],
                    _ => &[0x14CE],
                };
                lost.iter().for_each(|address| mock.write(msr(*address), 0).unwrap());
                counters.reprogram(|_| ()).unwrap();
                operation(recorder).unwrap();
                mock.branch(&user(1));
                mock.branch(&kernel(1));
                mock.advance(&mut happened(3, 100_000));
                let samples = samples.borrow();
                let sample = (samples.last().addresses(), samples.last().is_frozen);
                assert_eq!(sample, (vec![user(1).from], freezing), "{}, {name}", processor.name);
                no_breach(mock, processor.name);
            });
        }
    }
}

#[test]
fn records_that_anothers_freeze_bit_froze_are_released() {
    // SAFETY: the mock's registers are numbers.
    let debug_control = unsafe { RegisterAddress::new(0x1D9) };
    for processor in processors().into_iter().filter(|processor| processor.unit().can_freeze()) {
        with_samples(&processor, false, |mock, recorder, _, samples| {
            let before = mock.read(debug_control).unwrap();
            mock.write(debug_control, before | 1 << 11).unwrap();
            for round in 1..4 {
                mock.branch(&user(round));
                mock.advance(&mut happened(3, 100_000));
                let newest = samples.borrow().last().addresses()[0];
                assert_eq!(newest, user(round).from, "{}, {round}", processor.name);
            }
            mock.branch(&user(50));
            assert_eq!(addresses(recorder)[0], user(50).from, "{}", processor.name);
            no_breach(mock, processor.name);
        });
    }
}

/// Another owner's counter interrupts while no session has the counters: no task has to notice it.
#[test]
fn records_that_an_interrupt_froze_while_no_counter_is_served_are_released_by_that_interrupt() {
    for processor in processors().into_iter().filter(|processor| processor.unit().can_freeze()) {
        with_samples(&processor, true, |mock, recorder, counters, samples| {
            counters.shut_down().unwrap();
            recorder.restart().unwrap();
            for round in 1..4 {
                mock.branch(&user(round));
                mock.with_branch_records(GuestFacility::pmi_raised);
                assert!(!is_recording(mock), "{}", processor.name);
                mock.interrupt_from_elsewhere();
                assert!(is_recording(mock), "{}, {round}", processor.name);
                assert!(recorder.is_recording());
            }
            mock.branch(&user(50));
            let expected = [50, 3, 2, 1].map(|round| user(round).from);
            assert_eq!(addresses(recorder), expected, "{}", processor.name);
            assert_eq!(samples.borrow().taken, [], "{}", processor.name);
            no_breach(mock, processor.name);
        });
    }
}

/// A handler that looks up the wrong description, as of another core type: its registers may not exist.
#[test]
fn the_interrupt_accesses_no_register_of_another_processors_branch_records() {
    let all = processors();
    for processor in &all {
        let (unit, counter_unit) = (processor.unit(), processor.counters());
        for other in &all {
            let other_unit = other.unit();
            let (mock, records) = (processor.mock(), Records::new());
            let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
            let table = EventTable::<[EventEntry; 1]>::new();
            let source = Events::new(&counter_unit, &table as &EventTable);
            let mut counters =
                CounterSession::take(source, &counter_unit, CounterSet::ALL, &mock, &memory)
                    .unwrap();
            let event = counters.open(&counter_unit, &[raw(3).every(100_000)]).unwrap();
            counters.enable(event, 0).unwrap();
            let mut recorder = BranchRecorder::take(&unit, &mock, &records).unwrap();
            recorder.start(BranchFilter::ALL).unwrap();
            mock.branch(&user(1));
            let at = format!("{} as {}", processor.name, other.name);
            let found = RefCell::new(vec![]);
            let handler = |mock: &Mock<'_>| {
                let source = source.with(Branches::new(&other_unit, &records));
                let served = service(&source, mock, &memory, |sample| {
                    let branches = sample.facility().unwrap();
                    found.borrow_mut().extend(branches.iter().map(|branch| branch.from));
                });
                assert_eq!(served.unwrap().overflows, 1, "{at}");
            };
            mock.on_interrupt(&handler);
            let before = mock.accesses().total();
            mock.advance(&mut happened(3, 100_000));
            let accesses = mock.accesses().total() - before;
            no_breach(&mock, &at);
            if processor.name == other.name {
                assert_eq!(found.take(), [user(1).from], "{at}");
                continue;
            }
            assert_eq!(found.take(), [], "{at}");
            let without = {
                let handler = |mock: &Mock<'_>| {
                    service(&source, mock, &memory, |_| ()).unwrap();
                };
                mock.on_interrupt(&handler);
                let before = mock.accesses().total();
                mock.advance(&mut happened(3, 100_000));
                mock.accesses().total() - before
            };
            assert_eq!(accesses, without, "{at}");
        }
    }
}

/// As below a hypervisor that has the records, but no PMU: DebugCtl, and the register that acknowledges.
#[test]
fn records_whose_freezing_alone_does_not_answer_are_taken_and_do_not_freeze() {
    for processor in processors().into_iter().filter(|processor| processor.unit().can_freeze()) {
        let unit = processor.unit();
        let BranchFreeze { bit: _, status } = unit.registers().freeze.unwrap();
        let is_legacy = matches!(processor.branches, BranchConfiguration::Legacy { .. });
        let debug_control = (!is_legacy).then_some(0x1D9);
        for register in status.map(|(_, register)| register.get()).into_iter().chain(debug_control)
        {
            let at = format!("{}, {register:#X}", processor.name);
            let (mock, records) = (processor.mock(), Records::new());
            mock.inject(Fault::Register(register));
            let mut recorder = BranchRecorder::take(&unit, &mock, &records)
                .unwrap_or_else(|error| panic!("{at}: {error}"));
            let refused = recorder.freeze_on_interrupt();
            let refused = matches!(
                refused,
                Err(BranchError::NotRecording(_) | BranchError::FreezeUnsupported)
            );
            assert!(refused, "{at}");
            recorder.start(BranchFilter::ALL).unwrap();
            mock.branch(&user(1));
            assert_eq!(addresses(&mut recorder), [user(1).from], "{at}");
            recorder.restart().unwrap();
            recorder.reprogram().unwrap();
            recorder.switch_out::<32>(None).unwrap();
            recorder.switch_in::<32>(None).unwrap();
            recorder.shut_down().unwrap();
            assert!(!is_recording(&mock), "{at}");
            // The register answers again.
            mock.inject(Fault::None);
            let mut recorder = BranchRecorder::take(&unit, &mock, &records).unwrap();
            recorder.freeze_on_interrupt().unwrap();
            recorder.start(BranchFilter::ALL).unwrap();
            mock.with_branch_records(GuestFacility::pmi_raised);
            assert!(!is_recording(&mock), "{at}: frozen");
        }
    }
}
