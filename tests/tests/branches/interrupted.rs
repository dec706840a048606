//! Faults and interrupts at each access.

use super::platforms::Scene;
use super::support::*;
use core::cell::RefCell;
use pmu_core::access::{RegisterAddress, RegisterBackend};
use pmu_core::branch_recording::{BranchError, BranchRecorder};
use pmu_core::branches::{BranchFilter, SavedBranches};
use pmu_tests::opened::happened;
use pmu_virt::mock::Fault;

/// An operation of a recorder that records, or did.
type Operation = (&'static str, fn(&mut Recorder<'_, '_>) -> Result<(), BranchError>);

const OPERATIONS: [Operation; 9] = [
    ("start", |recorder| recorder.start(BranchFilter::KERNEL).map(|_| ())),
    ("freeze", |recorder| match recorder.freeze_on_interrupt() {
        Err(BranchError::FreezeUnsupported) => Ok(()),
        done => done,
    }),
    ("stop", |recorder| recorder.stop()),
    ("restart", |recorder| recorder.stop().and_then(|()| recorder.restart())),
    ("read", |recorder| recorder.read().map(|_| ())),
    ("clear", |recorder| recorder.clear()),
    ("switch out", |recorder| recorder.switch_out(Some(&mut SavedBranches::<32>::new()))),
    ("switch in", |recorder| recorder.switch_in(Some(&SavedBranches::<32>::new()))),
    ("shut down", |recorder| recorder.shut_down()),
];

#[test]
fn an_operation_that_fails_says_whether_the_processor_records() {
    for processor in processors() {
        let unit = processor.unit();
        for (name, operation) in OPERATIONS {
            let mut failing = 1;
            loop {
                let (mock, records) = (processor.mock(), Records::new());
                let mut recorder = BranchRecorder::take(&unit, &mock, &records).unwrap();
                recorder.start(BranchFilter::USER).unwrap();
                for number in 0..40 {
                    mock.branch(&user(number));
                }
                mock.inject(Fault::From(failing));
                let done = operation(&mut recorder);
                mock.inject(Fault::None);
                let at = format!("{}, {name}, access {failing}: {done:?}", processor.name);
                match done {
                    Ok(()) => {
                        // The retry of a fault that does not stay.
                        assert!(failing > 1 || name == "freeze", "{at}");
                        break;
                    }
                    // Freezing says nothing of the recording.
                    Err(BranchError::NotRecording(_)) if name == "freeze" => {}
                    Err(BranchError::NotRecording(_)) => {
                        assert!(!is_recording(&mock) && !recorder.is_recording(), "{at}");
                    }
                    Err(BranchError::StateUnknown(_)) => {
                        // Presumed.
                        assert!(recorder.is_recording(), "{at}");
                    }
                    Err(other) => panic!("{at}: {other}"),
                }
                // Nothing half done stays: it can be started anew, and ended.
                recorder.start(BranchFilter::USER).unwrap();
                mock.branch(&user(50));
                let found: Vec<_> = recorder.read().unwrap().iter().collect();
                assert_eq!(found, [processor.told(&user(50))], "{at}");
                recorder.shut_down().unwrap();
                assert!(!is_recording(&mock), "{at}");
                no_breach(&mock, &at);
                failing += 1;
            }
        }
    }
}

#[test]
fn a_fault_that_does_not_stay_changes_nothing() {
    for processor in processors() {
        let unit = processor.unit();
        for (name, operation) in OPERATIONS {
            for failing in 1..400 {
                let (mock, records) = (processor.mock(), Records::new());
                let mut recorder = BranchRecorder::take(&unit, &mock, &records).unwrap();
                recorder.start(BranchFilter::USER).unwrap();
                let before = mock.accesses().total();
                mock.inject(Fault::At(failing));
                assert_eq!(operation(&mut recorder), Ok(()), "{}, {name}", processor.name);
                if mock.accesses().total() - before < failing {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_take_that_fails_leaves_the_memory_free() {
    for processor in processors() {
        let unit = processor.unit();
        for failing in 1..400 {
            let (mock, records) = (processor.mock(), Records::new());
            mock.inject(Fault::From(failing));
            let taken = BranchRecorder::take(&unit, &mock, &records).map(|_| ());
            mock.inject(Fault::None);
            if taken.is_ok() {
                assert!(failing > 1);
                break;
            }
            assert!(matches!(taken, Err(BranchError::NotRecording(_))), "{taken:?}");
            BranchRecorder::take(&unit, &mock, &records).unwrap();
        }
    }
}

/// The counters of a processor, whose interrupt is served with its branch records while `act` works with a recorder.
fn with_counters(
    processor: &Processor,
    freezing: bool,
    act: impl FnOnce(&Mock<'_>, &mut Recorder<'_, '_>, &dyn Fn() -> u32),
) {
    Scene::new(processor).with_counters(freezing, act);
}

#[test]
fn an_interrupt_at_each_access_leaves_the_recording_as_the_task_wants_it() {
    // SAFETY: the mock's registers are numbers.
    let msr = |address| unsafe { RegisterAddress::new(address) };
    for processor in processors() {
        for freezing in [false, processor.unit().can_freeze()] {
            for (name, operation) in OPERATIONS {
                for access in 1..400 {
                    let mut ended = false;
                    with_counters(&processor, freezing, |mock, recorder, overflows| {
                        mock.branch(&user(1));
                        let before = mock.accesses().total();
                        mock.interrupt_at(access);
                        operation(recorder).unwrap();
                        ended = mock.accesses().total() - before < access;
                        mock.interrupt_at(0);
                        let at = format!("{}, {freezing}, {name}, {access}", processor.name);
                        if !ended {
                            assert_eq!(overflows(), 1, "{at}");
                        }
                        let records = !matches!(name, "stop" | "read" | "switch out" | "shut down");
                        assert_eq!(recorder.is_recording(), records, "{at}");
                        if processor.configuration.vendor()
                            == pmu_virt::configuration::Vendor::Intel
                        {
                            // Frozen by status, or stopped by the freeze: none stays.
                            let status = mock.read(msr(0x38E)).unwrap();
                            assert_eq!(status >> 58 & 1, 0, "{at}");
                        }
                        if records {
                            recorder.clear().unwrap();
                            let branch = if name == "start" { kernel(7) } else { user(7) };
                            mock.branch(&branch);
                            let found: Vec<_> = recorder.read().unwrap().iter().collect();
                            assert_eq!(found, [processor.told(&branch)], "{at}");
                        } else {
                            assert!(!is_recording(mock), "{at}");
                        }
                        no_breach(mock, &at);
                    });
                    if ended {
                        break;
                    }
                }
            }
        }
    }
}

#[test]
fn a_fault_at_each_access_of_the_interrupt_loses_no_overflow() {
    for processor in processors() {
        for freezing in [false, processor.unit().can_freeze()] {
            for stays in [false, true] {
                for failing in 1..400 {
                    let mut ended = false;
                    with_counters(&processor, freezing, |mock, recorder, overflows| {
                        for number in 0..40 {
                            mock.branch(&user(number));
                        }
                        let registers = *processor.unit().registers();
                        let before = mock.accesses().total();
                        // Of the branch records' registers alone, if it stays.
                        let record = registers.from + registers.step * (failing - 1);
                        let fault =
                            if stays { Fault::Register(record) } else { Fault::At(failing) };
                        mock.inject(fault);
                        mock.advance(&mut happened(3, 100_000));
                        mock.inject(Fault::None);
                        let at = format!("{}, {freezing}, {failing}, {stays}", processor.name);
                        assert_eq!(overflows(), 1, "{at}");
                        ended = if stays {
                            failing >= u32::from(processor.unit().depth())
                        } else {
                            mock.accesses().total() - before < failing
                        };
                        // The next one, without faults, is whole again.
                        assert!(recorder.is_recording(), "{at}");
                        mock.advance(&mut happened(3, 100_000));
                        assert_eq!(overflows(), 2, "{at}");
                        assert!(is_recording(mock), "{at}");
                        no_breach(mock, &at);
                    });
                    if ended {
                        break;
                    }
                }
            }
        }
    }
}

/// A recording that the interrupt could not start again is told, and started by a task.
#[test]
fn a_recording_that_an_interrupt_lost_is_told_and_can_go_on() {
    for processor in processors() {
        if processor.unit().can_freeze()
            && processor.configuration.vendor() == pmu_virt::configuration::Vendor::Amd
        {
            continue;
        }
        let lost = RefCell::new(0);
        for failing in 1..200 {
            with_counters(&processor, false, |mock, recorder, overflows| {
                mock.inject(Fault::From(failing));
                mock.advance(&mut happened(3, 100_000));
                mock.inject(Fault::None);
                if !recorder.is_recording() {
                    *lost.borrow_mut() += 1;
                    recorder.restart().unwrap();
                    assert!(recorder.is_recording() && is_recording(mock));
                }
                let _ = overflows;
                recorder.shut_down().unwrap();
                assert!(!is_recording(mock));
            });
        }
        assert!(*lost.borrow() > 0, "{}", processor.name);
    }
}
