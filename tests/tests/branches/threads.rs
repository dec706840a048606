//! Records that follow threads, and records beside lent counters.

use super::support::*;
use pmu_core::access::{RegisterAddress, RegisterBackend};
use pmu_core::branch_recording::{BranchError, BranchRecorder};
use pmu_core::branches::{BranchFilter, SavedBranches};
use pmu_tests::opened::raw;
use pmu_virt::Privilege;
use pmu_virt::branches::{FedBranch, FedBranchKind};
use pmu_virt::mock::Fault;

/// Returns the addresses of the records.
fn addresses(recorder: &mut BranchRecorder<'_, &Mock<'_>>) -> Vec<u64> {
    let found = recorder.read().unwrap().iter().map(|branch| branch.from).collect();
    recorder.restart().unwrap();
    found
}

fn call(from: u64) -> FedBranch {
    FedBranch::new(from, 0x9000, FedBranchKind::RelativeCall, Privilege::User)
}

fn back() -> FedBranch {
    FedBranch::new(0x9010, 0x1000, FedBranchKind::Return, Privilege::User)
}

#[test]
fn two_threads_never_see_each_others_branches() {
    for processor in processors() {
        let (unit, mock, records) = (processor.unit(), processor.mock(), Records::new());
        let mut recorder = BranchRecorder::take(&unit, &mock, &records).unwrap();
        recorder.start(BranchFilter::USER).unwrap();
        for thread in 0..4 {
            for number in 0..40 {
                mock.branch(&user(100 * thread + number));
            }
            let depth = usize::from(unit.depth());
            let own: Vec<u64> =
                (0..40).rev().take(depth).map(|n| user(100 * thread + n).from).collect();
            assert_eq!(addresses(&mut recorder), own, "{}", processor.name);
            recorder.switch_out::<32>(None).unwrap();
            assert!(!recorder.is_recording());
            // The next owner of the registers, such as a guest, finds nothing.
            for age in 0..u32::from(unit.depth()) {
                let registers = unit.registers();
                // SAFETY: the mock's registers are numbers.
                let from = unsafe { RegisterAddress::new(registers.from + registers.step * age) };
                assert_eq!(mock.read(from), Ok(0), "{}", processor.name);
            }
            mock.branch(&user(99));
            recorder.switch_in::<32>(None).unwrap();
            assert_eq!(addresses(&mut recorder), [], "{}", processor.name);
        }
        no_breach(&mock, processor.name);
    }
}

#[test]
fn a_call_stack_follows_its_thread() {
    for processor in processors() {
        let (unit, mock, records) = (processor.unit(), processor.mock(), Records::new());
        if !unit.offers().call_stack {
            continue;
        }
        let mut recorder = BranchRecorder::take(&unit, &mock, &records).unwrap();
        recorder.start(BranchFilter::USER.call_stack()).unwrap();
        let mut threads = [SavedBranches::<32>::new(), SavedBranches::new()];
        // More calls than there are records, of the first.
        for number in 0..40 {
            mock.branch(&call(0x10_0000 + number));
        }
        let first = addresses(&mut recorder);
        assert_eq!(first.len(), usize::from(unit.depth()));
        recorder.switch_out(Some(&mut threads[0])).unwrap();
        recorder.switch_in(Some(&threads[1])).unwrap();
        assert_eq!(addresses(&mut recorder), []);
        mock.branch(&call(0x2000));
        mock.branch(&call(0xFFFF_FFFF_8100_3000));
        recorder.switch_out(Some(&mut threads[1])).unwrap();
        recorder.switch_in(Some(&threads[0])).unwrap();
        assert_eq!(addresses(&mut recorder), first, "{}", processor.name);
        // It goes on where it was: two functions return, one is called.
        mock.branch(&back());
        mock.branch(&back());
        mock.branch(&call(0x4000));
        let mut expected = first[1..].to_vec();
        expected[0] = 0x4000;
        assert_eq!(addresses(&mut recorder)[..expected.len()], expected, "{}", processor.name);
        recorder.switch_out(Some(&mut threads[0])).unwrap();
        recorder.switch_in(Some(&threads[1])).unwrap();
        let second = [0xFFFF_FFFF_8100_3000, 0x2000];
        assert_eq!(addresses(&mut recorder), second, "{}", processor.name);
        // The sign of an address in the kernel was written as the processor demands it.
        no_breach(&mock, processor.name);
    }
}

#[test]
fn records_are_brought_back_only_where_they_were_saved() {
    let all = processors();
    let with_stack: Vec<_> =
        all.iter().filter(|processor| processor.unit().offers().call_stack).collect();
    let units: Vec<_> = with_stack.iter().map(|processor| processor.unit()).collect();
    for (from, from_unit) in with_stack.iter().zip(&units) {
        for (to, to_unit) in with_stack.iter().zip(&units) {
            let (mocks, records) = ([from.mock(), to.mock()], [Records::new(), Records::new()]);
            let mut saved = SavedBranches::<32>::new();
            let mut first = BranchRecorder::take(from_unit, &mocks[0], &records[0]).unwrap();
            first.start(BranchFilter::USER.call_stack()).unwrap();
            mocks[0].branch(&call(0x1000));
            let mut small = SavedBranches::<8>::new();
            assert_eq!(first.switch_out(Some(&mut small)), Err(BranchError::SavedElsewhere));
            assert!(first.is_recording());
            first.switch_out(Some(&mut saved)).unwrap();
            let mut second = BranchRecorder::take(to_unit, &mocks[1], &records[1]).unwrap();
            assert_eq!(second.switch_in(Some(&saved)), Err(BranchError::NotStarted));
            second.start(BranchFilter::USER.call_stack()).unwrap();
            second.switch_out::<32>(None).unwrap();
            let before = mocks[1].accesses();
            let brought = second.switch_in(Some(&saved));
            if from.name == to.name {
                assert_eq!(brought, Ok(()));
                assert_eq!(addresses(&mut second), [0x1000]);
            } else {
                assert_eq!(brought, Err(BranchError::SavedElsewhere), "{} {}", from.name, to.name);
                assert_eq!(mocks[1].accesses(), before);
            }
        }
    }
}

/// Of each access of a switch that fails for good: no record of another thread is shown, ever.
#[test]
fn a_switch_that_fails_shows_no_branch_of_another_thread() {
    for processor in processors() {
        for failing in 1..200 {
            let (unit, mock, records) = (processor.unit(), processor.mock(), Records::new());
            let mut recorder = BranchRecorder::take(&unit, &mock, &records).unwrap();
            recorder.start(BranchFilter::USER).unwrap();
            for number in 0..40 {
                mock.branch(&user(number));
            }
            mock.inject(Fault::From(failing));
            let out = recorder.switch_out::<32>(None);
            let back = recorder.switch_in::<32>(None);
            mock.inject(Fault::None);
            if out.is_ok() && back.is_ok() {
                break;
            }
            assert!(failing < 199, "{}", processor.name);
            if let Err(BranchError::StateUnknown(_)) = out {
                // It records the old thread still, and says so.
                assert!(recorder.is_recording());
                recorder.switch_out::<32>(None).unwrap();
            }
            recorder.switch_in::<32>(None).unwrap();
            assert_eq!(addresses(&mut recorder), [], "{}, {failing}", processor.name);
            recorder.shut_down().unwrap();
            no_breach(&mock, processor.name);
        }
    }
}

#[test]
fn a_borrower_finds_nothing_and_its_leavings_are_taken_away() {
    // SAFETY: the mock's registers are numbers.
    let msr = |address| unsafe { RegisterAddress::new(address) };
    for prepared in processors().iter().map(Prepared::new) {
        let (unit, name) = (prepared.unit, prepared.processor.name);
        let freezes = unit.can_freeze();
        prepared.with_samples(freezes, |mock, recorder, counters, _| {
            recorder.start(BranchFilter::USER).unwrap();
            mock.branch(&user(1));
            // A window that was forgotten, and one that ends.
            drop(counters.lend(0, |_| ()).unwrap());
            let window = counters.lend(0, |_| ()).unwrap();
            assert_eq!(recorder.start(BranchFilter::USER), Err(BranchError::Lent));
            assert_eq!(recorder.restart(), Err(BranchError::Lent));
            assert_eq!(recorder.shut_down(), Err(BranchError::Lent));
            assert_eq!(mock.with_branch_records(|records| records.is_recording()), Some(false));
            assert_eq!(mock.read(msr(unit.registers().from)), Ok(0), "{name}");
            if freezes {
                assert_eq!(mock.read(msr(0x1D9)).unwrap() >> 11 & 1, 0, "{name}");
            }
            // The borrower records calls of the kernel, and freezes.
            let others = Records::new();
            let mut guest = BranchRecorder::take(&unit, mock, &others).unwrap();
            let _ = guest.freeze_on_interrupt();
            guest.start(BranchFilter::KERNEL).unwrap();
            mock.branch(&kernel(1));
            window.end(0).unwrap();
            assert!(recorder.is_recording());
            mock.branch(&kernel(2));
            mock.branch(&user(2));
            let found: Vec<u64> =
                recorder.read().unwrap().iter().map(|branch| branch.from).collect();
            assert_eq!(found, [user(2).from], "{name}");
            if freezes {
                assert_eq!(mock.read(msr(0x1D9)).unwrap() >> 11 & 1, 1, "{name}");
            }
            recorder.shut_down().unwrap();
            no_breach(mock, name);
        });
    }
}

#[test]
fn a_call_stack_outlives_a_borrower() {
    for processor in processors() {
        if !processor.unit().offers().call_stack {
            continue;
        }
        with_samples(&processor, false, |mock, recorder, counters, _| {
            recorder.start(BranchFilter::USER.call_stack()).unwrap();
            mock.branch(&call(0x1000));
            mock.branch(&call(0x2000));
            counters.lend(0, |_| ()).unwrap().end(0).unwrap();
            mock.branch(&call(0x3000));
            assert_eq!(addresses(recorder), [0x3000, 0x2000, 0x1000], "{}", processor.name);
            // A suspend, in which the registers lose their contents.
            counters.suspend(0, |_| ()).unwrap();
            assert_eq!(recorder.restart(), Err(BranchError::Lent));
            mock.lose_registers();
            counters.resume(0, |_| ()).unwrap();
            mock.branch(&call(0x4000));
            let expected = [0x4000, 0x3000, 0x2000, 0x1000];
            assert_eq!(addresses(recorder), expected, "{}", processor.name);
            no_breach(mock, processor.name);
        });
    }
}

/// A thread's call stack and filter, where the registers lose their contents while no thread is recorded.
#[test]
fn a_call_stack_that_was_switched_out_outlives_a_suspend() {
    for processor in processors() {
        if !processor.unit().offers().call_stack {
            continue;
        }
        with_samples(&processor, false, |mock, recorder, counters, _| {
            recorder.start(BranchFilter::USER.call_stack()).unwrap();
            mock.branch(&call(0x1000));
            let mut saved = SavedBranches::<32>::new();
            recorder.switch_out(Some(&mut saved)).unwrap();
            counters.suspend(0, |_| ()).unwrap();
            mock.lose_registers();
            counters.resume(0, |_| ()).unwrap();
            assert!(!is_recording(mock), "{}", processor.name);
            recorder.switch_in(Some(&saved)).unwrap();
            mock.branch(&kernel(1));
            mock.branch(&user(2));
            mock.branch(&call(0x2000));
            assert_eq!(addresses(recorder), [0x2000, 0x1000], "{}", processor.name);
            no_breach(mock, processor.name);
        });
    }
}

/// Neither an event that comes or goes, nor a switch of the session's threads, changes a recorder's records.
#[test]
fn the_records_of_a_stopped_recorder_outlast_other_events_and_threads() {
    for processor in processors() {
        with_samples(&processor, false, |mock, recorder, counters, _| {
            mock.branch(&user(1));
            recorder.stop().unwrap();
            let other = counters.open(&processor.counters(), &[raw(2).every(100_000)]).unwrap();
            counters.enable(other, 0).unwrap();
            counters.switch_out(&mut [], 1, |_| ()).unwrap();
            counters.close(other, 2).unwrap();
            assert_eq!(addresses(recorder), [user(1).from], "{}", processor.name);
            no_breach(mock, processor.name);
        });
    }
}
