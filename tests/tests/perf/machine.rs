//! Machines of x86, with all that their processors have beside the counters.

use core::cell::{Cell, RefCell};

use pmu::apic::ApicRegisters;
use pmu::core::access::{CounterIndex, RegisterBackend};
use pmu::core::frame::PlainFrame;
use pmu::core::x86::Snapshot;
use pmu::perf::{AttrFlags, PerfEvent, PerfEventAttr};
use pmu::{Interrupted, PmuEvent, X86, X86Kernel};
use pmu_core::Platform;
use pmu_tests::StateRegisters;
use pmu_virt::branches::{FedBranch, FedBranchKind, VirtualBranches};
use pmu_virt::configuration::Configuration;
use pmu_virt::ibs::{FedFetch, FedOp, VirtualIbs};
use pmu_virt::mock::{Deviations, Fault, MockMsr, ProcessMemory};
use pmu_virt::precise::{FedRecord, VirtualPrecise};
use pmu_virt::reload::{ReloadConfiguration, VirtualReload};
use pmu_virt::topdown::{TopDownMix, VirtualTopDown};
use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};

use crate::kernel::{Everything, Port, World};
use crate::models::{HIDDEN_AMD, Model};
use crate::subsystem::{FIELDS, PROCESSORS, Perf, Result};
use crate::world::{self, EINVAL, Has, INTERRUPTED, PHYSICAL, System, go_to, this_processor};

/// Number of the event `slots`; those of its parts are one greater.
pub(crate) const SLOTS_ID: u64 = 100;

/// The bits of `read_format` for an event's times: PERF_FORMAT_TOTAL_TIME_ENABLED and PERF_FORMAT_TOTAL_TIME_RUNNING.
const TIMES: u64 = 0b11;

/// PERF_SAMPLE_BRANCH_ANY.
const ANY_BRANCH: u64 = 1 << 3;

type Mock = MockMsr<'static, 64>;

thread_local! {
    static MOCKS: Cell<[Option<&'static Mock>; PROCESSORS]> = const { Cell::new([None; _]) };
}

/// The processor that executes the test.
fn mock() -> &'static Mock {
    MOCKS.get()[this_processor()].unwrap()
}

pub(crate) struct Registers;

pmu_tests::delegate_registers!(Registers, mock);
pmu_tests::delegate_apic!(Registers, mock, 0x1_0400);

/// The port to x86.
pub(crate) struct X86Port;

impl Port for X86Port {
    type Registers = Registers;
    type Architecture = X86<Everything, Self>;
    const REGISTERS: Registers = Registers;
    fn set_interrupt_masked(masked: bool) {
        match masked {
            false => mock().unmask_performance_interrupt(),
            true => mock().mask_performance_interrupt(),
        }
    }
}

impl X86Kernel for X86Port {
    fn apic<M: RegisterBackend>(_: M) -> Option<impl ApicRegisters> {
        Some(Registers)
    }
}

/// The bytes that user mode passes.
pub(crate) fn bytes(text: &str, branches: bool) -> Vec<u8> {
    let mut attr = attr(text);
    if branches {
        attr.sample_type |= PerfEventAttr::SAMPLE_BRANCH_STACK;
        attr.branch_sample_type = ANY_BRANCH;
    }
    attr.to_bytes().to_vec()
}

pub(crate) fn attr(text: &str) -> PerfEventAttr {
    let attr = PerfEvent::parse(text, &()).unwrap().attr;
    PerfEventAttr { sample_type: FIELDS, read_format: TIMES, ..attr }
}

/// The bytes of an event that leads a group.
pub(crate) fn disabled(text: &str) -> Vec<u8> {
    PerfEventAttr { flags: AttrFlags::DISABLED, ..attr(text) }.to_bytes().to_vec()
}

/// Linux' `slots`, which leads a group.
pub(crate) fn slots() -> Vec<u8> {
    let attr = attr("cpu/event=0x00,umask=0x4/");
    let flags = AttrFlags::DISABLED;
    PerfEventAttr { flags, read_format: PerfEventAttr::FORMAT_GROUP, ..attr }.to_bytes().to_vec()
}

/// Linux' `topdown-retiring`, `topdown-bad-spec`, `topdown-fe-bound`, `topdown-be-bound`, and those of level 2.
pub(crate) fn part(number: usize) -> Vec<u8> {
    bytes(&format!("cpu/event=0x00,umask={:#x}/", 0x80 + number), false)
}

/// The address of each instruction.
pub(crate) const CODE: u64 = 0x40_0000;
/// The data's address of each precise record.
pub(crate) const DATA: u64 = 0x7F_0048;
/// Stores, of Intel's processors: `MEM_INST_RETIRED.ALL_STORES`.
pub(crate) const STORES: &str = "cpu/event=0xd0,umask=0x82,period=4096/p";
const STORE: EventKey = EventKey::general(0xD0, 0x82);
const SLOTS: EventKey = EventKey::fixed(3).unwrap();
/// Shares of 255 slots: 100 retire, 20 are of bad speculation, 60 of the front end, 75 of the back end.
const MIX: TopDownMix = TopDownMix { shares: [100, 20, 60, 75, 0, 0, 0, 0] };

type Memory = RefCell<ProcessMemory<'static>>;

pub(crate) struct Machine {
    pub(crate) name: String,
    has: Has,
    pub(crate) perf: &'static Perf<World<X86Port>>,
    pub(crate) has_units: bool,
    /// The address of precise samples. The records of formats 0 and 1 have the next instruction's alone, so that the
    /// interrupt's stands for them (SDM vol. 3B, 20.3.1.1).
    pub(crate) sampled: u64,
    /// Instructions, and what happens in each cycle.
    each_cycle: Vec<EventKey>,
    events: FedEvents,
}

impl Machine {
    /// Makes a processor and its kernel's subsystem, and brings the processor up.
    pub(crate) fn new(model: &Model) -> Self {
        Self::of_cores(&[*model])
    }

    /// Makes a machine of these processors, and brings each of them up; the first one boots the machine.
    pub(crate) fn of_cores(models: &[Model]) -> Self {
        Self::make(models, Deviations::NONE, |interrupted| {
            assert_eq!(interrupted.error, None);
            assert!(interrupted.claim.interrupts() > 0);
        })
    }

    /// Makes one that deviates so, and looks at what the handler returns.
    pub(crate) fn of(
        model: &Model,
        deviations: Deviations,
        handled: impl Fn(Interrupted) + Copy + 'static,
    ) -> Self {
        Self::make(&[*model], deviations, handled)
    }

    fn make(
        models: &[Model],
        deviations: Deviations,
        handled: impl Fn(Interrupted) + Copy + 'static,
    ) -> Self {
        let model = models[0];
        let is_amd = matches!(model.configuration, Configuration::Amd(_));
        // Fewer than 16 instructions, or micro-operations, retire in each cycle: what old processors record for cycles.
        let few = |number, unit_mask| EventKey::general(number, unit_mask).counter_mask(16, true);
        let plain = |number| EventKey::general(number, 0);
        let each_cycle = match is_amd {
            true => vec![plain(0xC0), plain(0x76)],
            false => vec![plain(0xC0), plain(0x3C), few(0xC0, 0), few(0xC2, 1)],
        };
        let events = FedEvents::new(&[&each_cycle[..], &[SLOTS, STORE]].concat()).unwrap();
        let perf = Perf::new().unwrap();
        world::boot(perf);
        let mut mocks = [None; PROCESSORS];
        let memories: Vec<&'static Memory> =
            models.iter().map(|_| &*Box::leak(Box::default())).collect();
        for ((model, place), ram) in models.iter().zip(&mut mocks).zip(&memories) {
            let mock = Self::mock_of(model, events, ram).deviating(deviations);
            let handler = move |_: &Mock| {
                let frame = PlainFrame { pc: INTERRUPTED, ..PlainFrame::default() };
                handled(perf.pmu.interrupt(&frame));
            };
            mock.on_interrupt(Box::leak(Box::new(handler)));
            *place = Some(&*Box::leak(Box::new(mock)));
        }
        MOCKS.set(mocks);
        for (number, (model, ram)) in models.iter().zip(memories).enumerate() {
            go_to(number);
            perf.pmu.processor_up(&Self::snapshot_of(model)).unwrap();
            if let Ok((_, memory)) = perf.pmu.precise_records(number) {
                // SAFETY: the area and the buffer, one page behind it, consist of atomics.
                ram.replace(unsafe { ProcessMemory::default().with(memory, PHYSICAL - 0x1000) });
            }
        }
        go_to(0);
        let is_early = model.name.ends_with("format 0") || model.name.ends_with("format 1");
        let sampled = if is_early { INTERRUPTED } else { CODE };
        let names: Vec<_> = models.iter().map(|model| model.name).collect();
        let (name, has_units) = (names.join(" and "), model.sampling.is_some());
        Self { name, has: model.has, perf, sampled, has_units, each_cycle, events }
    }

    fn mock_of(model: &Model, events: FedEvents, ram: &'static Memory) -> Mock {
        let configuration = model.configuration;
        let pmu = VirtualPmu::new(configuration, events).unwrap();
        // Only there, the driver has to write to registers that are not there.
        let is_absent = configuration == HIDDEN_AMD;
        let mut mock = if is_absent { Mock::new(pmu) } else { Mock::strict(pmu) };
        if let Some(branches) = model.branches {
            mock = mock.with_branches(VirtualBranches::new(&configuration, branches).unwrap());
        }
        if let Some(precise) = model.precise {
            let precise = VirtualPrecise::new(&configuration, precise).unwrap();
            mock = mock.with_precise(precise, ram, &|_| FedRecord {
                data_address: DATA,
                ..FedRecord::new(CODE)
            });
        }
        if let Some(sampling) = model.sampling {
            mock = mock.with_sampling(VirtualIbs::new(sampling));
        }
        if let Ok(metrics) = VirtualTopDown::new(&configuration, false) {
            mock = mock.with_top_down(metrics);
            mock.set_mix(MIX);
        }
        if model.name == "version 6" {
            let reload = ReloadConfiguration::of(0xF, 0);
            mock = mock.with_reload(VirtualReload::new(&configuration, reload).unwrap());
        }
        for control in [0x38F, 0xC000_0301] {
            let _ = mock.with_pmu(|pmu| pmu.write(control, 0));
        }
        mock
    }

    /// Returns the CPUID of the processor that executes the test. A hybrid's says its type of core: SDM vol. 2A, leaf
    /// 7, EDX bit 15, and leaf 0x1A, EAX.
    fn snapshot_of(model: &Model) -> Snapshot {
        let snapshot = mock().snapshot();
        if model.core_type == 0 {
            return snapshot;
        }
        Snapshot::capture(|leaf: u32, subleaf: u32| {
            let mut found = snapshot.leaf(leaf, subleaf);
            match (leaf, subleaf) {
                (1, _) => found.eax = 0x0009_0672,
                (7, 0) => found.edx |= 1 << 15,
                (0x1A, 0) => found.eax = model.core_type,
                _ => {}
            }
            found
        })
    }

    /// Opens the slots and their parts of level 1, one after the other, as `perf stat` does, and lets them count.
    pub(crate) fn open_slots(&self) -> Result<PmuEvent> {
        if self.has_units {
            return Err(EINVAL); // AMD's event 0 is another one.
        }
        let leader = self.perf.open(&slots(), SLOTS_ID, None)?;
        let member = |number| self.perf.open(&part(number), SLOTS_ID + 1, Some(leader)).map(drop);
        let parts = (0..4).try_for_each(member);
        let counts = parts.and_then(|()| self.perf.enable(leader));
        counts.or_else(|errno| self.perf.close(leader).and(Err(errno))).map(|()| leader)
    }

    /// This many times 255 slots pass in user mode.
    pub(crate) fn pass_slots(&self, times: u64) {
        self.happen(SLOTS, 255 * times);
    }

    /// User mode stores.
    pub(crate) fn store(&self, count: u64) {
        self.happen(STORE, count);
    }

    fn happen(&self, key: EventKey, count: u64) {
        let mut feed = Feed::new(&self.events);
        feed.add(self.events.find(key).unwrap(), Privilege::User, count).unwrap();
        mock().advance(&mut feed);
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        mock().snapshot()
    }

    /// A guest leaves nothing in the registers. The entry of the local APIC is the host's.
    pub(crate) fn lose_counters(&self) {
        let entry = mock().performance_entry();
        mock().lose_registers();
        mock().set_performance_entry(entry);
    }

    /// An event overflows at this access from now on (0: none), and accesses fail.
    pub(crate) fn disturb(&self, interrupt: u32, fault: Fault) {
        mock().interrupt_at(interrupt);
        mock().inject(fault);
    }

    /// Another owner's interrupt comes.
    pub(crate) fn foreign_interrupt(&self) -> Interrupted {
        self.perf.pmu.interrupt(&PlainFrame { pc: INTERRUPTED, ..PlainFrame::default() })
    }
}

impl System for Machine {
    type Kernel = World<X86Port>;

    fn name(&self) -> String {
        self.name.clone()
    }

    fn has(&self) -> Has {
        self.has
    }

    fn perf(&self) -> &'static Perf<Self::Kernel> {
        self.perf
    }

    /// Each instruction counts as an op and as a fetch, too.
    fn work(&self, count: u64, branch: u64) {
        let branch = FedBranch::new(branch, CODE, FedBranchKind::Conditional, Privilege::User);
        mock().branch(&branch);
        for key in &self.each_cycle {
            self.happen(*key, count);
        }
        if self.has_units {
            for _ in 0..count {
                mock().execute(&FedOp::new(CODE));
                mock().fetch(&FedFetch::new(CODE));
            }
        }
    }

    fn lose_registers(&self) {
        mock().lose_registers();
    }

    fn read_counter(&self, number: u32) -> u64 {
        mock().read_counter(CounterIndex::new(number)).unwrap()
    }

    #[track_caller]
    fn end(self) {
        let processors = MOCKS.get().iter().flatten().count();
        for number in 0..processors {
            go_to(number);
            self.perf.pmu.processor_down().unwrap();
            let state = mock().with_pmu(|pmu| pmu.state());
            assert_eq!((state.selects(), state.fixed_control()), ([0; 8], 0), "{}", self.name);
            let units = mock().with_sampling_unit(|units| units.is_enabled());
            assert!(!units.unwrap_or(false), "{}", self.name);
            if mock().with_pmu(|pmu| pmu.configuration()) != HIDDEN_AMD {
                assert_eq!(mock().breach(), None, "{}", self.name);
            }
        }
        go_to(0);
    }
}
