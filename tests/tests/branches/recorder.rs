//! The recorder, in a task.

use super::support::*;
use pmu_core::access::{RegisterAddress, RegisterBackend};
use pmu_core::branch_recording::{BranchError, BranchRecorder};
use pmu_core::branches::{
    Branch, BranchEnable, BranchFilter, BranchKind, BranchKinds, BranchMemory, BranchSlot,
};
use pmu_virt::branches::{FedBranch, FedBranchKind};
use pmu_virt::mock::{Deviation, Fault};
use pmu_virt::{GuestFacility, Privilege};

/// Returns the branches of a task.
fn read(recorder: &mut BranchRecorder<'_, &Mock<'_>>) -> Vec<Branch> {
    recorder.read().unwrap().iter().collect()
}

#[test]
fn a_task_reads_exactly_the_last_branches_the_newest_first() {
    for processor in processors() {
        let (unit, mock, records) = (processor.unit(), processor.mock(), Records::new());
        let depth = u64::from(unit.depth());
        let mut recorder = BranchRecorder::take(&unit, &mock, &records).unwrap();
        for taken in [0, 1, depth - 1, depth, depth + 3] {
            assert_eq!(recorder.start(BranchFilter::USER), Ok(BranchFilter::USER));
            for number in 0..taken {
                mock.branch(&user(number));
                // Of the kernel: not recorded.
                mock.branch(&kernel(number));
            }
            let expected: Vec<Branch> = (taken.saturating_sub(depth)..taken)
                .rev()
                .map(|number| processor.told(&user(number)))
                .collect();
            assert_eq!(read(&mut recorder), expected, "{}, {taken} branches", processor.name);
            // The recording is stopped, and the records stay.
            mock.branch(&user(99));
            assert_eq!(read(&mut recorder), expected, "{}", processor.name);
            recorder.restart().unwrap();
            mock.branch(&user(100));
            assert_eq!(read(&mut recorder)[0], processor.told(&user(100)), "{}", processor.name);
        }
        recorder.shut_down().unwrap();
        assert_eq!(recorder.start(BranchFilter::USER), Err(BranchError::ShutDown));
        no_breach(&mock, processor.name);
        assert_eq!(mock.with_branch_records(|records| records.is_recording()), Some(false));
    }
}

#[test]
fn each_kind_of_branch_is_recorded_where_its_filter_asks_for_it() {
    let kinds = [
        (FedBranchKind::Conditional, BranchKind::Conditional),
        (FedBranchKind::RelativeJump, BranchKind::DirectJump),
        (FedBranchKind::IndirectJump, BranchKind::IndirectJump),
        (FedBranchKind::RelativeCall, BranchKind::DirectCall),
        (FedBranchKind::IndirectCall, BranchKind::IndirectCall),
        (FedBranchKind::Return, BranchKind::Return),
        (FedBranchKind::Far, BranchKind::Other),
    ];
    for processor in processors() {
        let (unit, mock, records) = (processor.unit(), processor.mock(), Records::new());
        let mut recorder = BranchRecorder::take(&unit, &mock, &records).unwrap();
        for (_, wanted) in kinds {
            for levels in [BranchFilter::USER, BranchFilter::KERNEL, BranchFilter::ALL] {
                let filter = levels.only(wanted.only());
                let recorded = recorder.start(filter).unwrap();
                assert!(recorded.contains(filter), "{}", processor.name);
                let mut expected = vec![];
                for (number, (fed, kind)) in kinds.into_iter().enumerate() {
                    for privilege in [Privilege::User, Privilege::Kernel] {
                        let from = 0x1000 + 16 * number as u64;
                        mock.branch(&FedBranch::new(from, 0x9000, fed, privilege));
                        let at_level = match privilege {
                            Privilege::User => recorded.user(),
                            Privilege::Kernel => recorded.kernel(),
                        };
                        if recorded.has(kind) && at_level {
                            expected.insert(0, from);
                        }
                    }
                }
                let found: Vec<u64> =
                    read(&mut recorder).iter().map(|branch| branch.from).collect();
                assert_eq!(found, expected, "{}: {filter:?}", processor.name);
            }
        }
        no_breach(&mock, processor.name);
    }
}

#[test]
fn a_call_stack_has_the_callers_and_is_refused_where_the_processor_keeps_none() {
    for processor in processors() {
        let (unit, mock, records) = (processor.unit(), processor.mock(), Records::new());
        let mut recorder = BranchRecorder::take(&unit, &mock, &records).unwrap();
        let filter = BranchFilter::USER.call_stack();
        // Freezing is asked for, and is not together with a call stack: the strict mock would tell.
        let _ = recorder.freeze_on_interrupt();
        let started = recorder.start(filter);
        if !unit.offers().call_stack {
            assert_eq!(started, Err(BranchError::FilterUnsupported(filter)), "{}", processor.name);
            assert!(!recorder.is_recording());
            continue;
        }
        assert_eq!(started, Ok(filter), "{}", processor.name);
        let call =
            |from| FedBranch::new(from, 0x9000, FedBranchKind::RelativeCall, Privilege::User);
        let back = FedBranch::new(0x9010, 0x1000, FedBranchKind::Return, Privilege::User);
        for from in [0x1000, 0x2000, 0x3000] {
            mock.branch(&call(from));
        }
        mock.branch(&back);
        mock.branch(&user(1));
        mock.branch(&call(0x4000));
        let callers: Vec<u64> = read(&mut recorder).iter().map(|branch| branch.from).collect();
        assert_eq!(callers, [0x4000, 0x2000, 0x1000], "{}", processor.name);
        // Another filter freezes again.
        recorder.start(BranchFilter::USER).unwrap();
        no_breach(&mock, processor.name);
    }
}

#[test]
fn what_a_predecessor_left_recording_is_ended_and_its_records_are_not_shown() {
    // SAFETY: the mock's registers are numbers.
    let msr = |address| unsafe { RegisterAddress::new(address) };
    for processor in processors() {
        let (unit, mock, records) = (processor.unit(), processor.mock(), Records::new());
        let mut old = BranchRecorder::take(&unit, &mock, &records).unwrap();
        let _ = old.freeze_on_interrupt();
        old.start(BranchFilter::ALL).unwrap();
        mock.branch(&user(1));
        // An interrupt froze them, and nothing served it.
        mock.with_branch_records(|records| records.pmi_raised());
        // Lost with its task; the next kernel has other memory.
        let records = Records::new();
        let mut new = BranchRecorder::take(&unit, &mock, &records).unwrap();
        assert_eq!(mock.with_branch_records(|records| records.is_recording()), Some(false));
        let debug_control = mock.read(msr(0x1D9)).unwrap_or(0);
        assert_eq!(debug_control & (1 << 11 | 1), 0, "{}", processor.name);
        assert_eq!(new.restart(), Err(BranchError::NotStarted));
        mock.branch(&user(2));
        assert_eq!(read(&mut new), [], "{}", processor.name);
        new.start(BranchFilter::USER).unwrap();
        mock.branch(&user(3));
        assert_eq!(read(&mut new), [processor.told(&user(3))], "{}: still frozen", processor.name);
        no_breach(&mock, processor.name);
    }
}

#[test]
fn the_records_of_a_processor_are_taken_once() {
    let processor = processors()[0];
    let (unit, mock, records) = (processor.unit(), processor.mock(), Records::new());
    let small = BranchMemory::<[BranchSlot; 31]>::new();
    let before = mock.accesses();
    let short = BranchRecorder::take(&unit, &mock, &small).map(|_| ()).unwrap_err();
    assert_eq!(short, BranchError::InsufficientMemory { needed: 32, lent: 31 });
    assert_eq!(mock.accesses(), before);
    let mut first = BranchRecorder::take(&unit, &mock, &records).unwrap();
    let before = mock.accesses();
    let second = BranchRecorder::take(&unit, &mock, &records).map(|_| ()).unwrap_err();
    assert_eq!((second, mock.accesses()), (BranchError::MemoryInUse, before));
    first.shut_down().unwrap();
    let mut third = BranchRecorder::take(&unit, &mock, &records).unwrap();
    third.start(BranchFilter::USER).unwrap();
    let _ = third;
    // SAFETY: the recorder is gone.
    unsafe { records.reclaim() };
    BranchRecorder::take(&unit, &mock, &records).unwrap().shut_down().unwrap();
}

#[test]
fn records_that_do_not_answer_are_refused_and_nothing_stays_taken() {
    for processor in processors() {
        let (unit, mock, records) = (processor.unit(), processor.mock(), Records::new());
        let registers = unit.registers();
        let last = registers.to.unwrap() + registers.step * u32::from(unit.depth() - 1);
        mock.inject(Fault::Ignored(last));
        let refused = BranchRecorder::take(&unit, &mock, &records).map(|_| ()).unwrap_err();
        assert_eq!(refused, BranchError::Unresponsive, "{}", processor.name);
        mock.inject(Fault::Register(last));
        let refused = BranchRecorder::take(&unit, &mock, &records);
        assert!(matches!(refused, Err(BranchError::NotRecording(_))), "{}", processor.name);
        // A hypervisor that drops the bit that enables them.
        if let BranchEnable::Bits { bits, .. } = registers.enable {
            mock.inject(Fault::Ignored(bits.read().register()));
            let refused = BranchRecorder::take(&unit, &mock, &records).map(|_| ()).unwrap_err();
            assert_eq!(refused, BranchError::Unresponsive, "{}", processor.name);
        }
        mock.inject(Fault::None);
        BranchRecorder::take(&unit, &mock, &records).unwrap();
    }
}

#[test]
fn clearing_forgets_all_branches_and_the_recording_goes_on() {
    for processor in processors() {
        let (unit, mock, records) = (processor.unit(), processor.mock(), Records::new());
        let mut recorder = BranchRecorder::take(&unit, &mock, &records).unwrap();
        recorder.start(BranchFilter::USER).unwrap();
        for number in 0..40 {
            mock.branch(&user(number));
        }
        recorder.clear().unwrap();
        assert!(recorder.is_recording());
        mock.branch(&user(50));
        assert_eq!(read(&mut recorder), [processor.told(&user(50))], "{}", processor.name);
        recorder.clear().unwrap();
        assert_eq!(read(&mut recorder), [], "{}", processor.name);
        no_breach(&mock, processor.name);
    }
}

#[test]
fn freezing_is_refused_where_the_processor_does_not_freeze() {
    for processor in processors() {
        let (unit, mock, records) = (processor.unit(), processor.mock(), Records::new());
        let mut recorder = BranchRecorder::take(&unit, &mock, &records).unwrap();
        let freeze = recorder.freeze_on_interrupt();
        if processor.name == "AMD, never freezing" {
            assert_eq!(freeze, Err(BranchError::FreezeUnsupported));
            assert!(!unit.can_freeze());
        } else {
            assert_eq!(freeze, Ok(()), "{}", processor.name);
            // A hypervisor that does not keep the bit.
            mock.inject(Fault::Ignored(0x1D9));
            assert_eq!(recorder.freeze_on_interrupt(), Err(BranchError::FreezeUnsupported));
        }
    }
}

#[test]
fn erroneous_records_are_left_out_on_processors_that_have_them() {
    let amd = processors().into_iter().find(|processor| processor.name == "AMD").unwrap();
    let processor = amd.deviating(&[Deviation::ErroneousBranches]);
    let (unit, mock, records) = (processor.unit(), processor.mock(), Records::new());
    let mut recorder = BranchRecorder::take(&unit, &mock, &records).unwrap();
    recorder.start(BranchFilter::USER).unwrap();
    for number in 1..=16 {
        mock.branch(&user(number));
    }
    // Every fourth is erroneous.
    let expected: Vec<Branch> = (1..=16)
        .rev()
        .filter(|number| number % 4 != 0)
        .map(|number| processor.told(&user(number)))
        .collect();
    assert_eq!(read(&mut recorder), expected);
}

#[test]
fn an_empty_selection_is_refused_and_nothing_changes() {
    let processor = processors()[0];
    let (unit, mock, records) = (processor.unit(), processor.mock(), Records::new());
    let mut recorder = BranchRecorder::take(&unit, &mock, &records).unwrap();
    recorder.start(BranchFilter::USER).unwrap();
    let before = mock.accesses();
    let nothing = BranchFilter::USER.at(false, false);
    assert_eq!(recorder.start(nothing), Err(BranchError::FilterUnsupported(nothing)));
    let nothing = BranchFilter::USER.only(BranchKinds::NONE);
    assert_eq!(recorder.start(nothing), Err(BranchError::FilterUnsupported(nothing)));
    assert_eq!(mock.accesses(), before);
    assert!(recorder.is_recording());
    assert_eq!(recorder.filter(), Some(BranchFilter::USER));
}
