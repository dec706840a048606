//! Every branch of a processor, through a `Pmu` whose kernel chose branch traces, alone and beside precise records.

use core::cell::{Cell, RefCell};
use core::marker::PhantomData;

use pmu::core::branches::Branch;
use pmu::core::error::{CounterError, NoFacility, NoInterface};
use pmu::core::frame::PlainFrame;
use pmu::core::precise::Precision;
use pmu::core::registers::EventSelect;
use pmu::core::x86::raw_cpuid::CpuIdResult;
use pmu::core::{CounterSet, Event};
use pmu::facilities::{BranchTraces, PreciseRecords, SoftwareEvents, X86Facilities};
use pmu::processors::Busy;
use pmu::{Kernel, Pmu, PmuError, PmuSample, Snapshot, X86};
use pmu_core::access::{RegisterAddress, RegisterBackend};
use pmu_tests::opened::Random;
use pmu_tests::software_pmu::{general_events, general_feed};
use pmu_virt::branches::{FedBranch, FedBranchKind};
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration};
use pmu_virt::mock::{Fault, MockMsr, ProcessMemory};
use pmu_virt::precise::{FedRecord, PreciseConfiguration, VirtualPrecise};
use pmu_virt::{Privilege, VirtualPmu};

type Mock = MockMsr<'static, 64>;

/// Branches retired.
const KINDS: [u8; 1] = [0xC4];
const WORDS: usize = 1024;
/// Number of branches that fill three quarters of a buffer with room for 341 branches.
const THRESHOLD: usize = 256;
const PHYSICAL: u64 = 0x10_0000;
const PERIOD: u64 = 5_000;

/// Bit of `IA32_DEBUGCTL` that is a debugger's.
const BTF: u64 = 1 << 1;

/// Addresses of the code of user mode and of the kernel.
const CODE: [u64; 2] = [0x40_0000, 0xFFFF_FFFF_8000_0000];

thread_local! {
    static MOCK: Cell<Option<&'static Mock>> = const { Cell::new(None) };
    static COUNTERS: Cell<CounterSet> = const { Cell::new(CounterSet::ALL) };
    /// The branches that the kernel got.
    static TRACED: RefCell<Vec<[u64; 2]>> = const { RefCell::new(vec![]) };
    /// The interrupts that its handler claimed, and the precise samples.
    static SERVED: Cell<[u64; 2]> = const { Cell::new([0; 2]) };
}

fn mock() -> &'static Mock {
    MOCK.get().unwrap()
}

struct Registers;

pmu_tests::delegate_registers!(Registers, mock);

struct Tracing<F>(PhantomData<F>);

// SAFETY: (1) each test has one thread, and a `Pmu` of its own; (2) its processor is a mock, which writes to the lent
// memory alone.
unsafe impl<F: X86Facilities> Kernel for Tracing<F> {
    pmu_tests::one_processor!(Registers, mock);
    type Architecture = X86<F>;
    fn sampled(sample: &PmuSample<'_, Self>) {
        let [claimed, samples] = SERVED.get();
        SERVED.set([claimed, samples + u64::from(sample.instruction().is_some())]);
    }
    fn branch_traced(branch: Branch) {
        TRACED.with_borrow_mut(|traced| traced.push([branch.from, branch.to]));
    }
    fn physical_address(_: *const (), _: usize) -> Option<u64> {
        Some(PHYSICAL)
    }
    fn counters() -> CounterSet {
        COUNTERS.get()
    }
}

type Alone = BranchTraces<WORDS>;
type After = (PreciseRecords<WORDS>, BranchTraces<WORDS>);
type Before = (BranchTraces<WORDS>, PreciseRecords<WORDS>);
type Nested = ((SoftwareEvents, PreciseRecords<WORDS>), ((), BranchTraces<WORDS>));

/// A processor by its version, and its records.
type Processor = (u8, PreciseConfiguration);

/// Returns processors that trace: without precise records, with those of a Debug Store, which share its area with the
/// trace, and with architectural ones, which have none.
fn processors() -> [Processor; 4] {
    [
        (4, PreciseConfiguration::BRANCH_TRACE),
        (4, PreciseConfiguration::debug_store(3)),
        (5, PreciseConfiguration::debug_store(4)),
        (6, PreciseConfiguration::ARCHITECTURAL),
    ]
    .map(|(version, records)| (version, PreciseConfiguration { branch_trace: true, ..records }))
}

/// Runs a test on each processor, for kernels whose trace is alone, or stands before, after or beside precise records.
macro_rules! on_each {
    ($test:ident) => {
        for processor in processors() {
            $test::<Alone>(processor);
            $test::<After>(processor);
            $test::<Before>(processor);
            $test::<Nested>(processor);
        }
    };
}

fn intel(version: u8) -> Configuration {
    Configuration::Intel(IntelConfiguration::new(version, 4, 3))
}

fn reset((version, records): Processor) -> VirtualPrecise {
    VirtualPrecise::new(&intel(version), records).unwrap()
}

fn debug_control() -> u64 {
    mock().read(debug_register()).unwrap()
}

/// A debugger sets its bit, once the registers have their contents.
fn set_debugger() {
    mock().write(debug_register(), BTF).unwrap();
}

fn debug_register() -> RegisterAddress {
    // SAFETY: the mock's registers are numbers.
    unsafe { RegisterAddress::new(0x1D9) }
}

/// One processor, which is up, and the naive model of its trace: a list.
struct Scene<F: X86Facilities> {
    pmu: &'static Pmu<Tracing<F>, 1>,
    processor: Processor,
    /// The privilege levels of user mode and of the kernel that are traced.
    asked: [bool; 2],
    /// Addresses of the branches that the kernel is to get.
    expected: Vec<[u64; 2]>,
    number: u64,
}

impl<F: X86Facilities> Scene<F> {
    fn new(processor: Processor) -> Self {
        TRACED.take();
        SERVED.set([0; 2]);
        COUNTERS.set(CounterSet::ALL);
        let pmu = up::<F>(intel(processor.0), Some(processor));
        Self { pmu, processor, asked: [false; 2], expected: vec![], number: 0 }
    }

    fn trace(&mut self, asked: [bool; 2]) {
        self.pmu.trace_branches(asked[0], asked[1]).unwrap();
        // As the trace changes, the kernel gets what waits.
        if core::mem::replace(&mut self.asked, asked) != asked {
            self.agrees("asked anew");
        }
    }

    /// Branches from and to these privilege levels.
    fn branch(&mut self, [from, to]: [usize; 2]) {
        self.unseen([from, to]);
        if self.asked[from] && self.asked[to] {
            self.expected.push([CODE[from] + 16 * self.number, CODE[to] + 16 * self.number]);
        }
    }

    /// Branches while nothing is traced. Returns whether the processor wrote the branch.
    fn unseen(&mut self, [from, to]: [usize; 2]) -> bool {
        self.number += 1;
        let privilege = if from == 1 { Privilege::Kernel } else { Privilege::User };
        let [from, to] = [from, to].map(|of| CODE[of] + 16 * self.number);
        mock().trace_branch(&FedBranch::new(from, to, FedBranchKind::RelativeJump, privilege))
    }

    /// The kernel has got what it is to get by now.
    #[track_caller]
    fn agrees(&self, what: &str) {
        TRACED.with_borrow(|traced| {
            assert_eq!(traced, &self.expected, "{what}, {:?}", self.processor)
        });
        let memory = self.pmu.branch_trace_memory();
        if let Ok(memory) = memory {
            assert_eq!((memory.lost(), mock().lost_records()), (0, 0), "{what}");
            assert_eq!(memory.is_tracing(), self.asked != [false; 2], "{what}");
        }
    }

    /// The processor goes down, and nothing of the trace is left.
    fn ends(self) {
        self.pmu.processor_down().unwrap();
        self.agrees("down");
        assert_eq!(debug_control() & !BTF, 0);
        let left = mock().with_precise_records(|records| {
            let area = mock().with_pmu(|pmu| pmu.read_beside(records, 0x600));
            (records.enabled(), records.due(), area)
        });
        assert_eq!(left, Some((0, 0, pmu_virt::Read::Value(0))));
        assert_eq!(mock().breach(), None);
    }
}

/// Makes a machine of one processor, which is up. The handler passes its interrupts on.
fn up<F: X86Facilities>(
    configuration: Configuration,
    traces: Option<Processor>,
) -> &'static Pmu<Tracing<F>, 1> {
    let pmu = Box::leak(Box::new(Pmu::new()));
    up_on(pmu, configuration, traces);
    pmu
}

fn up_on<F: X86Facilities>(
    pmu: &'static Pmu<Tracing<F>, 1>,
    configuration: Configuration,
    traces: Option<Processor>,
) {
    let ram: &'static RefCell<ProcessMemory<'_>> = Box::leak(Box::default());
    let mut mock = Mock::strict(VirtualPmu::new(configuration, general_events(&KINDS)).unwrap());
    if let Some(processor) = traces {
        mock =
            mock.with_precise(reset(processor), ram, &|number| FedRecord::new(0x40_1000 + number));
    }
    let _ = mock.with_pmu(|pmu| pmu.write(0x38F, 0));
    MOCK.set(Some(Box::leak(Box::new(mock))));
    let handler = move |_: &Mock| {
        let interrupted = pmu.interrupt(&PlainFrame::default());
        assert_eq!(interrupted.error, None);
        let [claimed, samples] = SERVED.get();
        SERVED.set([claimed + u64::from(interrupted.claim.interrupts()), samples]);
    };
    self::mock().on_interrupt(Box::leak(Box::new(handler)));
    pmu.processor_up(&self::mock().snapshot()).unwrap();
    let mut memory = ProcessMemory::default();
    if let Ok((_, records)) = pmu.precise_records(0) {
        // SAFETY: the area and the buffer, one page behind it, consist of atomics.
        memory = unsafe { memory.with(records, PHYSICAL - 0x1000) };
    }
    if let Ok(trace) = pmu.branch_trace_memory() {
        // SAFETY: as those of records.
        memory = unsafe { memory.with(trace, 2 * PHYSICAL) };
    }
    ram.replace(memory);
}

fn event() -> Event {
    Event::raw(EventSelect::from_bits(KINDS[0].into())).user_only().every(PERIOD)
}

static PMU: Pmu<Tracing<Alone>, 1> = Pmu::new();

// ANCHOR: trace
/// Passes each branch that `run` takes in user mode to `Kernel::branch_traced`.
fn trace(run: impl FnOnce()) -> Result<(), PmuError> {
    PMU.trace_branches(true, false)?; // user mode's, not the kernel's
    run();
    PMU.trace_branches(false, false)
}
// ANCHOR_END: trace

#[test]
fn the_guides_trace_is_that_of_a_program() {
    let processor = processors()[0];
    up_on(&PMU, intel(processor.0), Some(processor));
    let mut scene = Scene { pmu: &PMU, processor, asked: [false; 2], expected: vec![], number: 0 };
    trace(|| {
        scene.asked = [true, false];
        (0..300).for_each(|_| scene.branch([0, 0]));
    })
    .unwrap();
    scene.asked = [false; 2];
    assert_eq!(scene.expected.len(), 300);
    scene.ends();
}

fn levels_are_traced<F: X86Facilities>(processor: Processor) {
    let mut scene = Scene::<F>::new(processor);
    assert!(!scene.unseen([0, 0]), "before");
    let pmu = scene.pmu;
    scene.trace([true, false]);
    // Jumps, a system call and its return: an address of the kernel is not for a trace of user mode.
    for levels in [[0, 0], [0, 0], [0, 1], [1, 1], [1, 0], [0, 0]] {
        scene.branch(levels);
    }
    scene.trace([false; 2]);
    scene.agrees("after");
    assert_eq!((scene.expected.len(), pmu.branch_trace_memory().unwrap().hidden()), (3, 1));
    assert!(!scene.unseen([0, 0]), "after");
    scene.ends();
}

#[test]
fn a_kernel_gets_the_branches_of_the_levels_that_it_asks_for_in_order() {
    on_each!(levels_are_traced);
}

fn a_full_buffer_interrupts<F: X86Facilities>(processor: Processor) {
    for asked in [[true, false], [false, true], [true, true]] {
        let mut scene = Scene::<F>::new(processor);
        let level = usize::from(asked[1]);
        scene.trace(asked);
        for _ in 1..THRESHOLD {
            scene.branch([level; 2]);
        }
        assert_eq!((TRACED.with_borrow(Vec::len), mock().interrupts()), (0, 0));
        // No event counts.
        scene.branch([level; 2]);
        scene.agrees("full");
        assert_eq!((mock().interrupts(), SERVED.get()[0] >= 1), (1, true));
        scene.branch([level; 2]);
        scene.pmu.drain_branches().unwrap();
        scene.agrees("drained");
        scene.branch([level; 2]);
        scene.pmu.processor_down().unwrap();
        scene.asked = [false; 2];
        scene.agrees("down");
        assert!(!scene.unseen([level; 2]), "down");
        scene.pmu.processor_up(&mock().snapshot()).unwrap();
        assert!(!scene.unseen([level; 2]), "the request ended with the session");
        scene.trace(asked);
        scene.branch([level; 2]);
        scene.trace([false; 2]);
        scene.ends();
    }
}

#[test]
fn a_full_buffer_interrupts_and_what_waits_comes_as_the_processor_goes_down() {
    on_each!(a_full_buffer_interrupts);
}

/// Whatever happens to a processor, beside precise events if it has any: the kernel gets the list, in order.
fn anything_happens<F: X86Facilities>(processor: Processor) {
    let mut scene = Scene::<F>::new(processor);
    let pmu = scene.pmu;
    let is_precise = pmu.precise_records(0).is_ok();
    let event = if is_precise { event().precise(Precision::ConstantSkid) } else { event() };
    set_debugger();
    let mut random = Random(0x5EED + u64::from(processor.0));
    let (mut opened, mut samples) = (None, 0);
    for _ in 0..300 {
        match random.below(9) {
            0 => scene.trace([random.below(2) != 0, random.below(2) != 0]),
            1 => pmu.drain_branches().unwrap(),
            2 => {
                let busy = Err(PmuError::Session(Busy::InUse));
                let guest = |_: &mut _| {
                    assert!(!scene.unseen([0, 0]));
                    assert_eq!(pmu.trace_branches(true, true), busy);
                };
                pmu.lend(guest).unwrap();
                scene.agrees("lent");
            }
            3 => {
                pmu.processor_suspended().unwrap();
                assert_eq!(pmu.trace_branches(true, true), Err(PmuError::Suspended));
                scene.agrees("suspended");
                assert!(!scene.unseen([0, 0]));
                mock().lose_registers();
                set_debugger();
                mock().set_performance_entry(0x400);
                mock().with_precise_records(|records| *records = reset(processor));
                pmu.processor_resumed().unwrap();
            }
            4 => match opened.take() {
                Some(event) => pmu.close(event).unwrap(),
                None => opened = Some(pmu.start(&event).unwrap()),
            },
            5 => {
                mock().advance(&mut general_feed(&KINDS, 0, PERIOD));
                samples += u64::from(is_precise && opened.is_some());
                if opened.is_some() {
                    scene.agrees("a counter's interrupt");
                }
            }
            6 if random.below(4) == 0 => {
                pmu.processor_down().unwrap();
                (scene.asked, opened) = ([false; 2], None);
                scene.agrees("down");
                assert!(!scene.unseen([1, 1]));
                pmu.processor_up(&mock().snapshot()).unwrap();
            }
            _ => {
                for _ in 0..random.below(300) {
                    scene.branch([random.below(2) as usize, random.below(2) as usize]);
                }
            }
        }
        assert_eq!(debug_control() & BTF, BTF);
    }
    assert!(scene.expected.len() > 1_000 && (!is_precise || samples > 5));
    assert_eq!(SERVED.get()[1], samples, "{processor:?}");
    scene.asked = [false; 2];
    scene.ends();
}

#[test]
fn whatever_happens_to_a_processor_the_kernel_gets_the_list() {
    on_each!(anything_happens);
}

type Operation<F> = fn(&'static Pmu<Tracing<F>, 1>) -> Result<(), PmuError>;

/// A fault that lasts from each access of each operation on: nothing is lost, and the repeat does what was to be done.
fn operations_fail<F: X86Facilities>(processor: Processor) {
    let operations: [(Operation<F>, [bool; 2]); 7] = [
        (|pmu| pmu.trace_branches(true, false), [true, false]),
        (|pmu| pmu.trace_branches(true, true), [true, true]),
        (|pmu| pmu.trace_branches(false, false), [false; 2]),
        (|pmu| pmu.drain_branches(), [true, false]),
        (|pmu| pmu.lend(|_| ()).or_else(|_| pmu.processor_resumed().map(drop)), [true, false]),
        (
            |pmu| {
                let suspended = pmu.processor_suspended();
                pmu.processor_resumed().map(drop).and(suspended)
            },
            [true, false],
        ),
        (|pmu| pmu.processor_down(), [false; 2]),
    ];
    for (number, (operation, asked)) in operations.into_iter().enumerate() {
        for access in 1.. {
            let what = format!("{number}, {access}, {processor:?}");
            let mut scene = Scene::<F>::new(processor);
            set_debugger();
            if scene.pmu.precise_records(0).is_ok() {
                scene.pmu.start(&event().precise(Precision::ConstantSkid)).unwrap();
            }
            if number != 0 {
                scene.trace([true, false]);
                scene.branch([0, 0]);
            }
            let before = mock().accesses().total();
            mock().inject(Fault::From(access));
            let outcome = operation(scene.pmu);
            let is_over = mock().accesses().total() - before < access;
            assert_eq!(outcome.is_ok(), is_over, "{what}: {outcome:?}");
            mock().inject(Fault::None);
            if let Err(error) = outcome {
                let is_kind = matches!(error, PmuError::Counters(_) | PmuError::Interface(_));
                assert!(is_kind, "{what}: {error}");
                // The processor may trace as long as it cannot be stopped.
                if scene.unseen([0, 0]) {
                    let at = CODE[0] + 16 * scene.number;
                    scene.expected.push([at; 2]);
                    assert!(scene.pmu.branch_trace_memory().unwrap().is_tracing(), "{what}");
                }
                let repeated = operation(scene.pmu);
                assert_eq!(repeated, Ok(()), "{what}: {outcome:?}");
            }
            scene.asked = asked;
            scene.branch([0, 0]);
            assert_eq!(debug_control() & BTF, BTF, "{what}");
            if number != 6 {
                scene.trace([false; 2]);
                scene.ends();
            } else {
                scene.agrees(&what);
                assert_eq!(debug_control(), BTF, "{what}");
            }
            if is_over {
                assert!(access > 2, "{what}");
                break;
            }
        }
    }
}

#[test]
fn after_a_lasting_fault_of_an_operation_a_repeat_does_it() {
    on_each!(operations_fail);
}

#[test]
fn what_cannot_trace_says_why() {
    let records = |records| Some((4, records));
    let amd = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    for (configuration, traces, why) in [
        (intel(4), None, NoFacility::NotDeclared),
        (intel(4), records(PreciseConfiguration::debug_store(3)), NoFacility::Unavailable),
        (amd, None, NoFacility::OtherVendor(*b"AuthenticAMD")),
    ] {
        let pmu = up::<After>(configuration, traces);
        is_refused(pmu, |error| error == PmuError::Facility(why));
        pmu.processor_down().unwrap();
        is_refused(pmu, |error| error == PmuError::NotUp);
        assert_eq!(mock().breach(), None);
    }
    // The kernel has no trace among its facilities.
    let pmu = up::<PreciseRecords<WORDS>>(intel(4), Some(processors()[1]));
    is_refused(pmu, |error| error == PmuError::Facility(NoFacility::NotDeclared));
}

/// The trace's interrupt is that of the counters: the kernel takes none, or they do not answer, or there are none.
#[test]
fn without_counters_nothing_is_traced() {
    let processor = processors()[0];
    COUNTERS.set(CounterSet::NONE);
    let pmu = up::<Alone>(intel(4), Some(processor));
    is_refused(pmu, |error| matches!(error, PmuError::Counters(CounterError::NotAvailable(_))));
    pmu.processor_down().unwrap();
    COUNTERS.set(CounterSet::ALL);

    let no_counters = |why| PmuError::Facility(NoFacility::NoCounters(why));
    // From the first access to a counter on.
    let is_unresponsive = |access: u32| {
        mock().inject(Fault::From(access));
        pmu.processor_up(&mock().snapshot()) == Ok(CounterSet::NONE)
    };
    assert!((1..10).any(is_unresponsive));
    mock().inject(Fault::None);
    is_refused(pmu, |error| error == no_counters(NoInterface::Unresponsive));
    pmu.processor_down().unwrap();

    let without = Snapshot::capture(|leaf: u32, subleaf: u32| match leaf {
        0x0A => CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 },
        _ => mock().snapshot().leaf(leaf, subleaf),
    });
    let pmu: &'static Pmu<Tracing<Alone>, 1> = Box::leak(Box::new(Pmu::new()));
    pmu.processor_up(&without).unwrap();
    is_refused(pmu, |error| error == no_counters(NoInterface::NoPerformanceMonitoring));
    assert_eq!((debug_control(), mock().breach()), (0, None));
}

/// Each operation of the trace is refused.
#[track_caller]
fn is_refused<F: X86Facilities>(pmu: &'static Pmu<Tracing<F>, 1>, why: impl Fn(PmuError) -> bool) {
    for refused in [
        pmu.trace_branches(true, false),
        pmu.trace_branches(false, true),
        pmu.trace_branches(false, false),
        pmu.drain_branches(),
        pmu.branch_trace_memory().map(drop),
    ] {
        assert!(refused.is_err_and(&why), "{refused:?}");
    }
}
