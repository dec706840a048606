//! The glue of a kernel like Hermit (`tests/glue-hermit`), whose kernel is played here, on the mock, with processors of
//! either vendor.

use core::cell::{Cell, RefCell};
use core::fmt::Display;
use core::sync::atomic::AtomicU32;

use pmu::PmuSample;
use pmu::apic::LocalApic;
use pmu::core::access::{AccessErrorKind, RegisterBackend};
use pmu::core::branches::BranchFilter;
use pmu::core::precise::Precision;
use pmu::core::registers::EventSelect;
use pmu::core::x86::Snapshot;
use pmu::core::{CounterSet, Event, GenericEvent};
use pmu_glue_hermit::hermit::{self, CoreLocal, ExceptionStackFrame, Host, apic};
use pmu_glue_hermit::{
    CALL_VECTOR, CORES, Hermit, NO_EVENTS, PERFORMANCE_VECTOR, PMU, TaskEvents, call_interrupt,
    core_up, count, idle, may_switch, performance_interrupt, profile, start, stop, switch,
    task_count, task_event, timer_tick,
};
use pmu_virt::branches::{BranchConfiguration, FedBranch, FedBranchKind, VirtualBranches};
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration};
use pmu_virt::ibs::{FedOp, IbsConfiguration, VirtualIbs};
use pmu_virt::mock::{MockMsr, ProcessMemory};
use pmu_virt::precise::{FedRecord, PreciseConfiguration, VirtualPrecise};
use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};

type Mock = MockMsr<'static, 64>;

const BOOTED: usize = 3;
const PERFORMANCE_ENTRY: u32 = LocalApic::<()>::X2APIC_MSR;
const EXTENDED_ENTRIES: u32 = LocalApic::<()>::X2APIC_EXTENDED_MSR;
const EXTENDED_COUNT: u32 = 4;
/// The physical address of the image, and that of the buffer of precise records.
const PHYSICAL: u64 = 0x10_0000;
/// The kernel and its application are in the lower half of the address space.
const TEXT: u64 = 0x20_0000;
/// Address of each sampled instruction, and of the branch before it.
const SAMPLED: u64 = TEXT + 0x100;
const BRANCH: u64 = TEXT + 0xF0;
const PERIOD: u64 = 10_000;

thread_local! {
    static SAMPLES: RefCell<Vec<Seen>> = const { RefCell::new(vec![]) };
}

/// Tag, address, and the addresses of the branches of a sample; whether the address is a recorded one.
type Seen = (u64, u64, Vec<u64>, bool);

fn sampled(sample: &PmuSample<'_, Hermit>) {
    let address = sample.address().unwrap_or(0);
    let branches = sample.branches().map(|branch| branch.from).collect();
    let is_precise = sample.instruction().is_some();
    SAMPLES.with_borrow_mut(|all| all.push((sample.tag, address, branches, is_precise)));
}

/// The machine of a test, and the kernel around the glue.
struct Played {
    is_amd: bool,
    mocks: [Mock; BOOTED],
    blocks: [CoreLocal; CORES],
    here: Cell<usize>,
    ticks: Cell<u64>,
    rip: [Cell<u64>; BOOTED],
    calls: RefCell<Vec<usize>>,
    /// Interrupts that were handled, less those that were ended.
    in_service: Cell<i32>,
}

impl Played {
    /// Boots a machine of each vendor.
    fn machines() -> impl Iterator<Item = &'static Self> {
        [false, true].into_iter().map(|is_amd| {
            let ram: [&'static RefCell<ProcessMemory<'_>>; BOOTED] =
                core::array::from_fn(|_| &*Box::leak(Box::default()));
            let played: &'static Self = Box::leak(Box::new(Self {
                is_amd,
                mocks: ram.map(|ram| if is_amd { amd() } else { intel(ram) }),
                blocks: core::array::from_fn(|core| CoreLocal::new(core as u32)),
                here: Cell::new(0),
                ticks: Cell::new(0),
                rip: [const { Cell::new(0) }; BOOTED],
                calls: RefCell::default(),
                in_service: Cell::new(0),
            }));
            hermit::install(played);
            for (core, mock) in played.mocks.iter().enumerate() {
                mock.on_interrupt(Box::leak(Box::new(move |_: &Mock| {
                    played.handle(core, played.rip[core].get(), performance_interrupt);
                })));
                played.on(core, || core_up(sampled)).unwrap();
                if let Ok((_, memory)) = PMU.precise_records(core) {
                    // SAFETY: the area and the buffer, one page behind it, consist of atomics.
                    let lent = unsafe { ProcessMemory::default().with(memory, PHYSICAL - 0x1000) };
                    ram[core].replace(lent);
                }
            }
            SAMPLES.take();
            played
        })
    }

    fn on<R>(&self, core: usize, act: impl FnOnce() -> R) -> R {
        let before = self.here.replace(core);
        let result = act();
        self.here.set(before);
        result
    }

    /// A gate of the vector, with interrupts off.
    fn handle(&self, core: usize, rip: u64, handler: fn(ExceptionStackFrame)) {
        let before = self.in_service.replace(self.in_service.get() + 1);
        self.on(core, || handler(ExceptionStackFrame { rip, cs: 8, rflags: 2, rsp: 0, ss: 0 }));
        assert_eq!(self.in_service.get(), before, "the interrupt was ended once");
    }

    fn cycles(&self) -> EventKey {
        EventKey::general(if self.is_amd { 0x76 } else { 0x3C }, 0)
    }

    fn happen(&self, core: usize, key: EventKey, count: u64) {
        let events = fed_events();
        let mut feed = Feed::new(&events);
        feed.add(events.find(key).unwrap(), Privilege::Kernel, count).unwrap();
        self.on(core, || self.mocks[core].advance(&mut feed));
    }

    /// The core executes instructions at one address after a branch, each an op and a cycle.
    fn work(&self, core: usize, instructions: u64) {
        let kind = FedBranchKind::Conditional;
        self.mocks[core].branch(&FedBranch::new(BRANCH, SAMPLED, kind, Privilege::Kernel));
        self.happen(core, INSTRUCTIONS, instructions);
        self.happen(core, self.cycles(), instructions);
        if self.is_amd {
            self.on(core, || {
                (0..instructions).for_each(|_| _ = self.mocks[core].execute(&FedOp::new(SAMPLED)));
            });
        }
    }

    /// The scheduler function.
    fn reschedule(&self, from: &mut TaskEvents, to: &mut TaskEvents) -> bool {
        let may_switch = may_switch();
        if may_switch {
            switch(from, to);
        }
        may_switch
    }
}

const INSTRUCTIONS: EventKey = EventKey::general(0xC0, 0);

fn fed_events() -> FedEvents {
    let cycles = [0x3C, 0x76].map(|number| EventKey::general(number, 0));
    FedEvents::new(&[&cycles[..], &[INSTRUCTIONS]].concat()).unwrap()
}

fn mock(configuration: Configuration, branches: BranchConfiguration) -> Mock {
    Mock::strict(VirtualPmu::new(configuration, fed_events()).unwrap())
        .with_branches(VirtualBranches::new(&configuration, branches).unwrap())
}

fn amd() -> Mock {
    let configuration = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    let mock = mock(configuration, BranchConfiguration::AMD);
    let _ = mock.with_pmu(|pmu| pmu.write(0xC000_0301, 0));
    mock.with_sampling(VirtualIbs::new(IbsConfiguration::ZEN_4))
}

fn intel(ram: &'static RefCell<ProcessMemory<'static>>) -> Mock {
    let configuration = Configuration::Intel(IntelConfiguration::new(5, 4, 4));
    let precise = PreciseConfiguration::debug_store(4);
    let precise = VirtualPrecise::new(&configuration, precise).unwrap();
    let mock = mock(configuration, BranchConfiguration::ARCHITECTURAL);
    let _ = mock.with_pmu(|pmu| pmu.write(0x38F, 0));
    mock.with_precise(precise, ram, &|_| FedRecord::new(SAMPLED))
}

impl Host for Played {
    fn core(&self) -> &CoreLocal {
        &self.blocks[self.here.get()]
    }
    fn msr(&self) -> &dyn RegisterBackend<Error = AccessErrorKind> {
        &self.mocks[self.here.get()]
    }
    fn read_apic(&self, register: u32) -> u32 {
        match register {
            apic::EXTENDED_FEATURES if self.is_amd => EXTENDED_COUNT << 16,
            EXTENDED_ENTRIES.. if self.is_amd && register - EXTENDED_ENTRIES < EXTENDED_COUNT => {
                self.mocks[self.here.get()].extended_entry((register - EXTENDED_ENTRIES) as u8)
            }
            PERFORMANCE_ENTRY => self.mocks[self.here.get()].performance_entry(),
            absent => panic!("{absent:#x} faults"),
        }
    }
    fn write_apic(&self, register: u32, value: u64) {
        let entry = value as u32;
        match register {
            apic::EOI => self.in_service.set(self.in_service.get() - 1),
            apic::COMMAND => {
                let core = (value >> 32) as usize;
                assert_eq!(entry, CALL_VECTOR.into());
                self.calls.borrow_mut().push(core);
                self.handle(core, 0, call_interrupt);
            }
            PERFORMANCE_ENTRY => {
                assert_eq!(entry & !0x1_0000, PERFORMANCE_VECTOR.into());
                self.mocks[self.here.get()].set_performance_entry(entry);
            }
            entries => {
                assert_eq!(entry & !0x1_0000, PERFORMANCE_VECTOR.into());
                let number = entries - EXTENDED_ENTRIES;
                self.mocks[self.here.get()].set_extended_entry(number as u8, entry);
            }
        }
    }
    fn timer_ticks(&self) -> u64 {
        self.ticks.get()
    }
    fn virtual_to_physical(&self, _address: usize) -> Option<u64> {
        Some(PHYSICAL)
    }
    fn snapshot(&self) -> Snapshot {
        self.mocks[self.here.get()].snapshot()
    }
    fn log(&self, what: &dyn Display) {
        panic!("{what}");
    }
}

#[test]
fn a_workload_is_counted_exactly_and_no_other_task_of_its_core_runs_meanwhile() {
    for kernel in Played::machines() {
        kernel.happen(0, INSTRUCTIONS, 5);
        let counts = count(&mut || {
            kernel.happen(0, INSTRUCTIONS, 100);
            kernel.happen(0, kernel.cycles(), 300);
            kernel.happen(1, INSTRUCTIONS, 7);
            kernel.ticks.set(50);
            assert!(!kernel.reschedule(&mut NO_EVENTS.clone(), &mut NO_EVENTS.clone()));
            assert!(kernel.on(1, may_switch));
        });
        let counts = counts.unwrap().map(|count| (count.value, count.running));
        assert_eq!(counts, [(100, 50), (300, 50)]);
        assert!(may_switch());
    }
}

#[test]
fn a_profile_has_the_interrupted_addresses_of_all_cores() {
    for kernel in Played::machines() {
        let buckets: [AtomicU32; 64] = core::array::from_fn(|_| AtomicU32::new(0));
        let cycles = Event::generic(GenericEvent::Cycles).every(PERIOD);
        let profile = profile(cycles, TEXT..TEXT + 0x1000, &buckets, &mut || {
            assert!(may_switch());
            for core in 0..BOOTED {
                kernel.rip[core].set(TEXT + 0x40 * core as u64);
                kernel.happen(core, kernel.cycles(), PERIOD * (1 + core as u64));
            }
        });
        let hits =
            profile.unwrap().hits().map(|(addresses, count)| (addresses.start, count)).collect();
        let expected: Vec<(u64, u32)> = vec![(TEXT, 1), (TEXT + 0x40, 2), (TEXT + 0x80, 3)];
        assert_eq!((hits, kernel.calls.take()), (expected, vec![1, 2, 1, 2]));
    }
}

#[test]
fn a_precise_sample_has_its_instruction_and_its_branches_on_either_vendors_processors() {
    for kernel in Played::machines() {
        kernel.rip[1].set(SAMPLED + 0x30);
        let cycles = Event::generic(GenericEvent::Cycles).every(PERIOD);
        let precise = cycles.precise(Precision::ZeroSkidRequested).tagged(1);
        let precise = precise.with_branches(BranchFilter::KERNEL);
        let event = kernel.on(1, || start(&precise)).unwrap();
        kernel.on(1, || idle(&mut || kernel.work(1, PERIOD + PERIOD / 2)));
        let expected = [(1, SAMPLED, vec![BRANCH], true)];
        assert_eq!(SAMPLES.take(), expected, "AMD: {}", kernel.is_amd);
        kernel.on(1, || stop(event)).unwrap();
        kernel.work(1, 2 * PERIOD);
        // An event of a counter has the interrupted address.
        let event = kernel.on(1, || start(&cycles.tagged(2).with_branches(BranchFilter::KERNEL)));
        kernel.work(1, PERIOD);
        kernel.on(1, || stop(event.unwrap())).unwrap();
        let expected = [(2, SAMPLED + 0x30, vec![BRANCH], false)];
        assert_eq!(SAMPLES.take(), expected, "AMD: {}", kernel.is_amd);
        assert!(kernel.mocks.iter().all(|mock| mock.breach().is_none()));
    }
}

#[test]
fn the_events_of_tasks_follow_their_tasks_over_switches() {
    for kernel in Played::machines() {
        let (mut first, mut second, mut none) = (NO_EVENTS, NO_EVENTS, NO_EVENTS);
        let instructions = Event::generic(GenericEvent::Instructions);
        let cycles = Event::generic(GenericEvent::Cycles).every(PERIOD).with_total().tagged(3);
        kernel.on(2, || {
            first[0] = task_event(&instructions).unwrap();
            first[1] = task_event(&cycles).unwrap();
            second[0] = task_event(&instructions).unwrap();
            kernel.rip[2].set(TEXT);
            kernel.happen(2, INSTRUCTIONS, 5);
            kernel.reschedule(&mut none, &mut first);
            kernel.work(2, PERIOD / 2);
            assert_eq!(task_count(&first[0]), Ok(PERIOD / 2));
            kernel.reschedule(&mut first, &mut second);
            kernel.work(2, 2 * PERIOD);
            kernel.reschedule(&mut second, &mut none);
            kernel.work(2, 3 * PERIOD);
            kernel.reschedule(&mut none, &mut first);
            assert_eq!(SAMPLES.take(), []);
            kernel.work(2, PERIOD / 2);
            assert_eq!(SAMPLES.take(), [(3, TEXT, vec![], false)]);
            kernel.reschedule(&mut first, &mut none);
            let counts = [&first[0], &first[1], &second[0]].map(|event| task_count(event).unwrap());
            assert_eq!(counts, [PERIOD, PERIOD, 2 * PERIOD]);
        });
    }
}

#[test]
fn the_tick_gives_the_counter_to_the_event_that_waits() {
    for kernel in Played::machines() {
        let select = EventSelect::from_bits(if kernel.is_amd { 0x76 } else { 0x3C });
        let event = Event::raw(select).on(CounterSet::from_bits(1)).rotating();
        let events = [event, event].map(|event| start(&event).unwrap());
        let counts = || events.map(|event| PMU.read(event).unwrap().value);
        kernel.happen(0, kernel.cycles(), 100);
        assert_eq!(counts().iter().sum::<u64>(), 100);
        timer_tick();
        kernel.happen(0, kernel.cycles(), 100);
        assert_eq!(counts(), [100, 100]);
    }
}
