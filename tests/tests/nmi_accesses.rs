//! The performance interrupt as an NMI at every register access of every operation, on the software PMU.
//!
//! What overflowed is booked from the model, by the events that it was fed; what the driver tells of it
//! must be the same: no overflow lost, none invented, none outside a buffer, no counter running for
//! nobody, and a stopped source silent.

use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::VecDeque;

use pmu_amd::Amd64;
use pmu_core::raw_cpuid::CpuIdResult;
use pmu_core::{
    CounterMemory, CounterSlot, EventSelect, InterruptFrame, Interval, KProfileSource, MsrAddress,
    MsrBackend, MsrErrorKind, Overflow, Platform, PmcIndex, ProcessId, ProcessorNumber,
    ProfileInterface, ProfileSource, SavedCounter, SavedCounters, Snapshot, TimerUnavailable,
};
use pmu_intel::Emon;
use pmu_kprofile::{BasicProfile, ProfileObject, Profiles, Rules, ThisProcessor};
use pmu_virt::mock::MockMsr;
use pmu_virt::{
    AmdConfiguration, Configuration, Delivery, EventKey, FedEvents, Feed, IntelConfiguration,
    PerformanceEntry, PmiOutcome, Privilege, Vendor, VirtualPmu,
};

type Memory = CounterMemory<[CounterSlot; 8]>;
type Area = SavedCounters<[SavedCounter; 8]>;
const INTERVAL: u64 = 0x1000;
/// Two sources that run, and one that is started.
const SOURCES: usize = 3;
const STARTED: usize = 2;
/// How many events may pass uncounted while an overflow is serviced.
const SLACK: u64 = 64;

/// When, within an operation, what is to happen. Accesses are counted from 1, those of the interrupts
/// too; to unmask the local APIC's entry is one.
#[derive(Clone, Copy, Debug)]
enum Plan {
    /// Every running counter overflows just before an access; the interrupt is delivered so many
    /// accesses later.
    All { at: u32, late: u32 },
    /// One source's counter does, and another's later.
    OneByOne { first: u32, second: u32 },
    /// An interrupt comes that is nobody's; then one source's counter overflows.
    Spurious { at: u32, second: u32 },
}

impl Plan {
    /// The access before which the last of it happens.
    fn last(self) -> u32 {
        match self {
            Self::All { at, .. } => at,
            Self::OneByOne { second, .. } | Self::Spurious { second, .. } => second,
        }
    }
}

/// What is known of one source from what it was fed.
#[derive(Default)]
struct Book {
    /// Events counted since the last overflow.
    since: Cell<u64>,
    /// The events of the overflows of which the driver has not told yet.
    untold: RefCell<VecDeque<u64>>,
    told: Cell<u64>,
}

/// A processor that is interrupted between any two accesses.
struct Processor<'h> {
    mock: MockMsr<'h, 0>,
    events: FedEvents,
    keys: [EventKey; SOURCES],
    sources: [KProfileSource; SOURCES],
    books: [Book; SOURCES],
    /// The local APIC's performance entry.
    entry: Cell<u32>,
    handler: &'h dyn Fn(&Processor<'h>),
    /// In the handler another NMI waits.
    handling: Cell<bool>,
    waiting: Cell<bool>,
    plan: Cell<Option<Plan>>,
    access: Cell<u32>,
    deliver_in: Cell<Option<u32>>,
}

impl<'h> Processor<'h> {
    fn new<I>(bench: &Bench<'_, I>, handler: &'h dyn Fn(&Processor<'h>)) -> Self {
        let events = FedEvents::new(&bench.keys).unwrap();
        Self {
            mock: MockMsr::strict(VirtualPmu::new(bench.configuration, events).unwrap()),
            events,
            keys: bench.keys,
            sources: bench.sources,
            books: Default::default(),
            entry: Cell::new(0x1_0000),
            handler,
            handling: Cell::new(false),
            waiting: Cell::new(false),
            plan: Cell::new(None),
            access: Cell::new(0),
            deliver_in: Cell::new(None),
        }
    }

    /// Just before an access.
    fn step(&self) {
        if let Some(left) = self.deliver_in.get() {
            self.deliver_in.set(left.checked_sub(1));
            if left == 0 {
                self.deliver();
            }
        }
        let Some(plan) = self.plan.get() else { return };
        self.access.set(self.access.get() + 1);
        let access = self.access.get();
        match plan {
            Plan::All { at, late } if at == access => {
                if late > 0 {
                    self.deliver_in.set(Some(late - 1));
                }
                self.overflow_all();
            }
            Plan::OneByOne { first, second } => {
                if first == access {
                    self.feed(0, 1);
                }
                if second == access {
                    self.feed(1, 1);
                }
            }
            Plan::Spurious { at, second } => {
                if second == access {
                    self.feed(1, 1);
                }
                if at == access {
                    self.interrupt();
                }
            }
            Plan::All { .. } => {}
        }
    }

    /// What the plan had left comes after the operation. Says whether there was anything.
    fn end(&self) -> bool {
        let Some(plan) = self.plan.take() else { return false };
        let left = plan.last() > self.access.get();
        if self.deliver_in.take().is_some() {
            self.deliver();
        }
        if left {
            match plan {
                Plan::All { .. } => self.overflow_all(),
                Plan::OneByOne { first, .. } => {
                    if first > self.access.get() {
                        self.feed(0, 1);
                    }
                    self.feed(1, 1);
                }
                Plan::Spurious { at, .. } => {
                    if at > self.access.get() {
                        self.interrupt();
                    }
                    self.feed(1, 1);
                }
            }
        }
        left
    }

    /// So much happens that every running counter overflows, that of a source just started too.
    fn overflow_all(&self) {
        (0..STARTED).for_each(|source| self.feed(source, 1));
        self.feed(STARTED, INTERVAL);
    }

    /// So many of a source's event happen; every overflow is booked and interrupts.
    fn feed(&self, source: usize, count: u64) {
        let event = self.events.find(self.keys[source]).unwrap();
        let mut feed = Feed::new();
        feed.add(event, Privilege::Kernel, count);
        while !feed.is_empty() {
            let before = feed.count(event, Privilege::Kernel);
            let (counted, advanced) = self.mock.with_pmu(|pmu| {
                let counted = pmu.running().any(|running| running.key == self.keys[source]);
                (counted, pmu.advance(&mut feed))
            });
            let passed = before - feed.count(event, Privilege::Kernel);
            let book = &self.books[source];
            if counted {
                book.since.set(book.since.get() + passed);
            }
            if advanced.overflowed != 0 {
                assert_eq!(advanced.overflowed.count_ones(), 1, "one counter a source");
                book.untold.borrow_mut().push_back(book.since.take());
            }
            if advanced.pmi && self.deliver_in.get().is_none() {
                self.deliver();
            }
        }
    }

    /// Delivers what is pending in the model.
    fn deliver(&self) {
        let entry = &self.entry;
        let outcome = self.mock.with_pmu(|pmu| pmu.deliver_pmi(&mut Entry(entry)));
        if let PmiOutcome::Raised(_) = outcome {
            self.non_maskable();
        }
    }

    /// An interrupt that no counter asked for.
    fn interrupt(&self) {
        let (entry, intel) = (self.entry.get(), self.mock.with_pmu(|pmu| pmu.vendor()));
        if entry >> 16 & 1 == 0 {
            self.entry.set(entry | u32::from(intel == Vendor::Intel) << 16);
            self.non_maskable();
        }
    }

    /// While an NMI is handled, one more waits for its end.
    fn non_maskable(&self) {
        if self.handling.get() {
            self.waiting.set(true);
            return;
        }
        self.handling.set(true);
        loop {
            (self.handler)(self);
            if !self.waiting.take() {
                break;
            }
        }
        self.handling.set(false);
    }

    /// The driver tells of an overflow.
    #[track_caller]
    fn told(&self, overflow: Overflow) {
        let source = self.sources.iter().position(|source| *source == overflow.source);
        let book = &self.books[source.expect("a source that was started")];
        let events = book.untold.borrow_mut().pop_front();
        let events = events.unwrap_or_else(|| panic!("invented: {overflow:?}"));
        let error = u64::from(overflow.events).abs_diff(events);
        assert!(error <= SLACK, "it took {events} events: {overflow:?}");
        book.told.set(book.told.get() + 1);
    }

    /// Which sources the hardware counts.
    fn counted(&self) -> [bool; SOURCES] {
        self.mock.with_pmu(|pmu| self.keys.map(|key| pmu.running().any(|event| event.key == key)))
    }
}

impl MsrBackend for Processor<'_> {
    type Error = MsrErrorKind;

    fn read(&self, address: MsrAddress) -> Result<u64, MsrErrorKind> {
        self.step();
        self.mock.read(address)
    }

    fn write(&self, address: MsrAddress, value: u64) -> Result<(), MsrErrorKind> {
        self.step();
        self.mock.write(address, value)
    }

    fn read_pmc(&self, index: PmcIndex) -> Result<u64, MsrErrorKind> {
        self.step();
        self.mock.read_pmc(index)
    }
}

impl Platform for Processor<'_> {
    fn unmask_performance_interrupt(&self) {
        self.step();
        self.entry.set(0x400);
    }

    fn start_profile_timer(&self, _: Interval) -> Result<(), TimerUnavailable> {
        Err(TimerUnavailable)
    }

    fn stop_profile_timer(&self) {}
}

struct Entry<'e>(&'e Cell<u32>);

impl PerformanceEntry for Entry<'_> {
    fn entry(&self) -> u32 {
        self.0.get()
    }
    fn set_entry(&mut self, entry: u32) {
        self.0.set(entry);
    }
    fn raise(&mut self, _: Delivery) {}
}

struct Frame;

impl InterruptFrame for Frame {
    fn pc(&self) -> u64 {
        0x1004
    }
    fn cs(&self) -> u16 {
        0
    }
    fn flags(&self) -> u64 {
        0
    }
    fn processor(&self) -> ProcessorNumber {
        ProcessorNumber::default()
    }
    fn process(&self) -> Option<ProcessId> {
        None
    }
}

/// A driver on one configuration.
struct Bench<'i, I> {
    interface: &'i I,
    configuration: Configuration,
    freezing: bool,
    sources: [KProfileSource; SOURCES],
    keys: [EventKey; SOURCES],
}

impl<'i, I: ProfileInterface> Bench<'i, I> {
    fn new(interface: &'i I, configuration: Configuration, freezing: bool) -> Self {
        let mut rows = vec![];
        for row in interface.sources() {
            let source = row.source();
            let fresh = row.canonical().is_none() && interface.query(source).is_supported();
            let key = EventKey::of_select(row.select().select_bits());
            if source != KProfileSource::TIME && fresh && rows.iter().all(|(_, k)| *k != key) {
                rows.push((source, key));
            }
        }
        let row = |n: usize| rows[n];
        Self {
            interface,
            configuration,
            freezing,
            sources: [row(0).0, row(1).0, row(2).0],
            keys: [row(0).1, row(1).1, row(2).1],
        }
    }
}

/// The guest's CPUID, on a host that has every feature and no hypervisor.
fn snapshot(configuration: Configuration) -> Snapshot {
    let vendor = match configuration.vendor() {
        Vendor::Intel => [0x756E_6547, 0x6C65_746E, 0x4965_6E69],
        Vendor::Amd => [0x6874_7541, 0x444D_4163, 0x6974_6E65],
    };
    Snapshot::capture(move |leaf, subleaf| {
        let given = match leaf {
            0 => CpuIdResult { eax: 0x23, ebx: vendor[0], ecx: vendor[1], edx: vendor[2] },
            0x8000_0000 => CpuIdResult { eax: 0x8000_0022, ebx: 0, ecx: 0, edx: 0 },
            1 => CpuIdResult { eax: 0x806F8, ebx: 0, ecx: !(1 << 31), edx: u32::MAX },
            _ => CpuIdResult { eax: u32::MAX, ebx: u32::MAX, ecx: u32::MAX, edx: u32::MAX },
        };
        configuration.cpuid(leaf, subleaf, given)
    })
}

/// A check that runs on any driver.
trait Test {
    fn run<I: ProfileInterface>(&self, bench: &Bench<'_, I>);
}

/// Each way in which a processor tells of its overflows.
fn everywhere(test: &impl Test) {
    for (version, freezing) in
        [(1, false), (2, false), (3, true), (4, false), (4, true), (5, false), (5, true)]
    {
        let configuration = Configuration::Intel(IntelConfiguration::new(version, 4, 0));
        let emon = Emon::claim(&snapshot(configuration)).unwrap();
        test.run(&Bench::new(&emon, configuration, freezing));
    }
    for amd in [
        AmdConfiguration::Legacy,
        AmdConfiguration::CoreExtension,
        AmdConfiguration::PerfMonV2 { counters: 4 },
    ] {
        let configuration = Configuration::Amd(amd);
        let amd64 = Amd64::claim(&snapshot(configuration)).unwrap();
        test.run(&Bench::new(&amd64, configuration, false));
    }
}

/// What is interrupted, on a processor where two sources run and are an event short of overflowing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Start,
    Stop,
    Read,
    SetInterval,
    /// Whatever was set before is taken up, or not, on the way.
    Save,
    Restore,
    /// Saved and restored.
    Switch,
    /// Stopped, and another started on its counter.
    Replace,
    ShutDown,
    StartProfile,
    StopProfile,
}

const OPERATIONS: [Operation; 11] = [
    Operation::Start,
    Operation::Stop,
    Operation::Read,
    Operation::SetInterval,
    Operation::Save,
    Operation::Restore,
    Operation::Switch,
    Operation::Replace,
    Operation::ShutDown,
    Operation::StartProfile,
    Operation::StopProfile,
];

/// Interrupts an operation according to the plan, and checks what became of everything. Says whether
/// the plan went beyond the operation's end.
fn interrupt<I: ProfileInterface>(bench: &Bench<'_, I>, operation: Operation, plan: Plan) -> bool {
    let context = format!("{operation:?}, {plan:?}, {:?}, {}", bench.configuration, bench.freezing);
    let (memory, lists) = (Memory::new(), Profiles::<1, 1>::new());
    let hits = Cell::new(0);
    let handler = |processor: &Processor<'_>| {
        let examine = |overflow: Overflow| {
            processor.told(overflow);
            let examination = lists.interrupt(&Frame, overflow.source);
            assert_eq!(examination.outside, 0);
            hits.set(hits.get() + examination.hits);
        };
        bench.interface.service(processor, processor, &memory, examine).unwrap();
    };
    for source in bench.sources {
        bench.interface.set_interval(source, INTERVAL).unwrap();
    }
    let processor = Processor::new(bench, &handler);
    // Nobody's counters run, where that can be said.
    for control in [0x38F, 0xC000_0301] {
        let _ = processor.mock.with_pmu(|pmu| pmu.write(control, 0));
    }
    let found = processor.mock.with_pmu(|pmu| pmu.state());
    let mut session = bench.interface.initialise(&processor, &processor, &memory).unwrap();
    if bench.freezing {
        // SAFETY: no processor is behind the registers.
        unsafe { session.freeze_on_interrupt() }.unwrap();
    }
    let buffer = [const { AtomicU32::new(0) }; 2];
    let counts = || buffer.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u32>();
    let profiled =
        if operation == Operation::StopProfile { bench.sources[0] } else { bench.sources[STARTED] };
    let request = BasicProfile {
        process: None,
        base: 0x1000,
        size: 8,
        bucket_log2: 2,
        buffer: &buffer,
        source: profiled,
        affinity: None,
    };
    let number = ProcessorNumber::default();
    let object =
        ProfileObject::basic(Rules::LATEST, request, &ThisProcessor::new(&mut session, number))
            .unwrap();

    for source in &bench.sources[..STARTED] {
        if operation == Operation::StopProfile && *source == profiled {
            // SAFETY: the object lives until it is stopped.
            unsafe { lists.start_borrowed(&object, &mut ThisProcessor::new(&mut session, number)) }
                .unwrap();
        } else {
            session.start(*source).unwrap();
        }
    }
    (0..STARTED).for_each(|source| processor.feed(source, INTERVAL - 1));
    // Taken up by whichever counter overflows from now on.
    bench.interface.set_interval(bench.sources[0], 2 * INTERVAL).unwrap();
    let mut area = Area::new();
    if operation == Operation::Restore {
        session.save(&mut area, |overflow| panic!("{overflow:?}")).unwrap();
    }

    processor.plan.set(Some(plan));
    match operation {
        Operation::Start => session.start(bench.sources[STARTED]).unwrap(),
        Operation::Stop => session.stop(bench.sources[0]).unwrap(),
        Operation::Read => {
            let read = session.read(bench.sources[0]).unwrap();
            assert!(read <= 2 * INTERVAL, "{context}: {read:#X} events read");
        }
        Operation::SetInterval => {
            bench.interface.set_interval(bench.sources[1], 2 * INTERVAL).unwrap();
        }
        Operation::Save => session.save(&mut area, |overflow| processor.told(overflow)).unwrap(),
        Operation::Restore => session.restore(&area).unwrap(),
        Operation::Replace => {
            session.stop(bench.sources[0]).unwrap();
            session.start(bench.sources[STARTED]).unwrap();
        }
        Operation::Switch => {
            session.save(&mut area, |overflow| processor.told(overflow)).unwrap();
            session.restore(&area).unwrap();
        }
        Operation::ShutDown => session.shut_down().unwrap(),
        Operation::StartProfile => {
            // SAFETY: the object lives until it is stopped.
            unsafe { lists.start_borrowed(&object, &mut ThisProcessor::new(&mut session, number)) }
                .unwrap();
        }
        Operation::StopProfile => {
            lists.stop(&object, &mut ThisProcessor::new(&mut session, number)).unwrap();
        }
    }
    let stopped = |source| match operation {
        Operation::Stop | Operation::Replace | Operation::StopProfile => source == 0,
        Operation::ShutDown => true,
        _ => false,
    };
    // An overflow of the source that was stopped may have been dropped, before it was stopped.
    for (source, book) in processor.books.iter().enumerate() {
        if stopped(source) {
            book.untold.borrow_mut().clear();
        }
    }
    let beyond = processor.end();
    let all_told = |when: &str| {
        for (source, book) in processor.books.iter().enumerate() {
            assert_eq!(book.untold.borrow().len(), 0, "{context}: {source} lost, {when}");
        }
    };
    all_told("by the operation");
    assert_eq!(counts(), hits.get(), "{context}: not in the buffer");

    // What runs is what is said to run.
    assert_eq!(
        processor.counted(),
        bench.sources.map(|source| session.is_running(source)),
        "{context}"
    );
    if operation == Operation::Save {
        (0..SOURCES).for_each(|source| processor.feed(source, 2 * INTERVAL));
        all_told("while saved");
        session.restore(&area).unwrap();
    }
    if matches!(operation, Operation::Stop | Operation::StopProfile) {
        // The counter's next source inherits no overflow.
        session.start(bench.sources[STARTED]).unwrap();
        processor.interrupt();
    }
    // What runs goes on, and what does not is silent.
    for source in 0..SOURCES {
        let (before, hits_before) = (processor.books[source].told.get(), hits.get());
        processor.feed(source, 4 * INTERVAL);
        all_told("afterwards");
        let told = processor.books[source].told.get() - before;
        let runs = session.is_running(bench.sources[source]);
        assert_eq!(told >= 2, runs, "{context}: {told} overflows of {source} afterwards");
        assert!(runs || told == 0, "{context}: {source} is not silent");
        let profiles = bench.sources[source] == profiled && object.is_started();
        let hit = u64::from(hits.get() - hits_before);
        assert_eq!(hit, if profiles { told } else { 0 }, "{context}");
        assert_eq!(counts(), hits.get(), "{context}: not in the buffer");
    }
    if object.is_started() {
        lists.stop(&object, &mut ThisProcessor::new(&mut session, number)).unwrap();
    }
    session.shut_down().unwrap();
    assert_eq!(processor.counted(), [false; SOURCES], "{context}");
    // Nor does an interrupt that comes after all change anything.
    processor.interrupt();
    let state = processor.mock.with_pmu(|pmu| pmu.state());
    assert_eq!(state.global_control, found.global_control, "{context}: not as it was found");
    assert_eq!(state.global_status >> 59 & 1, 0, "{context}: left frozen");
    beyond
}

/// Somebody else's fixed counter, which interrupts and which its owner acknowledges, overflows at any
/// access of what lets the processor freeze its counters, and of what gives that back.
#[test]
fn a_strangers_interrupt_leaves_no_counter_frozen() {
    const GLOBAL_CONTROL: u32 = 0x38F;
    for version in [3, 4, 5] {
        let configuration = Configuration::Intel(IntelConfiguration::new(version, 4, 1));
        let emon = Emon::claim(&snapshot(configuration)).unwrap();
        let mut bench = Bench::new(&emon, configuration, true);
        bench.keys[STARTED] = EventKey::fixed(0);
        for (at, late, shuts_down) in
            (1..16).flat_map(|at| (0..3).flat_map(move |l| [(at, l, false), (at, l, true)]))
        {
            let context = format!("version {version}, {at}, late {late}, {shuts_down}");
            let memory = Memory::new();
            let strangers = Cell::new(0);
            let handler = |processor: &Processor<'_>| {
                emon.service(processor, processor, &memory, |o| panic!("{o:?}")).unwrap();
                // The owner of the fixed counter.
                processor.mock.with_pmu(|pmu| {
                    if pmu.state().global_status >> 32 & 1 != 0 {
                        let _ = pmu.write(0x390, 1 << 32);
                        strangers.set(strangers.get() + 1);
                    }
                });
            };
            let processor = Processor::new(&bench, &handler);
            processor.mock.with_pmu(|pmu| {
                // Counts everywhere, and interrupts.
                let _ = pmu.write(0x38D, 0xB);
                let _ = pmu.write(GLOBAL_CONTROL, 1 << 32);
                let _ = pmu.write(0x309, u64::MAX >> 16);
            });
            let mut session = emon.initialise(&processor, &processor, &memory).unwrap();
            if shuts_down {
                // SAFETY: no processor is behind the registers.
                unsafe { session.freeze_on_interrupt() }.unwrap();
            }
            processor.plan.set(Some(Plan::All { at, late }));
            if shuts_down {
                session.shut_down().unwrap();
            } else {
                // SAFETY: no processor is behind the registers.
                unsafe { session.freeze_on_interrupt() }.unwrap();
            }
            processor.end();
            assert_eq!(strangers.get(), 1, "{context}");
            let state = processor.mock.with_pmu(|pmu| pmu.state());
            assert_eq!(state.global_status >> 59 & 1, 0, "{context}: frozen");
            let own = if shuts_down { 0 } else { 0xF };
            assert_eq!(state.global_control, 1 << 32 | own, "{context}");
        }
    }
}

/// Runs through a kind of plan, until it goes beyond the end of the operation.
fn at_every_access(plan: impl Fn(u32) -> Plan) -> impl Test {
    struct Every<F>(F);
    impl<F: Fn(u32) -> Plan> Test for Every<F> {
        fn run<I: ProfileInterface>(&self, bench: &Bench<'_, I>) {
            for operation in OPERATIONS {
                (1..).find(|access| interrupt(bench, operation, (self.0)(*access)));
            }
        }
    }
    Every(plan)
}

#[test]
fn all_counters_overflow_at_any_access() {
    everywhere(&at_every_access(|at| Plan::All { at, late: 0 }));
}

#[test]
fn the_interrupt_comes_later_than_the_overflow() {
    for late in [1, 2, 3, 5, 8, 13, 21] {
        everywhere(&at_every_access(|at| Plan::All { at, late }));
    }
}

/// Runs through the plans of two events at most so many accesses apart.
fn at_any_two_accesses(plan: impl Fn(u32, u32) -> Plan) {
    for distance in 0..16 {
        everywhere(&at_every_access(|first| plan(first, first + distance)));
    }
}

/// The second may come within the interrupt of the first.
#[test]
fn counters_overflow_one_after_the_other_at_any_two_accesses() {
    at_any_two_accesses(|first, second| Plan::OneByOne { first, second });
}

#[test]
fn a_counter_overflows_within_an_interrupt_of_nobodys() {
    at_any_two_accesses(|at, second| Plan::Spurious { at, second });
}
