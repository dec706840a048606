//! Processors of both vendors with all that they have beside the counters, and the kernel of one.

use core::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use pmu::apic::ApicRegisters;
use pmu::core::access::{CounterIndex, RegisterBackend};
use pmu::core::frame::PlainFrame;
use pmu::core::thread::Tick;
use pmu::core::x86::Snapshot;
use pmu::perf::{AttrFlags, PerfEvent, PerfEventAttr};
use pmu::user::UserPage;
use pmu::{Interrupted, Kernel, PmuEvent, SoftwareEvent, X86, X86Kernel};
use pmu_tests::StateRegisters;
use pmu_tests::linux_page::LinuxPage;
use pmu_virt::branches::{BranchConfiguration, FedBranch, FedBranchKind, VirtualBranches};
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration};
use pmu_virt::ibs::{FedFetch, FedOp, IbsConfiguration, VirtualIbs};
use pmu_virt::mock::{Deviations, Fault, MockMsr, ProcessMemory};
use pmu_virt::precise::{FedRecord, PreciseConfiguration, VirtualPrecise};
use pmu_virt::reload::{ReloadConfiguration, VirtualReload};
use pmu_virt::topdown::{TopDownMix, VirtualTopDown};
use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};

use crate::subsystem::{Everything, FIELDS, Perf, TIMES};

pub(crate) const EINVAL: i32 = 22;

/// Number of the event `slots`; those of its parts are one greater.
pub(crate) const SLOTS_ID: u64 = 100;

/// PERF_SAMPLE_BRANCH_ANY.
const ANY_BRANCH: u64 = 1 << 3;

type Mock = MockMsr<'static, 64>;

thread_local! {
    static MOCK: Cell<Option<&'static Mock>> = const { Cell::new(None) };
    static NOW: Cell<u64> = const { Cell::new(1) };
    /// The time for which the timer of the clocks is set.
    static TIMER: Cell<Option<u64>> = const { Cell::new(None) };
    static PAGES: RefCell<BTreeMap<u64, &'static UserPage>> = RefCell::default();
}

fn mock() -> &'static Mock {
    MOCK.get().unwrap()
}

pub(crate) struct Registers;

pmu_tests::delegate_registers!(Registers, mock);
pmu_tests::delegate_apic!(Registers, mock, 0x1_0400);

pub(crate) struct World;

/// The greatest number of an event's samples between two ticks.
pub(crate) const MOST: u32 = 100;

/// The physical address of the buffer of precise records, whose page follows that of the Debug Store area.
const PHYSICAL: u64 = 0x10_0000;

// SAFETY: (1) each test has one thread, and a `Pmu` of its own; (2) its processor is a mock, which writes to the lent
// memory alone.
unsafe impl Kernel for World {
    pmu_tests::one_processor!(Registers, mock);
    type Architecture = X86<Everything, Self>;
    const USER_PAGES: bool = true;
    const TICK: Tick = Tick::new(250, 250 * MOST);
    fn now() -> u64 {
        NOW.set(NOW.get() + 50); // Time passes in a handler, too.
        NOW.get()
    }
    const CLOCK_TIMER: bool = true;
    fn set_clock_timer(at: Option<u64>) {
        TIMER.set(at);
    }
    fn user_page(tag: u64) -> Option<&'static UserPage> {
        PAGES.with_borrow(|pages| pages.get(&tag).copied())
    }
    fn physical_address(_: *const (), _: usize) -> Option<u64> {
        Some(PHYSICAL)
    }
}

impl X86Kernel for World {
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
    let attr = PerfEvent::parse(text, |_| None).unwrap().attr;
    PerfEventAttr { sample_type: FIELDS, read_format: TIMES, ..attr }
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

/// A processor: its name, counters, and branch records; its precise records, or its sampling units.
pub(crate) struct Model {
    pub(crate) name: &'static str,
    configuration: Configuration,
    branches: BranchConfiguration,
    precise: Option<PreciseConfiguration>,
    sampling: Option<IbsConfiguration>,
}

pub(crate) fn models() -> Vec<Model> {
    let intel = |name, version, branches, precise| Model {
        name,
        configuration: Configuration::Intel(IntelConfiguration::new(version, 4, 3 + version / 5)),
        branches,
        precise: Some(precise),
        sampling: None,
    };
    let amd = |name, sampling| Model {
        name,
        configuration: Configuration::Amd(AmdConfiguration::perf_mon_v2(6)),
        branches: BranchConfiguration::AMD,
        precise: None,
        sampling: Some(sampling),
    };
    let last = |format| BranchConfiguration::Legacy { format };
    let store = PreciseConfiguration::debug_store;
    let architectural = BranchConfiguration::ARCHITECTURAL;
    // The mock shows these branch records with the counters of Sandy Bridge, of which four write records.
    let early = store(0).with_debug_store(|records| records.general = 0xF);
    vec![
        intel("version 2, format 0", 2, last(3), early),
        intel("version 3, format 1", 3, last(3), store(1)),
        intel("version 3, format 2", 3, last(4), store(2)),
        intel("version 4, format 3", 4, last(5), store(3)),
        intel("version 5, format 4", 5, architectural, store(4)),
        intel("version 5, format 5", 5, architectural, store(5)),
        intel("version 6", 6, architectural, PreciseConfiguration::ARCHITECTURAL),
        amd("Zen 4", IbsConfiguration::ZEN_4),
        amd("Zen 6", IbsConfiguration::ZEN_6),
    ]
}

/// The address of each instruction, and those at which interrupts come.
pub(crate) const CODE: u64 = 0x40_0000;
pub(crate) const INTERRUPTED: u64 = 0x50_0000;
/// The data's address of each precise record.
pub(crate) const DATA: u64 = 0x7F_0048;
/// Stores, of Intel's processors: `MEM_INST_RETIRED.ALL_STORES`.
pub(crate) const STORES: &str = "cpu/event=0xd0,umask=0x82,period=4096/p";
const STORE: EventKey = EventKey::general(0xD0, 0x82);
const SLOTS: EventKey = EventKey::fixed(3).unwrap();
/// Shares of 255 slots: 100 retire, 20 are of bad speculation, 60 of the front end, 75 of the back end.
const MIX: TopDownMix = TopDownMix { shares: [100, 20, 60, 75, 0, 0, 0, 0] };

pub(crate) struct Machine {
    pub(crate) perf: &'static Perf<World>,
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
        Self::of(model, Deviations::NONE, |interrupted| {
            assert_eq!(interrupted.error, None);
            assert!(interrupted.claim.interrupts() > 0);
        })
    }

    /// Makes one that deviates so, and looks at what the handler returns.
    pub(crate) fn of(
        model: &Model,
        deviations: Deviations,
        handled: impl Fn(Interrupted) + 'static,
    ) -> Self {
        let configuration = model.configuration;
        let is_amd = matches!(configuration, Configuration::Amd(_));
        // Fewer than 16 instructions, or micro-operations, retire in each cycle: what old processors record for cycles.
        let few = |number, unit_mask| EventKey::general(number, unit_mask).counter_mask(16, true);
        let plain = |number| EventKey::general(number, 0);
        let each_cycle = match is_amd {
            true => vec![plain(0xC0), plain(0x76)],
            false => vec![plain(0xC0), plain(0x3C), few(0xC0, 0), few(0xC2, 1)],
        };
        let events = FedEvents::new(&[&each_cycle[..], &[SLOTS, STORE]].concat()).unwrap();
        let ram: &'static RefCell<ProcessMemory<'_>> = Box::leak(Box::default());
        let mut mock = Mock::strict(VirtualPmu::new(configuration, events).unwrap())
            .with_branches(VirtualBranches::new(&configuration, model.branches).unwrap());
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
        MOCK.set(Some(Box::leak(Box::new(mock.deviating(deviations)))));
        let perf = Perf::new();
        let handler = move |_: &Mock| {
            let frame = PlainFrame { pc: INTERRUPTED, ..PlainFrame::default() };
            handled(perf.interrupt(&frame));
        };
        self::mock().on_interrupt(Box::leak(Box::new(handler)));
        let snapshot: Snapshot = self::mock().snapshot();
        perf.pmu.processor_up(&snapshot).unwrap();
        if let Ok((_, memory)) = perf.pmu.precise_records(0) {
            // SAFETY: the area and the buffer, one page behind it, consist of atomics.
            ram.replace(unsafe { ProcessMemory::default().with(memory, PHYSICAL - 0x1000) });
        }
        let is_early = model.name.ends_with("format 0") || model.name.ends_with("format 1");
        let sampled = if is_early { INTERRUPTED } else { CODE };
        Self { perf, sampled, has_units: model.sampling.is_some(), each_cycle, events }
    }

    /// Maps the page of the events with this tag.
    pub(crate) fn map(&self, tag: u64) -> &'static UserPage {
        let new = || &*Box::leak(Box::new(UserPage::new()));
        PAGES.with_borrow_mut(|pages| *pages.entry(tag).or_insert_with(new))
    }

    /// Reads a count in user mode, by the program that the comments of Linux' header show.
    pub(crate) fn read_page(&self, page: &UserPage) -> Option<u64> {
        let rdpmc = |counter| mock().read_counter(CounterIndex::new(counter)).unwrap();
        LinuxPage::of(page).read(rdpmc, || 0).map(|read| read.value)
    }

    /// Time passes.
    pub(crate) fn pass(&self, nanoseconds: u64) {
        NOW.set(NOW.get() + nanoseconds);
    }

    /// User mode executes this many instructions, each of an op, a fetch and a cycle, after a branch from this address.
    pub(crate) fn work(&self, count: u64, branch: u64) {
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

    /// Opens the slots and their parts of level 1, one after the other, as `perf stat` does, and lets them count.
    pub(crate) fn open_slots(&self) -> Result<PmuEvent, i32> {
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

    pub(crate) fn lose_registers(&self) {
        mock().lose_registers();
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
        self.perf.interrupt(&PlainFrame { pc: INTERRUPTED, ..PlainFrame::default() })
    }

    /// Reports a software event to the kernel, as having happened in user mode.
    pub(crate) fn happen_in_software(&self, what: SoftwareEvent) {
        self.perf.happened(what, &PlainFrame::new(INTERRUPTED, 0x33, 2, 0));
    }

    /// Lets time pass. The clock timer interrupts whenever it expires.
    pub(crate) fn pass_with_clocks(&self, nanoseconds: u64) {
        let end = NOW.get() + nanoseconds;
        while let Some(at) = TIMER.get().filter(|at| *at < end) {
            NOW.set(NOW.get().max(at));
            self.perf.clock_interrupt(&PlainFrame::new(INTERRUPTED, 0x33, 2, 0));
        }
        NOW.set(end);
    }

    pub(crate) fn suspend(&self) {
        self.perf.pmu.processor_suspended(|_| ()).unwrap();
        mock().lose_registers();
        self.perf.pmu.processor_resumed().unwrap();
    }

    /// Nothing is left on the processor.
    #[track_caller]
    pub(crate) fn end(self, name: &str) {
        self.perf.pmu.processor_down().unwrap();
        let state = mock().with_pmu(|pmu| pmu.state());
        assert_eq!((state.selects(), state.fixed_control()), ([0; 8], 0), "{name}");
        let units = mock().with_sampling_unit(|units| units.is_enabled());
        assert!(!units.unwrap_or(false), "{name}");
        assert_eq!(mock().breach(), None, "{name}");
    }
}
