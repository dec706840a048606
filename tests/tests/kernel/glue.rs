//! The glue of a kernel like ArceOS (`tests/glue`), whose kernel is played here: each of its steps, on the mock.

use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicU32, Ordering};

use pmu::core::access::{
    AccessErrorKind, CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate,
};
use pmu::core::branches::BranchFilter;
use pmu::core::precise::Precision;
use pmu::core::thread::ThreadEvent;
use pmu::core::x86::Snapshot;
use pmu::core::{Event, GenericEvent};
use pmu_glue::ax::{self, Host, TrapFrame};
use pmu_glue::{PMU, cpu_up, dispatch, init, switch};
use pmu_tests::opened::{self, Mock};
use pmu_virt::branches::{BranchConfiguration, FedBranch, FedBranchKind, VirtualBranches};
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::mock::ProcessMemory;
use pmu_virt::precise::{FedRecord, PreciseConfiguration, VirtualPrecise};
use pmu_virt::{Privilege, VirtualPmu};

const CPUS: usize = 3;
/// Cycles of the second of [`opened::KINDS`], instructions of the first.
const CYCLES: usize = 1;
const INSTRUCTIONS: usize = 0;
const PERIOD: u64 = 10_007;
const TEXT: u64 = 0xFFFF_8000_0020_0000;
/// Address of each sampled instruction, and of the branch before it.
const SAMPLED: u64 = TEXT + 0x100;
const BRANCH: u64 = TEXT + 0xF0;

struct Played {
    mocks: [Mock<'static>; CPUS],
    here: Cell<usize>,
    now: Cell<u64>,
    preempt: Cell<i64>,
    trap: Cell<TrapFrame>,
    calls: RefCell<Vec<usize>>,
    samples: RefCell<Vec<(u64, Option<u64>)>>,
}

fn configuration() -> Configuration {
    Configuration::Intel(IntelConfiguration::new(5, 4, 4))
}

impl Played {
    fn mock(&self) -> &Mock<'static> {
        &self.mocks[self.here.get()]
    }

    fn on<R>(&self, cpu: usize, act: impl FnOnce() -> R) -> R {
        let before = self.here.replace(cpu);
        let result = act();
        self.here.set(before);
        result
    }

    fn happen(&self, cpu: usize, kind: usize, count: u64) {
        self.on(cpu, || opened::happen(&self.mocks[cpu], kind, count));
    }
}

impl Host for Played {
    fn this_cpu_id(&self) -> usize {
        self.here.get()
    }
    fn msr(&self) -> &dyn RegisterBackend<Error = AccessErrorKind> {
        self
    }
    fn send_ipi(&self, cpu: usize, vector: u8) {
        self.calls.borrow_mut().push(cpu);
        let trap = TrapFrame { rip: 0xDEAD, cs: 8, rflags: 2 };
        self.on(cpu, || dispatch(&trap, vector));
    }
    fn now(&self) -> u64 {
        self.now.get()
    }
    fn preempt(&self, change: i64) {
        self.preempt.set(self.preempt.get() + change);
        assert!(self.preempt.get() <= 0);
    }
    fn sampled(&self, address: u64, branch: Option<u64>) {
        self.samples.borrow_mut().push((address, branch));
    }
    fn snapshot(&self) -> Snapshot {
        self.mock().snapshot()
    }
}

/// The mock's registers, and those of a local APIC in x2APIC mode (SDM vol. 3A, "x2APIC Register Address Space").
impl RegisterBackend for Played {
    type Error = AccessErrorKind;
    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        self.mock().read(address)
    }
    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        if address.get() == 0x834 {
            assert_eq!(value & !0x1_0000, 0xE1, "the vector");
            self.mock().set_performance_entry(value as u32);
            return Ok(());
        }
        self.mock().write(address, value)
    }
    fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
        self.mock().read_counter(index)
    }
    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        if update.register() == 0x1B { Ok(0xFEE0_0C00) } else { self.mock().update(update) }
    }
}

type Ram = &'static RefCell<ProcessMemory<'static>>;

fn cpus() -> (&'static Played, [Ram; CPUS]) {
    let ram: [Ram; CPUS] = core::array::from_fn(|_| &*Box::leak(Box::default()));
    let mocks = ram.map(|ram| {
        let configuration = configuration();
        let branches = VirtualBranches::new(&configuration, BranchConfiguration::ARCHITECTURAL);
        let precise = VirtualPrecise::new(&configuration, PreciseConfiguration::debug_store(4));
        let pmu = VirtualPmu::new(configuration, opened::fed_events()).unwrap();
        let mock = Mock::strict(pmu).with_branches(branches.unwrap());
        let _ = mock.with_pmu(|pmu| pmu.write(0x38F, 0));
        mock.with_precise(precise.unwrap(), ram, &|_| FedRecord::new(SAMPLED))
    });
    let trap = Cell::new(TrapFrame { rip: 0, cs: 8, rflags: 2 });
    let (here, now, preempt) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let (calls, samples) = Default::default();
    let played = Played { mocks, here, now, preempt, trap, calls, samples };
    let played: &'static Played = Box::leak(Box::new(played));
    for mock in &played.mocks {
        let handler = |_: &Mock<'_>| dispatch(&played.trap.get(), 0xE1);
        mock.on_interrupt(Box::leak(Box::new(handler)));
    }
    ax::install(played);
    (played, ram)
}

#[test]
fn the_glue_of_a_kernel_counts_profiles_and_follows_its_tasks() {
    let (kernel, ram) = cpus();
    init().unwrap();
    for (cpu, ram) in ram.into_iter().enumerate() {
        kernel.on(cpu, cpu_up).unwrap();
        let (_, memory) = PMU.precise_records(cpu).unwrap();
        // SAFETY: the area and the buffer consist of atomics.
        ram.replace(unsafe { ProcessMemory::default().with(memory, 0x10_0000) });
    }

    let events = [GenericEvent::Instructions, GenericEvent::Cycles].map(Event::generic);
    let counts = PMU.count(&events, || {
        kernel.happen(0, INSTRUCTIONS, 100);
        kernel.happen(0, CYCLES, 300);
        assert_eq!(kernel.preempt.get(), -1);
    });
    assert_eq!(counts.unwrap().map(|count| count.value), [100, 300]);

    let buckets: [AtomicU32; 64] = core::array::from_fn(|_| AtomicU32::new(0));
    let cycles = Event::generic(GenericEvent::Cycles).every(PERIOD);
    let profile = PMU.profile(cycles, TEXT..TEXT + 0x1000, &buckets, || {
        assert_eq!(kernel.preempt.get(), 0);
        for cpu in 0..CPUS {
            let rip = TEXT + 0x40 * cpu as u64;
            kernel.trap.set(TrapFrame { rip, cs: 8, rflags: 2 });
            kernel.happen(cpu, CYCLES, PERIOD * (1 + cpu as u64));
        }
    });
    let hits = profile.unwrap().hits().map(|(addresses, count)| (addresses.start, count)).collect();
    let expected: Vec<(u64, u32)> = vec![(TEXT, 1), (TEXT + 0x40, 2), (TEXT + 0x80, 3)];
    assert_eq!((hits, kernel.calls.take()), (expected, vec![1, 2, 1, 2]));

    // The same, precise, with the branch before each sample.
    let precise = cycles.precise(Precision::ZeroSkidRequested).with_branches(BranchFilter::KERNEL);
    let exact: [AtomicU32; 64] = core::array::from_fn(|_| AtomicU32::new(0));
    kernel.samples.take();
    let profile = PMU.profile(precise, TEXT..TEXT + 0x1000, &exact, || {
        let kind = FedBranchKind::Conditional;
        kernel.mocks[1].branch(&FedBranch::new(BRANCH, SAMPLED, kind, Privilege::Kernel));
        kernel.happen(1, CYCLES, 2 * PERIOD);
    });
    let hits: Vec<_> = profile.unwrap().hits().map(|(of, count)| (of.start, count)).collect();
    assert_eq!(hits, [(SAMPLED, 2)]);
    assert_eq!(kernel.samples.take(), [(SAMPLED, Some(BRANCH)); 2]);

    // A task's event goes with the task from one processor to the other, and counts no other task.
    let none = || [ThreadEvent::Unused; 2];
    let (mut task, mut idle) = (none(), none());
    let event = PMU.with(|session, unit| {
        let counters = session.counters_mut();
        let id = counters.open(unit, &[Event::generic(GenericEvent::Instructions)])?;
        counters.enable(id, 0).map(|()| id)
    });
    task[0] = ThreadEvent::Opened(event.unwrap().unwrap());
    kernel.happen(0, INSTRUCTIONS, 1_000);
    switch(&mut task, &mut idle).unwrap();
    kernel.happen(0, INSTRUCTIONS, 7);
    kernel.on(2, || switch(&mut idle, &mut task)).unwrap();
    kernel.happen(2, INSTRUCTIONS, 2_000);
    kernel.now.set(50);
    kernel.on(2, || switch(&mut task, &mut idle)).unwrap();
    let ThreadEvent::SwitchedOut(event) = task[0] else { panic!("{task:?}") };
    assert_eq!((event.count().value, event.count().running), (3_000, 50));

    for cpu in 0..CPUS {
        kernel.on(cpu, || PMU.processor_down()).unwrap();
        assert!(opened::running(&kernel.mocks[cpu]).is_empty());
    }
    assert_eq!(buckets.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u32>(), 6);
}
