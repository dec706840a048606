//! The branch trace store: on, off, drained in each interrupt, and filtered by privilege.

use core::cell::RefCell;
use core::ptr;
use core::sync::atomic::AtomicU64;

use pmu_core::{CounterSession, CounterSet};
use pmu_intel::branch_trace::{
    BranchTrace, BranchTraceError, BranchTraceMemory, BranchTracer, TracedBranches,
};
use pmu_tests::opened::{fed_events, happened, raw};
use pmu_virt::mock::{Deviations, Fault, ProcessMemory};
use pmu_virt::{
    Configuration, FedBranch, FedBranchKind, GuestMemory, IntelConfiguration, PreciseConfiguration,
    Privilege, VirtualPmu, VirtualPrecise,
};

use crate::scene as precise;
use crate::scene::PERIOD;
use crate::support::*;

pub(crate) type Tracer = BranchTracer<Msr>;

pub(crate) const KERNEL: u64 = 0xFFFF_FFFF_8000_0000;

/// A kernel's memory of one processor, and the branches that its handler has seen.
pub(crate) struct Scene {
    pub(crate) mock: Msr,
    pub(crate) memory: &'static BranchTraceMemory,
    pub(crate) seen: &'static RefCell<Vec<[u64; 2]>>,
}

pub(crate) fn branch(number: u64, from: u64, to: u64) -> FedBranch {
    let privilege = if from >= KERNEL { Privilege::Kernel } else { Privilege::User };
    FedBranch::new(from + number, to + number, FedBranchKind::RelativeCall, privilege)
}

const CONFIGURATION: Configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));

fn reset_trace() -> VirtualPrecise {
    VirtualPrecise::new(&CONFIGURATION, PreciseConfiguration::BRANCH_TRACE).unwrap()
}

fn scene() -> Scene {
    scene_on(Deviations::NONE)
}

pub(crate) fn scene_on(deviations: Deviations) -> Scene {
    let memory: &'static BranchTraceMemory<[AtomicU64; 1024]> =
        Box::leak(Box::new(BranchTraceMemory::new()));
    // SAFETY: the area and the buffer, one page behind it, consist of atomics.
    let ram = unsafe { ProcessMemory::default().with(memory, PHYSICAL - 0x1000) };
    let ram: &'static RefCell<dyn GuestMemory> = Box::leak(Box::new(RefCell::new(ram)));
    let pmu = VirtualPmu::new(CONFIGURATION, fed_events()).unwrap();
    let mock = Mock::strict(pmu).with_precise(reset_trace(), ram, &instruction);
    let mock = mock.deviating(deviations);
    let _ = mock.with_pmu(|pmu| pmu.write(0x38F, 0));
    let seen = Box::leak(Box::new(RefCell::default()));
    Scene { mock: Box::leak(Box::new(mock)), memory, seen }
}

impl Scene {
    pub(crate) fn take(&self) -> Tracer {
        // SAFETY: the mock writes to the lent memory alone, which lasts.
        unsafe { BranchTracer::take(&self.mock.snapshot(), self.mock, self.memory, None) }.unwrap()
    }

    pub(crate) fn report(&self) -> impl FnMut(pmu_core::Branch) + use<> {
        let seen = self.seen;
        move |branch| seen.borrow_mut().push([branch.from, branch.to])
    }

    /// Traces these branches, and returns those that were seen after a stop.
    fn trace(&self, user: bool, kernel: bool, branches: &[FedBranch]) -> Vec<[u64; 2]> {
        let mut tracer = self.take();
        tracer.start(user, kernel).unwrap();
        for branch in branches {
            self.mock.trace_branch(branch);
        }
        tracer.stop(self.report()).unwrap();
        assert!(!self.mock.trace_branch(&branches[0]), "stopped");
        tracer.shut_down(|_| ()).unwrap();
        self.seen.take()
    }
}

#[test]
fn branches_are_traced_in_order_between_a_start_and_a_stop() {
    let scene = scene();
    let branches: Vec<FedBranch> = (0..100).map(|n| branch(16 * n, 0x40_0000, 0x41_0000)).collect();
    let expected: Vec<[u64; 2]> = branches.iter().map(|branch| [branch.from, branch.to]).collect();
    assert_eq!(scene.trace(true, false, &branches), expected);
    assert_eq!(scene.trace(true, true, &branches), expected);
    assert_eq!((scene.memory.lost(), scene.mock.breach()), (0, None));
    // Nothing is left in the registers.
    assert_eq!(scene.mock.with_pmu(|pmu| pmu.read(0x38E)), pmu_virt::Read::Value(0));
}

/// The area's address is in a register, which a suspend clears.
#[test]
fn a_trace_that_starts_after_the_registers_lost_their_contents_is_in_the_memory() {
    let scene = scene();
    let mut tracer = scene.take();
    scene.mock.with_precise_records(|trace| *trace = reset_trace());
    tracer.start(true, false).unwrap();
    assert!(scene.mock.trace_branch(&branch(0, 0x40_0000, 0x41_0000)));
    scene.mock.with_precise_records(|trace| *trace = reset_trace());
    tracer.drain(scene.report()).unwrap();
    assert!(scene.mock.trace_branch(&branch(1, 0x40_0000, 0x41_0000)));
    tracer.shut_down(scene.report()).unwrap();
    assert_eq!(scene.seen.take().len(), 2);
}

#[test]
fn branches_from_or_to_another_privilege_level_are_not_shown() {
    let scene = scene();
    let all = [
        branch(0, 0x40_0000, 0x41_0000),
        branch(1, 0x40_0000, KERNEL), // A system call.
        branch(2, KERNEL, KERNEL),
        branch(3, KERNEL, 0x40_0000), // Its return.
    ];
    let numbers =
        |seen: Vec<[u64; 2]>| -> Vec<u64> { seen.iter().map(|[from, _]| from & 0xF).collect() };
    assert_eq!(numbers(scene.trace(true, false, &all)), [0]);
    assert_eq!(numbers(scene.trace(false, true, &all)), [2]);
    assert_eq!(numbers(scene.trace(true, true, &all)), [0, 1, 2, 3]);
    // A copy of a buffer.
    let bytes: Vec<u8> = all
        .iter()
        .flat_map(|branch| [branch.from, branch.to, 0])
        .flat_map(u64::to_le_bytes)
        .chain([0xFF; 23])
        .collect();
    for (user, kernel, shown) in
        [(true, false, 1), (false, true, 1), (true, true, 4), (false, false, 0)]
    {
        let mut branches = TracedBranches::from_bytes(&bytes).limited_to(user, kernel);
        assert_eq!((branches.by_ref().count(), branches.hidden()), (shown, 4 - shown as u32));
    }
}

#[test]
fn each_interrupt_of_the_counters_reads_the_branches_out_and_so_does_the_traces_own() {
    for (user, kernel) in [(true, false), (true, true)] {
        let scene = scene();
        let (mock, memory) = (scene.mock, scene.memory);
        let counters = pmu_intel::counters(&mock.snapshot()).unwrap();
        let claimed = core::cell::Cell::new(0);
        let lent = pmu_tests::opened::Memory::new();
        let table = pmu_tests::opened::Table::new();
        let source = pmu_core::OpenedEvents::new(&counters, &table as &pmu_core::EventTable);
        let mut session =
            CounterSession::take(source, &counters, CounterSet::ALL, mock, mock, &lent).unwrap();
        session.freeze_on_interrupt().unwrap();
        let event = session.open_event(&counters, &raw(3).every(10_000)).unwrap();
        session.start_event(event, 0).unwrap();
        let serve = || {
            let trace = BranchTrace::new(memory, None, scene.report());
            let serviced =
                pmu_core::service_with(&source, &mock, &mock, &lent, trace, |_, _| ()).unwrap();
            claimed.set(claimed.get() + serviced.claim.interrupts());
        };
        let mut tracer = scene.take();
        tracer.start(user, kernel).unwrap();
        for number in 0..5 {
            mock.trace_branch(&branch(number, 0x40_0000, 0x41_0000));
        }
        assert!(scene.seen.borrow().is_empty());
        mock.advance(&mut happened(3, 10_000));
        let before = mock.accesses();
        serve();
        let after = mock.accesses();
        let of_trace = if kernel { [2, 2] } else { [0, 0] };
        // Beyond those of a counter: 1R 2W.
        let beyond = [after.reads - before.reads - 1, after.writes - before.writes - 2];
        assert_eq!((beyond, scene.seen.take().len()), (of_trace, 5));
        // Three quarters of 341 records.
        let mut traced = 0;
        while mock.interrupts() == 1 {
            mock.trace_branch(&branch(traced, 0x40_0000, 0x41_0000));
            traced += 1;
        }
        assert_eq!(traced, 256);
        serve();
        assert_eq!(scene.seen.take().len(), 256);
        assert_eq!((mock.interrupts(), claimed.get() >= 2, mock.breach()), (2, true, None));
        // Lent counters: nothing is traced.
        mock.trace_branch(&branch(0, 0x40_0000, 0x41_0000));
        let window = session.lend_with(0, tracer.lent(scene.report()), |_, _| ()).unwrap();
        assert_eq!(scene.seen.take().len(), 1);
        assert!(!mock.trace_branch(&branch(0, 0x40_0000, 0x41_0000)));
        window.end(0).unwrap();
        assert!(mock.trace_branch(&branch(0, 0x40_0000, 0x41_0000)));
        tracer.shut_down(scene.report()).unwrap();
        assert_eq!(scene.seen.take().len(), 1);
        session.shut_down().unwrap();
    }
}

#[test]
fn with_a_fault_at_each_access_a_tracer_fails_or_succeeds_and_a_repeated_shut_down_ends_the_trace()
{
    for access in 1..30 {
        let scene = scene();
        let mut tracer = scene.take();
        let call = branch(0, 0x40_0000, 0x41_0000);
        scene.mock.inject(Fault::From(access));
        let started = tracer.start(true, true);
        let traced = u64::from(scene.mock.trace_branch(&call));
        let drained = tracer.drain(scene.report());
        let ended = tracer.shut_down(scene.report());
        scene.mock.inject(Fault::None);
        for outcome in [started, drained, ended] {
            let allowed = matches!(
                outcome,
                Ok(()) | Err(BranchTraceError::Access(_) | BranchTraceError::Faulted(_))
            );
            assert!(allowed, "{access}: {outcome:?}");
        }
        if ended.is_err() {
            tracer.shut_down(scene.report()).unwrap();
        }
        assert!(!scene.mock.trace_branch(&call), "{access}");
        assert_eq!(scene.seen.borrow().len() as u64, traced, "{access}");
    }
}

/// Makes a processor that writes precise records and a branch trace, with the trace's memory.
pub(crate) fn both(
    mut processor: Processor,
) -> (&'static precise::Scene, &'static BranchTraceMemory) {
    processor.records.branch_trace = true;
    let trace: &'static BranchTraceMemory<[AtomicU64; 1024]> =
        Box::leak(Box::new(BranchTraceMemory::new()));
    let first = ptr::from_ref(trace).cast::<AtomicU64>();
    // SAFETY: one page behind the area begins the buffer of atomic words.
    let buffer = unsafe { core::slice::from_raw_parts(first.add(512), 1024) };
    (precise::Scene::beside(processor, buffer), trace)
}

/// Takes the trace beside the precise records of a processor.
pub(crate) fn take_beside(
    scene: &'static precise::Scene,
    trace: &'static BranchTraceMemory,
) -> Tracer {
    let (snapshot, beside) = (scene.mock.snapshot(), Some(scene.memory));
    // SAFETY: the mock writes to the lent memory alone, which lasts.
    unsafe { BranchTracer::take(&snapshot, scene.mock, trace, beside) }.unwrap()
}

/// The trace begins before the first precise event or after it, and ends before the session or after it.
#[test]
fn a_trace_beside_precise_records_shares_their_area_whatever_begins_and_ends_first() {
    let formats = processors().into_iter().filter(|p| ["format 3", "format 4"].contains(&p.name));
    let orders = [(false, false), (false, true), (true, false), (true, true)];
    for (processor, (trace_begins, trace_ends)) in
        formats.flat_map(|of| orders.map(|order| (of, order)))
    {
        let what = format!("{}, {trace_begins}, {trace_ends}", precise::name(&processor));
        let (scene, trace) = both(processor);
        let mut session = scene.take();
        let mut tracer = take_beside(scene, trace);
        let event = session.open_event(&scene.counters, &precise::precise(0)).unwrap();
        if trace_begins {
            tracer.start(true, false).unwrap();
            session.start_event(event, 0).unwrap();
        } else {
            session.start_event(event, 0).unwrap();
            tracer.start(true, false).unwrap();
        }
        let area = words(scene.memory)[0].as_ptr() as u64;
        assert_eq!(scene.read(0x600), area, "{what}");
        assert!(scene.mock.trace_branch(&branch(0, 0x40_0000, 0x41_0000)), "{what}");
        scene.happen(0, PERIOD);
        assert_eq!(scene.reported(), 1, "{what}");
        let mut seen = 0;
        if trace_ends {
            tracer.shut_down(|_| seen += 1).unwrap();
            assert_eq!(scene.read(0x600), area, "{what}");
            scene.happen(0, PERIOD);
            assert_eq!(scene.reported(), 2, "{what}");
            session.shut_down().unwrap();
        } else {
            session.shut_down().unwrap();
            assert_eq!((scene.read(0x600), scene.enabled()), (area, 0), "{what}");
            assert!(scene.mock.trace_branch(&branch(1, 0x40_0000, 0x41_0000)), "{what}");
            tracer.shut_down(|_| seen += 1).unwrap();
        }
        assert_eq!(seen, if trace_ends { 1 } else { 2 }, "{what}");
        nothing_is_enabled(scene.mock, &what);
        assert_eq!((scene.memory.dropped(), trace.lost()), (Default::default(), 0), "{what}");
        // Both can begin again.
        let mut session = scene.take();
        let mut tracer = take_beside(scene, trace);
        tracer.start(true, false).unwrap();
        scene.start(&mut session, &precise::precise(0));
        assert!(scene.mock.trace_branch(&branch(2, 0x40_0000, 0x41_0000)), "{what}");
        tracer.shut_down(|_| ()).unwrap();
        scene.ends(session, &what);
    }
}

#[test]
fn a_second_tracer_does_not_share_the_area() {
    let (scene, trace) = both(precise::named("format 3").next().unwrap());
    let mut first = take_beside(scene, trace);
    let other: &'static BranchTraceMemory<[AtomicU64; 1024]> =
        Box::leak(Box::new(BranchTraceMemory::new()));
    let snapshot = scene.mock.snapshot();
    // SAFETY: the mock writes to the lent memory alone, which lasts.
    let take = || unsafe { BranchTracer::take(&snapshot, scene.mock, other, Some(scene.memory)) };
    assert_eq!(take().err(), Some(BranchTraceError::MemoryInUse));
    first.shut_down(|_| ()).unwrap();
    take().unwrap().shut_down(|_| ()).unwrap();
}

/// Bit 62 of the status is of both: one interrupt, which both read.
#[test]
fn a_trace_beside_precise_records_claims_their_interrupt_once() {
    // A processor that freezes its counters always has the handler expect a further interrupt.
    let is_meant = |processor: &Processor| !processor.freezes;
    let processor = precise::named("format 4").find(is_meant).unwrap();
    for has_trace in [false, true] {
        let (scene, trace) = both(processor);
        scene.mock.on_interrupt(&|_: &Mock<'static>| ());
        let mut session = scene.take();
        let mut tracer = take_beside(scene, trace);
        scene.start(&mut session, &precise::precise(0));
        tracer.start(true, false).unwrap();
        assert!(scene.mock.trace_branch(&branch(0, 0x40_0000, 0x41_0000)));
        scene.happen(0, PERIOD);
        let mut branches = 0;
        let traced = BranchTrace::new(trace, Some(scene.memory), |_| branches += 1);
        scene.handle_with(scene.mock, has_trace.then_some(traced));
        let found = (scene.samples(0), branches, scene.claimed.get());
        assert_eq!(found, (1, u32::from(has_trace), 1), "a trace: {has_trace}");
        tracer.shut_down(|_| ()).unwrap();
        scene.ends(session, processor.name);
    }
}
