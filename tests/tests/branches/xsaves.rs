//! Records that follow threads in an XSAVE area, by a fake of XSAVES that copies the mock's registers.

use super::support::*;
use core::cell::Cell;
use pmu_core::access::{RegisterAddress, RegisterBackend};
use pmu_core::branch_recording::{
    BranchArea, BranchError, BranchRecorder, SaveBranches, XsaveFault,
};
use pmu_core::branches::{BranchFilter, Branches};
use pmu_core::x86::raw_cpuid::CpuIdResult;
use pmu_virt::branches::{FedBranch, FedBranchKind};
use pmu_virt::mock::Fault;
use pmu_virt::{GuestFacility, Privilege, Read, Writer};

/// The XSAVE area of a thread.
struct Area<'a, 'h> {
    mock: &'a Mock<'h>,
    /// The registers of component 15, in its order, but those of the last exception, which the mock lacks.
    saved: Option<Vec<(u32, u64)>>,
    /// XSAVES and XRSTORS raise exceptions.
    faults: &'a Cell<bool>,
    /// An interrupt comes before and after each of the two.
    interrupt: Option<&'a dyn Fn()>,
}

impl<'a, 'h> Area<'a, 'h> {
    fn new(mock: &'a Mock<'h>, faults: &'a Cell<bool>) -> Self {
        Self { mock, saved: None, faults, interrupt: None }
    }

    fn execute<R>(&mut self, act: impl FnOnce(&mut Self) -> R) -> Result<R, XsaveFault> {
        let interrupt = self.interrupt;
        interrupt.inspect(|interrupt| interrupt());
        let done = if self.faults.get() { Err(XsaveFault) } else { Ok(act(self)) };
        interrupt.inspect(|interrupt| interrupt());
        done
    }
}

/// The control, the depth, and FROM, TO and INFO of 32 records.
fn registers() -> impl Iterator<Item = u32> {
    let records = (0..32).flat_map(|record| [0x1500, 0x1600, 0x1200].map(|first| first + record));
    [0x14CE, 0x14CF].into_iter().chain(records)
}

// SAFETY: the fake copies numbers of the mock, which nothing follows.
unsafe impl SaveBranches for Area<'_, '_> {
    fn save(&mut self) -> Result<(), XsaveFault> {
        self.execute(|this| {
            let read = |address| match this.mock.with_branch_records(|all| all.read(address)) {
                Some(Read::Value(value)) => (address, value),
                other => panic!("{address:#x}: {other:?}"),
            };
            let saved: Vec<_> = registers().map(read).collect();
            // Otherwise branches of the kernel's own switch would come between the records.
            assert_eq!(saved[0], (0x14CE, 0), "saved while the processor records");
            this.saved = Some(saved);
        })
    }

    fn restore(&mut self) -> Result<(), XsaveFault> {
        self.execute(|this| {
            for (address, value) in this.saved.as_ref().expect("restored before it was saved") {
                this.mock.with_branch_records(|all| all.write(Writer::Host, *address, *value));
            }
        })
    }
}

/// CPUID of a processor with XSAVES for records of this many bytes.
fn cpuid(size: u32) -> impl Fn(u32, u32) -> CpuIdResult + Clone {
    move |leaf, subleaf| {
        let (eax, ecx) = match (leaf, subleaf) {
            (0, _) => (0x1C, 0),
            (0x0D, 1) => (1 << 3, 1 << 15),
            (0x0D, 15) => (size, 1),
            _ => (0, 0),
        };
        CpuIdResult { eax, ebx: 0, ecx, edx: 0 }
    }
}

/// Five registers and 32 records of three, of 8 bytes each.
const SIZE: u32 = 808;

fn architectural() -> Processor {
    processors()[0]
}

fn call(from: u64) -> FedBranch {
    FedBranch::new(from, 0x9000, FedBranchKind::RelativeCall, Privilege::User)
}

type Recorder<'a, 'h> = BranchRecorder<'a, &'a Mock<'h>>;

fn addresses(recorder: &mut Recorder<'_, '_>) -> Vec<u64> {
    let found = recorder.read().unwrap().iter().map(|branch| branch.from).collect();
    recorder.restart().unwrap();
    found
}

/// Records call stacks, with XSAVES.
fn with_xsaves(act: impl FnOnce(&Mock<'_>, &Records, &mut Recorder<'_, '_>)) {
    let processor = architectural();
    let (unit, mock, records) = (processor.unit(), processor.mock(), Records::new());
    let mut recorder = BranchRecorder::take(&unit, &mock, &records).unwrap();
    recorder.use_xsaves(cpuid(SIZE)).unwrap();
    recorder.start(BranchFilter::USER.call_stack()).unwrap();
    act(&mock, &records, &mut recorder);
    recorder.shut_down().unwrap();
    assert_eq!(mock.with_branch_records(|records| records.is_recording()), Some(false));
    no_breach(&mock, processor.name);
}

#[test]
fn a_call_stack_follows_its_thread_by_one_instruction_each_way() {
    with_xsaves(|mock, _, recorder| {
        let faults = Cell::new(false);
        let mut threads = [(); 2].map(|()| BranchArea::new(Area::new(mock, &faults)));
        (0..40).for_each(|number| mock.branch(&call(0x10_0000 + number)));
        let whole: Vec<_> = recorder.read().unwrap().raw().collect();
        recorder.restart().unwrap();
        let before = mock.accesses();
        let [first, second] = &mut threads;
        recorder.switch_out_to(first).unwrap();
        recorder.switch_in_from(second).unwrap();
        // The stop, the clearing and the start.
        assert_eq!(mock.accesses().writes - before.writes, 3);
        assert_eq!(mock.accesses().reads, before.reads);
        assert_eq!(addresses(recorder), []);
        mock.branch(&call(0x2000));
        recorder.switch_out_to(second).unwrap();
        // Between two threads the next owner of the registers finds nothing.
        let left = mock.with_branch_records(|records| records.read(0x1500));
        assert_eq!(left, Some(Read::Value(0)));
        recorder.switch_in_from(first).unwrap();
        let found: Vec<_> = recorder.read().unwrap().raw().collect();
        assert_eq!((found.len(), &found), (32, &whole));
        recorder.restart().unwrap();
        recorder.switch_out_to(first).unwrap();
        recorder.switch_in_from(second).unwrap();
        assert_eq!(addresses(recorder), [0x2000]);
        // A new program in the first thread.
        first.clear();
        recorder.switch_out_to(second).unwrap();
        recorder.switch_in_from(first).unwrap();
        assert_eq!(addresses(recorder), []);
        // A switch in without a switch out.
        mock.branch(&call(0x3000));
        recorder.switch_in_from(second).unwrap();
        assert_eq!(addresses(recorder), [0x2000]);
        first.clear();
        recorder.switch_in_from(first).unwrap();
        assert_eq!(addresses(recorder), []);
    });
}

#[test]
fn what_the_processor_does_not_declare_is_refused_and_nothing_is_changed() {
    for processor in processors() {
        let (unit, mock, records) = (processor.unit(), processor.mock(), Records::new());
        let mut recorder = BranchRecorder::take(&unit, &mock, &records).unwrap();
        recorder.start(BranchFilter::USER).unwrap();
        let faults = Cell::new(false);
        let mut area = BranchArea::new(Area::new(&mock, &faults));
        let before = mock.accesses();
        let unsupported = Err(BranchError::XsavesUnsupported);
        // Not asked for.
        assert_eq!(recorder.switch_out_to(&mut area), unsupported);
        assert_eq!(recorder.switch_in_from(&mut area), unsupported);
        let without = |lacking: (u32, u32)| {
            move |leaf, subleaf| match (leaf, subleaf) {
                place if place == lacking => CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 },
                _ => cpuid(SIZE)(leaf, subleaf),
            }
        };
        assert_eq!(recorder.use_xsaves(without((0, 0))), unsupported);
        assert_eq!(recorder.use_xsaves(without((0x0D, 1))), unsupported);
        if processor.name != "architectural" {
            assert_eq!(recorder.use_xsaves(cpuid(SIZE)), unsupported, "{}", processor.name);
        } else {
            // 16 records, none, and one byte more.
            for declared in [40 + 24 * 16, 0, SIZE + 1] {
                let refused = Err(BranchError::XsavesSize { declared, needed: SIZE });
                recorder.use_xsaves(cpuid(SIZE)).unwrap();
                assert_eq!(recorder.use_xsaves(cpuid(declared)), refused);
                assert_eq!(recorder.switch_out_to(&mut area), unsupported);
            }
        }
        assert!(recorder.is_recording());
        assert_eq!(mock.accesses(), before, "{}", processor.name);
        recorder.shut_down().unwrap();
        assert_eq!(recorder.use_xsaves(cpuid(SIZE)), Err(BranchError::ShutDown));
        assert_eq!(recorder.switch_out_to(&mut area), Err(BranchError::ShutDown));
    }
}

#[test]
fn an_instruction_that_faults_leaves_no_records() {
    with_xsaves(|mock, _, recorder| {
        let faults = Cell::new(false);
        let mut threads = [(); 2].map(|()| BranchArea::new(Area::new(mock, &faults)));
        let [first, second] = &mut threads;
        mock.branch(&call(0x1000));
        recorder.switch_out_to(first).unwrap();
        recorder.switch_in_from(second).unwrap();
        mock.branch(&call(0x2000));
        faults.set(true);
        let failed = Err(BranchError::Xsaves(XsaveFault));
        assert_eq!(recorder.switch_out_to(second), failed);
        assert!(!recorder.is_recording());
        assert_eq!(recorder.switch_in_from(first), failed);
        assert!(!recorder.is_recording());
        assert_eq!(mock.with_branch_records(|records| records.is_recording()), Some(false));
        recorder.restart().unwrap();
        assert_eq!(addresses(recorder), []);
        recorder.switch_out::<32>(None).unwrap();
        // It has no records, so that nothing is restored, and nothing faults.
        recorder.switch_in_from(second).unwrap();
        assert_eq!(addresses(recorder), []);
        faults.set(false);
        recorder.switch_in_from(first).unwrap();
        assert_eq!(addresses(recorder), [0x1000]);
    });
}

/// Of each access of a switch that fails for good: no record of another thread is shown, ever.
#[test]
fn a_switch_by_xsaves_that_fails_shows_no_branch_of_another_thread() {
    for (out_fails, failing) in
        [true, false].into_iter().flat_map(|out| (1..20).map(move |n| (out, n)))
    {
        with_xsaves(|mock, _, recorder| {
            let faults = Cell::new(false);
            let mut threads = [(); 3].map(|()| BranchArea::new(Area::new(mock, &faults)));
            let [first, second, third] = &mut threads;
            mock.branch(&call(0x1000));
            recorder.switch_out_to(first).unwrap();
            recorder.switch_in_from(second).unwrap();
            mock.branch(&call(0x2000));
            if !out_fails {
                recorder.switch_out_to(second).unwrap();
            }
            mock.inject(Fault::From(failing));
            let mut done = Ok(());
            if out_fails {
                done = recorder.switch_out_to(second);
            }
            let back = recorder.switch_in_from(first);
            mock.inject(Fault::None);
            let at = format!("{out_fails}, {failing}: {done:?}, {back:?}");
            if failing > 6 {
                assert_eq!((done, back), (Ok(()), Ok(())), "{at}");
            }
            // A recorder that denies the recording is right.
            let is_recording = mock.with_branch_records(|records| records.is_recording());
            assert!(is_recording == Some(false) || recorder.is_recording(), "{at}");
            if back.is_ok() {
                assert_eq!(addresses(recorder), [0x1000], "{at}");
            } else if !recorder.is_recording() {
                // The kernel goes on without its thread's records: it never sees another's.
                recorder.restart().unwrap();
                let found = addresses(recorder);
                assert!(found.is_empty(), "{at}: {found:x?}");
            }
            // A thread without records has none.
            recorder.switch_in_from(third).unwrap();
            assert_eq!(addresses(recorder), [], "{at}");
            recorder.switch_out_to(third).unwrap();
            recorder.switch_in_from(first).unwrap();
            assert_eq!(addresses(recorder), [0x1000], "{at}");
        });
    }
}

#[test]
fn an_interrupt_beside_xsaves_changes_no_records() {
    let unit = architectural().unit();
    with_xsaves(|mock, records, recorder| {
        use pmu_core::facility::Facility;
        let interrupts = Cell::new(0);
        // The first step of the interrupt, which stops a recording, and the last, which starts it again.
        let interrupt = || {
            let mut branches = Branches::new(&unit, records);
            branches.begin(&mock).unwrap();
            mock.branch(&call(0xBAD0));
            branches.end(&mock).unwrap();
            mock.branch(&call(0xBAD1));
            interrupts.set(interrupts.get() + 1);
        };
        let faults = Cell::new(false);
        let mut threads = [(); 2].map(|()| {
            BranchArea::new(Area { interrupt: Some(&interrupt), ..Area::new(mock, &faults) })
        });
        let [first, second] = &mut threads;
        mock.branch(&call(0x1000));
        recorder.switch_out_to(first).unwrap();
        recorder.switch_in_from(second).unwrap();
        mock.branch(&call(0x2000));
        recorder.switch_out_to(second).unwrap();
        recorder.switch_in_from(first).unwrap();
        // Two in each of two savings and one restoring.
        assert_eq!(interrupts.get(), 6);
        assert_eq!(addresses(recorder), [0x1000]);
    });
}

/// The thread's records are in the registers, and the recording cannot be started, but stopped.
#[test]
fn restored_records_whose_recording_does_not_start_are_shown_to_no_other_thread() {
    let (failing, faults) = (Cell::new(0_u32), Cell::new(false));
    let end_of_faults = |mock: &Mock<'_>| match failing.get() {
        0 => mock.inject(Fault::None),
        left => failing.set(left - 1),
    };
    let processor = architectural();
    let (unit, mock, records) = (processor.unit(), processor.mock(), Records::new());
    let mut recorder = BranchRecorder::take(&unit, &mock, &records).unwrap();
    recorder.use_xsaves(cpuid(SIZE)).unwrap();
    recorder.start(BranchFilter::USER.call_stack()).unwrap();
    mock.branch(&call(0x1000));
    let mut first = BranchArea::new(Area::new(&mock, &faults));
    recorder.switch_out_to(&mut first).unwrap();
    mock.on_access(&end_of_faults);
    // The start and its retry.
    failing.set(2);
    mock.inject(Fault::From(1));
    let failed = recorder.switch_in_from(&mut first);
    assert!(matches!(failed, Err(BranchError::NotRecording(_))), "{failed:?}");
    assert!(!recorder.is_recording());
    recorder.restart().unwrap();
    assert_eq!(addresses(&mut recorder), []);
    recorder.switch_in_from(&mut first).unwrap();
    assert_eq!(addresses(&mut recorder), [0x1000]);
    no_breach(&mock, processor.name);
}

/// The registers lose their contents while no thread is recorded: the freeze bit is no part of the area.
#[test]
fn a_thread_that_is_switched_in_after_a_suspend_freezes_again() {
    // SAFETY: the mock's registers are numbers.
    let debug_control = unsafe { RegisterAddress::new(0x1D9) };
    with_xsaves(|mock, _, recorder| {
        let faults = Cell::new(false);
        let mut thread = BranchArea::new(Area::new(mock, &faults));
        recorder.start(BranchFilter::USER).unwrap();
        recorder.freeze_on_interrupt().unwrap();
        recorder.switch_out_to(&mut thread).unwrap();
        mock.lose_registers();
        recorder.reprogram().unwrap();
        assert!(!recorder.is_recording());
        recorder.switch_in_from(&mut thread).unwrap();
        assert_eq!(mock.read(debug_control).unwrap() >> 11 & 1, 1);
    });
}
