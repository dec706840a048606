//! A kernel of three processors, each a mock. The test runs on one processor at a time.

use core::cell::{Cell, OnceCell, RefCell};

use pmu::apic::ApicRegisters;
use pmu::core::access::RegisterBackend;
use pmu::core::branches::{BranchMemory, BranchSlot};
use pmu::core::frame::PlainFrame;
use pmu::core::interrupt::EventOverflow;
use pmu::core::profile::KProfileSource;
use pmu::core::shared_core::{CoreCounters, CoreThread};
use pmu::core::x86::Snapshot;
use pmu::core::{CounterSet, Platform};
use pmu::facilities::{BranchRecords, PreciseRecords, SoftwareEvents, TopDownParts};
use pmu::intel::SiblingErratum;
use pmu::{Interrupted, Kernel, Pmu, PmuSample, X86, X86Kernel};
use pmu_tests::deviations::snapshot;
use pmu_tests::opened::{Mock, processors};
use pmu_virt::branches::{BranchConfiguration, VirtualBranches};
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::ibs::{IbsConfiguration, VirtualIbs};
use pmu_virt::mock::Deviations;
use pmu_virt::topdown::VirtualTopDown;
use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};

pub(crate) const PROCESSORS: usize = 3;

pub(crate) type TestPmu = Pmu<World, PROCESSORS, 24, 4>;

thread_local! {
    static MACHINE: Cell<Option<&'static Machine>> = const { Cell::new(None) };
}

/// The machine of the test's thread.
pub(crate) fn machine() -> &'static Machine {
    MACHINE.get().expect("the test made a machine")
}

/// An event that happens.
#[derive(Clone, Copy)]
pub(crate) enum Happens {
    Instructions,
    Cycles,
    LastCacheMisses,
}

/// Hardware beside the counters, which the handler serves.
#[derive(Clone, Copy, PartialEq)]
enum Beside {
    Nothing,
    Branches(BranchConfiguration),
    /// Top-down counts; `true`: those of P-cores have level 2.
    TopDown(bool),
}

/// By the manuals' numbers.
fn key(configuration: Configuration, event: Happens) -> EventKey {
    let intel = matches!(configuration, Configuration::Intel(_));
    match event {
        Happens::Instructions => EventKey::general(0xC0, 0),
        Happens::Cycles if intel => EventKey::general(0x3C, 0),
        Happens::Cycles => EventKey::general(0x76, 0),
        Happens::LastCacheMisses => EventKey::general(0x2E, 0x41),
    }
}

/// Returns the processors of each machine: alike, of each kind; and of two types of core.
pub(crate) fn machines() -> Vec<[Configuration; PROCESSORS]> {
    let alike = processors(Deviations::NONE).into_iter().map(|of| [of.configuration; PROCESSORS]);
    let core = |general, fixed| Configuration::Intel(IntelConfiguration::new(5, general, fixed));
    let (large, small) = (core(8, 4), core(6, 3));
    alike.chain([[large, small, large], [small, large, small]]).collect()
}

/// A sample: the processor, the profile's source, and where the branches before it come from.
type Sampled = (usize, Option<KProfileSource>, Vec<u64>);

pub(crate) struct Machine {
    /// Of the boot processor.
    pub(crate) configuration: Configuration,
    configurations: [Configuration; PROCESSORS],
    pub(crate) mocks: [Mock<'static>; PROCESSORS],
    pub(crate) events: FedEvents,
    here: Cell<usize>,
    pinned: Cell<u32>,
    /// The scheduler moves the task to this processor as soon as the task is not pinned any more.
    pub(crate) moves_to: Cell<Option<usize>>,
    pmu: OnceCell<&'static TestPmu>,
    /// Interrupts to other processors do not arrive.
    pub(crate) is_deaf: Cell<bool>,
    /// A handler of the kernel is under way.
    pub(crate) is_in_interrupt: Cell<bool>,
    /// Sampled ops interrupt by a vector.
    pub(crate) by_vector: Cell<bool>,
    /// Processors 0 and 1 share a core with the erratum of memory events.
    pub(crate) has_erratum: Cell<bool>,
    /// The counters that the kernel takes.
    pub(crate) takes: Cell<CounterSet>,
    core: CoreCounters,
    /// Address of the code that runs on each processor.
    pub(crate) pc: [Cell<u64>; PROCESSORS],
    pub(crate) interrupted: RefCell<Vec<(usize, Interrupted)>>,
    pub(crate) overflows: RefCell<Vec<(usize, EventOverflow)>>,
    /// Nanoseconds by the kernel's clock.
    pub(crate) now: Cell<u64>,
    /// The time for which each processor's timer of the clocks is set.
    pub(crate) clock_timers: [Cell<Option<u64>>; PROCESSORS],
    beside: Beside,
    /// Call stacks of threads, by the tags of their events.
    stacks: [BranchMemory<[BranchSlot; 32]>; 3],
    /// Samples with the branches before them, the newest first: of a processor, from these addresses.
    pub(crate) sampled: RefCell<Vec<Sampled>>,
}

impl Machine {
    /// Makes the machine of this thread, and its `Pmu`.
    pub(crate) fn new(configuration: Configuration) -> (&'static Self, &'static TestPmu) {
        Self::of([configuration; PROCESSORS])
    }

    /// Makes a machine of these processors, the first of which is the boot processor.
    pub(crate) fn of(
        configurations: [Configuration; PROCESSORS],
    ) -> (&'static Self, &'static TestPmu) {
        Self::make(configurations, Beside::Nothing, &[])
    }

    /// Makes a machine whose processors have branch records, which the handler serves.
    pub(crate) fn with_branches(
        configuration: Configuration,
        branches: BranchConfiguration,
    ) -> (&'static Self, &'static TestPmu) {
        Self::make([configuration; PROCESSORS], Beside::Branches(branches), &[])
    }

    /// Makes a machine whose processors have top-down counts, which the handler serves. Those with a counter of slots
    /// have metrics. `others` happen, too.
    pub(crate) fn with_top_down(
        configurations: [Configuration; PROCESSORS],
        level_2: bool,
        others: &[EventKey],
    ) -> (&'static Self, &'static TestPmu) {
        Self::make(configurations, Beside::TopDown(level_2), others)
    }

    fn make(
        configurations: [Configuration; PROCESSORS],
        beside: Beside,
        others: &[EventKey],
    ) -> (&'static Self, &'static TestPmu) {
        let [configuration, ..] = configurations;
        let keys = [Happens::Instructions, Happens::Cycles, Happens::LastCacheMisses];
        let mut keys = keys.map(|event| key(configuration, event)).to_vec();
        keys.extend_from_slice(others);
        let events = FedEvents::new(&keys).unwrap();
        let mocks = configurations.map(|configuration| {
            let mock = Mock::strict(VirtualPmu::new(configuration, events).unwrap())
                .with_sampling(VirtualIbs::new(IbsConfiguration::ZEN_4));
            let mock = match beside {
                Beside::Nothing => mock,
                Beside::Branches(records) => {
                    mock.with_branches(VirtualBranches::new(&configuration, records).unwrap())
                }
                Beside::TopDown(level_2) => {
                    match VirtualTopDown::new(&configuration, level_2) {
                        Ok(metrics) => mock.with_top_down(metrics),
                        Err(_) => mock, // an E-core
                    }
                }
            };
            for control in [0x38F, 0xC000_0301] {
                let _ = mock.with_pmu(|pmu| pmu.write(control, 0)); // No other owner's counters run.
            }
            mock
        });
        let machine = Self {
            configuration,
            configurations,
            mocks,
            events,
            here: Cell::new(0),
            pinned: Cell::new(0),
            moves_to: Cell::new(None),
            pmu: OnceCell::new(),
            is_deaf: Cell::new(false),
            is_in_interrupt: Cell::new(false),
            by_vector: Cell::new(false),
            has_erratum: Cell::new(false),
            takes: Cell::new(CounterSet::ALL),
            core: CoreCounters::new(),
            pc: [const { Cell::new(0) }; PROCESSORS],
            interrupted: RefCell::default(),
            overflows: RefCell::default(),
            now: Cell::new(0),
            clock_timers: [const { Cell::new(None) }; PROCESSORS],
            beside,
            stacks: [const { BranchMemory::new() }; 3],
            sampled: RefCell::default(),
        };
        let machine: &'static Self = Box::leak(Box::new(machine));
        for mock in &machine.mocks {
            mock.on_interrupt(&|_| self::machine().performance_interrupt());
        }
        let pmu = *machine.pmu.get_or_init(|| Box::leak(Box::new(Pmu::new())));
        MACHINE.set(Some(machine));
        (machine, pmu)
    }

    pub(crate) fn pmu(&self) -> &'static TestPmu {
        self.pmu.get().unwrap()
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let here = self.here.get().min(PROCESSORS - 1);
        let is_amd = matches!(self.configurations[here], Configuration::Amd(_));
        if is_amd || self.beside != Beside::Nothing {
            return self.mocks[here].snapshot();
        }
        snapshot(self.configurations[here], Deviations::NONE)
    }

    /// Runs a part of the test on a processor.
    pub(crate) fn on<R>(&self, processor: usize, act: impl FnOnce() -> R) -> R {
        let (here, pinned) = (self.here.replace(processor), self.pinned.replace(0));
        let result = act();
        self.here.set(here);
        self.pinned.set(pinned);
        result
    }

    /// An event happens on a processor, in the kernel.
    pub(crate) fn happen(&self, processor: usize, event: Happens, count: u64) {
        let mut feed = Feed::new(&self.events);
        let event = self.events.find(key(self.configuration, event)).unwrap();
        feed.add(event, Privilege::Kernel, count).unwrap();
        self.on(processor, || self.mocks[processor].advance(&mut feed));
    }

    /// An event happens on a processor whose interrupts are off, in the kernel.
    pub(crate) fn pass(&self, processor: usize, event: Happens, count: u64) {
        let mut feed = Feed::new(&self.events);
        let event = self.events.find(key(self.configuration, event)).unwrap();
        feed.add(event, Privilege::Kernel, count).unwrap();
        while !feed.is_empty() {
            self.mocks[processor].pass(&mut feed);
        }
    }

    fn performance_interrupt(&self) {
        let here = self.here.get();
        let frame =
            PlainFrame { pc: self.pc[here].get(), cs: 8, flags: 2, processor: here, process: None };
        if let Beside::Branches(_) = self.beside {
            let note = |sample: &PmuSample<'_, World>| {
                let found = sample.branches().map(|branch| branch.from).collect();
                self.sampled.borrow_mut().push((here, sample.source(), found));
            };
            let interrupted = sampling(note, || self.pmu().interrupt(&frame));
            self.interrupted.borrow_mut().push((here, interrupted));
            return;
        }
        let note = |sample: &PmuSample<'_, World>| {
            // Those of profiles' sources are in their buckets.
            if sample.source().is_none() {
                self.overflows.borrow_mut().push((here, ***sample));
            }
        };
        let interrupted = sampling(note, || self.pmu().interrupt(&frame));
        self.interrupted.borrow_mut().push((here, interrupted));
    }

    /// Brings all processors up.
    pub(crate) fn up(&self) {
        for processor in 0..PROCESSORS {
            self.on(processor, || self.pmu().processor_up(&self.snapshot())).unwrap();
        }
    }

    /// Gives all counters back, of which none runs then.
    pub(crate) fn down(&self) {
        for processor in 0..PROCESSORS {
            self.on(processor, || self.pmu().processor_down()).unwrap();
        }
        assert!(self.mocks.iter().all(|mock| pmu_tests::opened::running(mock).is_empty()));
    }
}

/// The registers of the processor on which the test runs.
pub(crate) struct Registers;

fn mock() -> &'static Mock<'static> {
    let machine = machine();
    &machine.mocks[machine.here.get()]
}

pmu_tests::delegate_registers!(Registers, mock);
pmu_tests::delegate_apic!(
    Registers,
    mock,
    if machine().by_vector.get() { 0x1_00E1 } else { 0x1_0400 }
);

/// The kernel.
pub(crate) struct World;

pmu_tests::sampling!(World);

impl X86Kernel for World {
    fn apic<M: RegisterBackend>(_: M) -> Option<impl ApicRegisters> {
        Some(Registers)
    }

    fn shared_core() -> Option<CoreThread<'static>> {
        let (machine, second) = (machine(), Self::this_processor() == 1);
        let is_shared = machine.has_erratum.get() && Self::this_processor() < 2;
        is_shared.then(|| CoreThread::new(&machine.core, second, SiblingErratum::EVENTS))
    }
}

// SAFETY: each test has one thread, and a `Pmu` of its own.
unsafe impl Kernel for World {
    type Registers = Registers;
    type Architecture =
        X86<((BranchRecords, PreciseRecords<512>), (TopDownParts, SoftwareEvents)), Self>;
    const CLOCK_TIMER: bool = true;

    fn registers() -> Registers {
        Registers
    }

    fn this_processor() -> usize {
        machine().here.get()
    }

    fn counters() -> CounterSet {
        machine().takes.get()
    }

    fn pinned<R>(act: impl FnOnce() -> R) -> R {
        let (machine, here) = (machine(), Self::this_processor());
        machine.pinned.set(machine.pinned.get() + 1);
        let result = act();
        assert_eq!(Self::this_processor(), here);
        machine.pinned.set(machine.pinned.get() - 1);
        if machine.pinned.get() == 0
            && let Some(processor) = machine.moves_to.take()
        {
            machine.here.set(processor);
        }
        result
    }

    fn set_interrupt_masked(masked: bool) {
        if masked {
            mock().mask_performance_interrupt();
        } else {
            mock().unmask_performance_interrupt();
        }
    }

    fn in_interrupt() -> bool {
        machine().is_in_interrupt.get()
    }

    fn interrupt(processor: usize) {
        if !machine().is_deaf.get() {
            machine().on(processor, || machine().pmu().serve_call());
        }
    }

    fn sampled(sample: &PmuSample<'_, Self>) {
        sampled(sample);
    }

    fn now() -> u64 {
        machine().now.get()
    }

    fn call_stack(tag: u64) -> Option<&'static BranchMemory> {
        Some(machine().stacks.get(tag as usize)?)
    }

    fn set_clock_timer(at: Option<u64>) {
        machine().clock_timers[Self::this_processor()].set(at);
    }

    fn keep_waiting(turns: u64) -> bool {
        turns < 100
    }
}
