//! The branch trace store: on, off, drained in each interrupt, and filtered by privilege.

use core::cell::{Cell, RefCell};
use core::ptr;
use core::sync::atomic::AtomicU64;

use pmu_core::branches::Branch;
use pmu_core::error::CounterError;
use pmu_core::facility::EventFacility;
use pmu_core::memory::EventTable;
use pmu_core::{CounterSession, CounterSet, CounterUnit, Events, Sample, service};
use pmu_intel::branch_trace::{BranchTrace, BranchTraceMemory, BranchTraceUnit, TracedBranches};
use pmu_intel::precise::Pebs;
use pmu_tests::opened::{Memory, Table, fed_events, happened, raw};
use pmu_virt::branches::{FedBranch, FedBranchKind};
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::mock::{Deviations, Fault, ProcessMemory};
use pmu_virt::precise::{GuestMemory, PreciseConfiguration, VirtualPrecise};
use pmu_virt::{Privilege, VirtualPmu};

use crate::scene as precise;
use crate::scene::{PERIOD, Records};
use crate::support::*;

pub(crate) type Trace = BranchTrace<&'static dyn Fn(Branch)>;
pub(crate) type Traced = CounterSession<'static, Events<'static, CounterUnit, Trace>, Msr>;

pub(crate) const KERNEL: u64 = 0xFFFF_FFFF_8000_0000;

/// A kernel's memory of one processor that only traces, and the branches that were reported.
pub(crate) struct Scene {
    pub(crate) mock: Msr,
    pub(crate) memory: &'static BranchTraceMemory,
    pub(crate) seen: &'static RefCell<Vec<[u64; 2]>>,
    pub(crate) trace: Trace,
    pub(crate) counters: CounterUnit,
    lent: Memory,
    table: Table,
}

pub(crate) fn branch(number: u64, from: u64, to: u64) -> FedBranch {
    let privilege = if from >= KERNEL { Privilege::Kernel } else { Privilege::User };
    FedBranch::new(from + number, to + number, FedBranchKind::RelativeCall, privilege)
}

const CONFIGURATION: Configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));

fn reset_trace() -> VirtualPrecise {
    VirtualPrecise::new(&CONFIGURATION, PreciseConfiguration::BRANCH_TRACE).unwrap()
}

fn scene() -> &'static Scene {
    scene_on(Deviations::NONE)
}

/// Makes a processor whose handler serves each interrupt, and notes the branches.
pub(crate) fn scene_on(deviations: Deviations) -> &'static Scene {
    let memory: &'static BranchTraceMemory<[AtomicU64; 1024]> =
        Box::leak(Box::new(BranchTraceMemory::new()));
    // SAFETY: the area and the buffer, one page behind it, consist of atomics.
    let ram = unsafe { ProcessMemory::default().with(memory, PHYSICAL - 0x1000) };
    let ram: &'static RefCell<dyn GuestMemory> = Box::leak(Box::new(RefCell::new(ram)));
    let pmu = VirtualPmu::new(CONFIGURATION, fed_events()).unwrap();
    let mock = Mock::strict(pmu).with_precise(reset_trace(), ram, &instruction);
    let mock: Msr = Box::leak(Box::new(mock.deviating(deviations)));
    let _ = mock.with_pmu(|pmu| pmu.write(0x38F, 0));
    let seen: &'static RefCell<Vec<_>> = Box::leak(Box::default());
    let report: &'static dyn Fn(Branch) =
        Box::leak(Box::new(|branch: Branch| seen.borrow_mut().push([branch.from, branch.to])));
    let unit = BranchTraceUnit::detect(&mock.snapshot(), mock).unwrap();
    Box::leak(Box::new(Scene {
        mock,
        memory,
        seen,
        // SAFETY: the mock writes to the lent memory alone, which lasts.
        trace: unsafe { BranchTrace::new(unit, memory, None, report) },
        counters: pmu_intel::counters(&mock.snapshot()),
        lent: Memory::new(),
        table: Table::new(),
    }))
}

impl Scene {
    fn source(&'static self) -> Events<'static, CounterUnit, Trace> {
        Events::new(&self.counters, &self.table as &EventTable).with(self.trace)
    }

    pub(crate) fn take(&'static self) -> Traced {
        let (unit, mock) = (&self.counters, self.mock);
        CounterSession::take(self.source(), unit, CounterSet::ALL, mock, &self.lent).unwrap()
    }

    /// Serves an interrupt.
    pub(crate) fn serve(
        &'static self,
        report: impl FnMut(Sample<'_, Trace>),
    ) -> Result<pmu_core::interrupt::Serviced, pmu_core::error::ServiceError> {
        service(&self.source(), self.mock, &self.lent, report)
    }

    /// Traces these branches, and returns those that were seen after the trace's end.
    fn traced(&'static self, user: bool, kernel: bool, branches: &[FedBranch]) -> Vec<[u64; 2]> {
        let mut session = self.take();
        self.trace.trace(&mut session, user, kernel).unwrap();
        for branch in branches {
            self.mock.trace_branch(branch);
        }
        self.trace.trace(&mut session, false, false).unwrap();
        assert!(!self.mock.trace_branch(&branches[0]), "stopped");
        session.shut_down().unwrap();
        self.seen.take()
    }
}

#[test]
fn branches_are_traced_in_order_between_a_start_and_a_stop() {
    let scene = scene();
    let branches: Vec<FedBranch> = (0..100).map(|n| branch(16 * n, 0x40_0000, 0x41_0000)).collect();
    let expected: Vec<[u64; 2]> = branches.iter().map(|branch| [branch.from, branch.to]).collect();
    assert_eq!(scene.traced(true, false, &branches), expected);
    assert_eq!(scene.traced(true, true, &branches), expected);
    assert_eq!((scene.memory.lost(), scene.mock.breach()), (0, None));
    nothing_is_enabled(scene.mock, "shut down");
}

/// Events come and go, and the processor traces as it was asked to. A second request begins a trace of its own.
#[test]
fn a_trace_goes_on_whatever_the_events_do_until_it_is_asked_otherwise() {
    let scene = scene();
    let mut session = scene.take();
    let event = session.open(&scene.counters, &[raw(3).every(10_000)]).unwrap();
    let [user, kernel] = [0x40_0000, KERNEL].map(|of| branch(0, of, of));
    scene.trace.trace(&mut session, true, false).unwrap();
    for _ in 0..2 {
        assert!(scene.mock.trace_branch(&user) && !scene.mock.trace_branch(&kernel));
        session.enable(event, 0).unwrap();
        assert!(scene.mock.trace_branch(&user));
        session.disable(event, 0).unwrap();
    }
    assert!(scene.seen.borrow().is_empty());
    scene.trace.trace(&mut session, false, true).unwrap();
    assert_eq!(scene.seen.take().len(), 4);
    assert!(!scene.mock.trace_branch(&user) && scene.mock.trace_branch(&kernel));
    scene.trace.drain(&scene.mock).unwrap();
    assert_eq!(scene.seen.take().len(), 1);
    assert!(scene.trace.is_tracing() && scene.mock.trace_branch(&kernel));
    session.shut_down().unwrap();
    assert_eq!((scene.seen.take().len(), scene.trace.is_tracing()), (1, false));
    // The request ends with the session.
    let mut session = scene.take();
    session.enable(event, 0).unwrap_err();
    let event = session.open(&scene.counters, &[raw(3)]).unwrap();
    session.enable(event, 0).unwrap();
    assert!(!scene.mock.trace_branch(&user) && !scene.mock.trace_branch(&kernel));
    session.shut_down().unwrap();
    nothing_is_enabled(scene.mock, "shut down");
}

/// The area's address is in a register, which a suspend clears.
#[test]
fn a_trace_goes_on_after_the_registers_lost_their_contents() {
    for is_told in [false, true] {
        let scene = scene();
        let mut session = scene.take();
        let call = branch(0, 0x40_0000, 0x41_0000);
        scene.mock.with_precise_records(|trace| *trace = reset_trace());
        scene.trace.trace(&mut session, true, false).unwrap();
        assert!(scene.mock.trace_branch(&call));
        if is_told {
            session.suspend(0, |_| ()).unwrap();
            assert!(!scene.mock.trace_branch(&call));
            assert_eq!(scene.seen.borrow().len(), 1);
        }
        scene.mock.lose_registers();
        scene.mock.set_performance_entry(0x400);
        scene.mock.with_precise_records(|trace| *trace = reset_trace());
        if is_told {
            session.resume(0, |_| ()).unwrap();
        } else {
            session.reprogram(|_| ()).unwrap();
        }
        assert!(scene.mock.trace_branch(&call), "{is_told}");
        scene.mock.with_precise_records(|trace| *trace = reset_trace());
        scene.trace.drain(&scene.mock).unwrap();
        assert!(scene.mock.trace_branch(&call));
        session.shut_down().unwrap();
        assert_eq!(scene.seen.take().len(), 3, "{is_told}");
        nothing_is_enabled(scene.mock, "shut down");
    }
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
    assert_eq!(numbers(scene.traced(true, false, &all)), [0]);
    assert_eq!(numbers(scene.traced(false, true, &all)), [2]);
    assert_eq!(numbers(scene.traced(true, true, &all)), [0, 1, 2, 3]);
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
        let mock = scene.mock;
        let claimed = Cell::new(0);
        let mut session = scene.take();
        session.freeze_on_interrupt().unwrap();
        let event = session.open(&scene.counters, &[raw(3).every(10_000)]).unwrap();
        session.enable(event, 0).unwrap();
        let serve = || {
            let serviced = scene.serve(|_| ()).unwrap();
            claimed.set(claimed.get() + serviced.claim.interrupts());
        };
        scene.trace.trace(&mut session, user, kernel).unwrap();
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
        let window = session.lend(0, |_| ()).unwrap();
        assert_eq!(scene.seen.take().len(), 1);
        assert!(!mock.trace_branch(&branch(0, 0x40_0000, 0x41_0000)));
        window.end(0).unwrap();
        assert!(mock.trace_branch(&branch(0, 0x40_0000, 0x41_0000)));
        session.shut_down().unwrap();
        assert_eq!(scene.seen.take().len(), 1);
    }
}

type Operation = fn(&'static Scene, &mut Traced) -> Result<(), CounterError>;

/// The operations of a task on a trace: another one, its end, reading out, a window, programming again, a suspend and
/// resume, and shut-down.
const OPERATIONS: [Operation; 7] = [
    |scene, session| scene.trace.trace(session, true, true),
    |scene, session| scene.trace.trace(session, false, false),
    |scene, _| scene.trace.drain(&scene.mock).map_err(CounterError::Unchanged),
    |_, session| Ok(session.lend(0, |_| ())?.end(0)?),
    |_, session| session.reprogram(|_| ()).map(|_| ()),
    |_, session| {
        session.suspend(0, |_| ())?;
        session.resume(0, |_| ()).map(|_| ())
    },
    |_, session| session.shut_down(),
];

/// An overflow, or another owner's interrupt, before each access of each operation.
#[test]
fn with_an_interrupt_at_each_access_of_an_operation_each_branch_is_reported_once() {
    let call = branch(0, 0x40_0000, 0x41_0000);
    for (number, operation) in OPERATIONS.into_iter().enumerate() {
        let ends = number == 1 || number == 6;
        for access in 1.. {
            let what = format!("{number}, {access}");
            let scene = scene();
            let mut session = scene.take();
            scene.mock.on_interrupt(Box::leak(Box::new(move |_: &Mock<'static>| {
                scene.serve(|_| ()).unwrap();
            })));
            let event = session.open(&scene.counters, &[raw(3).every(10_000)]).unwrap();
            session.enable(event, 0).unwrap();
            scene.trace.trace(&mut session, true, false).unwrap();
            assert!(scene.mock.trace_branch(&call));
            let before = scene.mock.accesses().total();
            scene.mock.interrupt_at(access);
            operation(scene, &mut session).expect(&what);
            let is_over = scene.mock.accesses().total() - before < access;
            scene.mock.interrupt_at(0);
            assert_eq!(scene.mock.trace_branch(&call), !ends, "{what}");
            if !ends {
                scene.trace.trace(&mut session, false, false).expect(&what);
                session.shut_down().expect(&what);
            }
            assert_eq!(scene.seen.take().len(), 1 + usize::from(!ends), "{what}");
            assert_eq!((scene.memory.lost(), scene.mock.breach()), (0, None), "{what}");
            if is_over {
                assert!(access > 2, "{what}");
                break;
            }
        }
    }
}

/// A fault that lasts from each access of each operation on: nothing is lost, and the repeat does what was to be done.
#[test]
fn after_a_lasting_fault_of_an_operation_a_repeat_does_it() {
    let call = branch(0, 0x40_0000, 0x41_0000);
    for (number, operation) in OPERATIONS.into_iter().enumerate() {
        let (begins, ends) = (number == 0, number == 1 || number == 6);
        for access in 1.. {
            let what = format!("{number}, {access}");
            let scene = scene();
            let mut session = scene.take();
            let event = session.open(&scene.counters, &[raw(3).every(10_000)]).unwrap();
            session.enable(event, 0).unwrap();
            let mut traced = 0;
            if !begins {
                scene.trace.trace(&mut session, true, false).unwrap();
                traced += usize::from(scene.mock.trace_branch(&call));
            }
            let before = scene.mock.accesses().total();
            scene.mock.inject(Fault::From(access));
            let outcome = operation(scene, &mut session);
            let is_over = scene.mock.accesses().total() - before < access;
            assert_eq!(outcome.is_ok(), is_over, "{what}: {outcome:?}");
            scene.mock.inject(Fault::None);
            // The processor may trace as long as it cannot be stopped.
            let is_traced = scene.mock.trace_branch(&call);
            assert!(!is_traced || scene.trace.is_tracing(), "{what}: {outcome:?}");
            traced += usize::from(is_traced);
            if outcome.is_err() {
                let repeated = operation(scene, &mut session);
                assert!(repeated.is_ok(), "{what}: {outcome:?}, {repeated:?}");
            }
            assert_eq!(scene.trace.is_tracing(), !ends, "{what}: {outcome:?}");
            assert_eq!(scene.mock.trace_branch(&call), !ends, "{what}: {outcome:?}");
            traced += usize::from(!ends);
            if number != 6 {
                session.shut_down().expect(&what);
            }
            assert_eq!(scene.seen.take().len(), traced, "{what}: {outcome:?}");
            nothing_is_enabled(scene.mock, &what);
            if is_over {
                assert!(access > 2, "{what}");
                break;
            }
        }
    }
}

/// `IA32_DEBUGCTL` or `IA32_DS_AREA` does not answer: the request is refused for good, and a window's end fails.
#[test]
fn a_trace_that_cannot_begin_does_not_begin_later_and_one_that_cannot_go_on_does() {
    let scene = scene();
    let mut session = scene.take();
    let event = session.open(&scene.counters, &[raw(3).every(10_000)]).unwrap();
    let change = |session: &mut Traced| {
        session.enable(event, 0).unwrap();
        session.disable(event, 0).unwrap();
    };
    let call = branch(0, 0x40_0000, 0x41_0000);
    for register in [0x1D9, 0x600] {
        scene.mock.inject(Fault::Register(register));
        scene.trace.trace(&mut session, true, false).unwrap_err();
        scene.mock.inject(Fault::None);
        change(&mut session);
        assert!(!scene.mock.trace_branch(&call) && !scene.trace.is_tracing(), "{register:#x}");
    }
    scene.trace.trace(&mut session, true, false).unwrap();
    let window = session.lend(0, |_| ()).unwrap();
    scene.mock.inject(Fault::Register(0x1D9));
    window.end(0).unwrap_err();
    scene.mock.inject(Fault::None);
    assert!(!scene.mock.trace_branch(&call));
    change(&mut session);
    assert!(scene.mock.trace_branch(&call));
    session.shut_down().unwrap();
    nothing_is_enabled(scene.mock, "shut down");
}

/// Precise records and a trace of one processor, which share the area.
pub(crate) struct Beside {
    pub(crate) scene: &'static precise::Scene,
    pub(crate) trace: Trace,
    pub(crate) branches: &'static Cell<u64>,
    pub(crate) memory: &'static BranchTraceMemory,
}

pub(crate) type Both = (Option<Pebs<'static>>, Trace);

impl Records for Both {
    fn record(&self) -> Option<pmu_intel::precise::PreciseRecord<'static>> {
        self.0.record()
    }
}

impl Records for (Trace, Option<Pebs<'static>>) {
    fn record(&self) -> Option<pmu_intel::precise::PreciseRecord<'static>> {
        self.1.record()
    }
}

impl Beside {
    pub(crate) fn new(mut processor: Processor) -> &'static Self {
        processor.records.branch_trace = true;
        let memory: &'static BranchTraceMemory<[AtomicU64; 1024]> =
            Box::leak(Box::new(BranchTraceMemory::new()));
        let first = ptr::from_ref(memory).cast::<AtomicU64>();
        // SAFETY: one page behind the area begins the buffer of atomic words.
        let buffer = unsafe { core::slice::from_raw_parts(first.add(512), 1024) };
        let scene = precise::Scene::beside(processor, buffer);
        let unit = BranchTraceUnit::detect(&scene.mock.snapshot(), scene.mock).unwrap();
        let branches: &'static Cell<u64> = Box::leak(Box::default());
        let report: &'static dyn Fn(Branch) =
            Box::leak(Box::new(|_| branches.set(branches.get() + 1)));
        // SAFETY: the mock writes to the lent memory alone, which lasts.
        let trace = unsafe { BranchTrace::new(unit, memory, Some(scene.memory), report) };
        Box::leak(Box::new(Self { scene, trace, branches, memory }))
    }

    /// Takes the counters with these facilities, which the handler has, too.
    pub(crate) fn take<F: EventFacility + Records + 'static>(
        &'static self,
        facility: F,
    ) -> CounterSession<'static, Events<'static, CounterUnit, F>, Msr> {
        let (scene, mock) = (self.scene, self.scene.mock);
        let source = Events::new(&scene.counters, &scene.table as &EventTable).with(facility);
        let memory = &scene.counter_memory;
        mock.on_interrupt(Box::leak(Box::new(move |mock: &Mock<'static>| {
            let serviced = service(&source, mock, memory, |sample| scene.note(&sample));
            scene.served(serviced.ok().map(|serviced| serviced.claim));
        })));
        let all = CounterSet::ALL;
        let taken = CounterSession::take(source, &scene.counters, all, mock, memory);
        let mut session = taken.unwrap();
        if scene.processor.freezes {
            session.freeze_on_interrupt().unwrap();
        }
        session
    }

    pub(crate) fn both(&self) -> Both {
        (self.scene.pebs(), self.trace)
    }
}

/// The trace begins before a precise event starts or after that, and ends before the event is closed or after that.
fn share<F: EventFacility + Records + 'static>(pair: fn(Option<Pebs<'static>>, Trace) -> F) {
    let formats = processors().into_iter().filter(|p| ["format 3", "format 4"].contains(&p.name));
    let orders = [(false, false), (false, true), (true, false), (true, true)];
    for (processor, (trace_begins, trace_ends)) in
        formats.flat_map(|of| orders.map(|order| (of, order)))
    {
        let what = format!("{}, {trace_begins}, {trace_ends}", precise::name(&processor));
        let beside = Beside::new(processor);
        let (scene, trace) = (beside.scene, beside.trace);
        // Both can begin again.
        for round in 1..=2 {
            let call = branch(0, 0x40_0000, 0x41_0000);
            let mut session = beside.take(pair(scene.pebs(), trace));
            let event = session.open(&scene.counters, &[precise::precise(0)]).unwrap();
            if trace_begins {
                trace.trace(&mut session, true, false).unwrap();
                session.enable(event, 0).unwrap();
            } else {
                session.enable(event, 0).unwrap();
                trace.trace(&mut session, true, false).unwrap();
            }
            let area = words(scene.memory)[0].as_ptr() as u64;
            assert_eq!(scene.read(0x600), area, "{what}");
            assert!(scene.mock.trace_branch(&call), "{what}");
            scene.happen(0, PERIOD);
            if trace_ends {
                trace.trace(&mut session, false, false).unwrap();
                assert_eq!(scene.read(0x600), area, "{what}");
                scene.happen(0, PERIOD);
            } else {
                session.close(event, 0).unwrap();
                assert_eq!((scene.read(0x600), scene.enabled()), (area, 0), "{what}");
                assert!(scene.mock.trace_branch(&call), "{what}");
            }
            session.shut_down().unwrap();
            let (records, branches) = if trace_ends { (2, 1) } else { (1, 2) };
            let found = (scene.reported(), beside.branches.get());
            assert_eq!(found, (round * records, round as u64 * branches), "{what}");
            nothing_is_enabled(scene.mock, &what);
            assert_eq!((scene.memory.dropped(), beside.memory.lost()), (Default::default(), 0));
        }
    }
}

#[test]
fn a_trace_beside_precise_records_shares_their_area_whatever_begins_and_ends_first() {
    share(|pebs, trace| (pebs, trace));
    share(|pebs, trace| (trace, pebs));
}

/// Bit 62 of the status is of both: one interrupt, which both read.
#[test]
fn a_trace_beside_precise_records_claims_their_interrupt_once() {
    // A processor that freezes its counters always has the handler expect a further interrupt.
    let is_meant = |processor: &Processor| !processor.freezes;
    let processor = precise::named("format 4").find(is_meant).unwrap();
    for has_trace in [false, true] {
        let beside = Beside::new(processor);
        let scene = beside.scene;
        let mut session = beside.take(beside.both());
        let event = session.open(&scene.counters, &[precise::precise(0)]).unwrap();
        session.enable(event, 0).unwrap();
        beside.trace.trace(&mut session, has_trace, false).unwrap();
        assert_eq!(scene.mock.trace_branch(&branch(0, 0x40_0000, 0x41_0000)), has_trace);
        scene.happen(0, PERIOD);
        let found = (scene.samples(0), beside.branches.get(), scene.claimed.get());
        assert_eq!(found, (1, u64::from(has_trace), 1), "a trace: {has_trace}");
        session.shut_down().unwrap();
        nothing_is_enabled(scene.mock, processor.name);
    }
}
