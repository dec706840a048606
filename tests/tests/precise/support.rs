//! Processors that write precise records, and a kernel that reads them.

use core::cell::{Cell, RefCell};
use core::ptr;
use core::sync::atomic::AtomicU64;

use pmu_core::{
    Claim, CounterMemory, CounterSession, CounterSet, CounterSlot, CounterUnit, Event, EventEntry,
    EventSelect, EventTable, Facility, MAX_COUNTERS, OpenedEvents, service_with,
};
use pmu_intel::precise::{
    Precise, PreciseEvent, PreciseMemory, PreciseRecorder, PreciseReport, PreciseUnit, Precision,
};
use pmu_tests::opened::fed_events;
use pmu_tests::{ProcessMemory, StateRegisters};
use pmu_virt::mock::{Deviations, MockMsr};
use pmu_virt::{
    Configuration, FedRecord, FedRegisters, GuestMemory, IntelConfiguration, PreciseConfiguration,
    Read, VirtualPmu, VirtualPrecise,
};

pub(crate) type Mock<'h> = MockMsr<'h, 64>;
pub(crate) type Msr = &'static Mock<'static>;
pub(crate) type Session = CounterSession<'static, OpenedEvents<'static>, Msr, Msr>;
pub(crate) type Recorder = PreciseRecorder<'static, Msr>;

/// The period of the tests.
pub(crate) const PERIOD: u64 = 100;

/// The buffer's physical address.
pub(crate) const PHYSICAL: u64 = 0x10_0000;

/// Words of the buffer.
const WORDS: usize = 2048;

/// A processor that writes records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Processor {
    pub(crate) name: &'static str,
    pub(crate) counters: IntelConfiguration,
    pub(crate) records: PreciseConfiguration,
    pub(crate) deviations: Deviations,
    pub(crate) freezes: bool,
}

/// Returns a processor of each format, freezing and not.
pub(crate) fn processors() -> Vec<Processor> {
    let of = |name, version, format| {
        let records = PreciseConfiguration::debug_store(format);
        (name, version, records)
    };
    let all = [
        of("format 0", 2, 0),
        of("format 1", 3, 1),
        of("format 2", 3, 2),
        of("format 3", 4, 3),
        of("format 4", 5, 4),
        of("format 5", 5, 5),
        of("format 6", 5, 6),
        ("architectural", 6, PreciseConfiguration::ARCHITECTURAL),
        (
            "fragments",
            6,
            PreciseConfiguration::ARCHITECTURAL
                .with_architectural(|records| records.fragments = true),
        ),
    ];
    let processor = |freezes| {
        move |(name, version, records)| Processor {
            name,
            counters: IntelConfiguration::new(version, if version < 4 { 4 } else { 8 }, 3),
            records,
            deviations: Deviations::NONE,
            freezes,
        }
    };
    all.into_iter().map(processor(true)).chain(all.into_iter().map(processor(false))).collect()
}

/// Returns the instruction of a record: at 0x401000 + 16 times its number.
pub(crate) fn instruction(number: u64) -> FedRecord<'static> {
    let ip = address(number);
    FedRecord {
        registers: FedRegisters { ip: ip + 4, ..FedRegisters::ZERO },
        tsc: 1000 + number,
        ..FedRecord::new(ip)
    }
}

pub(crate) fn address(number: u64) -> u64 {
    0x40_1000 + 16 * number
}

/// Instructions retired in user mode, with every period.
pub(crate) fn instructions() -> PreciseEvent {
    let event = Event::raw(EventSelect::from_bits(0xC0)).user_only().every(PERIOD).tagged(7);
    PreciseEvent::new(event, Precision::ConstantSkid)
}

/// Another event: that of the given kind, on general counters.
pub(crate) fn other(kind: usize) -> PreciseEvent {
    let event = pmu_tests::opened::raw(kind).user_only().every(PERIOD).tagged(kind as u64);
    PreciseEvent::new(event, Precision::ConstantSkid)
}

/// A kernel's memory of one processor, and what its handler has seen.
pub(crate) struct Kernel {
    pub(crate) processor: Processor,
    pub(crate) unit: PreciseUnit,
    pub(crate) counters: CounterUnit,
    pub(crate) memory: &'static PreciseMemory,
    pub(crate) counter_memory: CounterMemory<[CounterSlot; MAX_COUNTERS]>,
    pub(crate) table: EventTable<[EventEntry; 4]>,
    /// Addresses that were reported: of the instruction, or of the next one.
    pub(crate) reported: RefCell<Vec<u64>>,
    pub(crate) tags: RefCell<Vec<u64>>,
    pub(crate) overflows: Cell<u32>,
    pub(crate) claimed: Cell<u32>,
    pub(crate) unclaimed: Cell<u32>,
    pub(crate) unknown: Unknown,
    pub(crate) faulted: Cell<u32>,
}

/// Interrupts that no claim accounts for, neither their own nor an earlier one: a kernel would report them.
#[derive(Debug, Default)]
pub(crate) struct Unknown {
    count: Cell<u32>,
    /// An earlier claim accounts for one more interrupt.
    expects: Cell<bool>,
}

impl Unknown {
    pub(crate) fn note(&self, claim: Claim) {
        match claim {
            Claim::NotOurs if !self.expects.take() => self.count.set(self.count.get() + 1),
            Claim::OursAndMore => self.expects.set(true),
            Claim::NotOurs | Claim::Ours => {}
        }
    }

    pub(crate) fn get(&self) -> u32 {
        self.count.get()
    }
}

/// Makes the memory of a processor, which lasts.
pub(crate) fn lend() -> &'static PreciseMemory {
    let memory: &'static PreciseMemory<[AtomicU64; WORDS]> =
        Box::leak(Box::new(PreciseMemory::new()));
    memory
}

/// Returns the words of the memory's area, and those of its buffer.
pub(crate) fn words(memory: &'static PreciseMemory) -> [&'static [AtomicU64]; 2] {
    let first = ptr::from_ref(memory).cast::<AtomicU64>();
    // SAFETY: the area has 56 atomic words, and one page behind it begins the buffer of atomic words.
    unsafe {
        [
            core::slice::from_raw_parts(first, 56),
            core::slice::from_raw_parts(first.add(512), memory.capacity() / 8),
        ]
    }
}

impl Processor {
    /// Calls `test` with a mock of this processor, and a kernel whose handler serves its interrupts. Both last.
    pub(crate) fn run(self, test: impl FnOnce(&'static Kernel, &'static Mock<'static>)) {
        self.run_with(instruction, test);
    }

    pub(crate) fn run_with(
        self,
        instructions: impl Fn(u64) -> FedRecord<'static> + 'static,
        test: impl FnOnce(&'static Kernel, &'static Mock<'static>),
    ) {
        self.run_all(instructions, &[], test);
    }

    /// Calls `test` with a processor that has these words in its memory, too.
    pub(crate) fn run_beside(
        self,
        more: &'static [AtomicU64],
        test: impl FnOnce(&'static Kernel, &'static Mock<'static>),
    ) {
        self.run_all(instruction, more, test);
    }

    fn run_all(
        self,
        instructions: impl Fn(u64) -> FedRecord<'static> + 'static,
        more: &'static [AtomicU64],
        test: impl FnOnce(&'static Kernel, &'static Mock<'static>),
    ) {
        let memory = lend();
        let mock = self.mock(memory, instructions, more, Mock::strict);
        let kernel: &'static Kernel = Box::leak(Box::new(Kernel::new(self, memory, mock)));
        mock.on_interrupt(Box::leak(Box::new(|mock: &Mock<'static>| kernel.handle(mock))));
        test(kernel, mock);
        assert_eq!(mock.breach(), None, "{}", self.name);
    }

    /// Makes the processor, which writes to this memory.
    pub(crate) fn mock(
        self,
        memory: &'static PreciseMemory,
        instructions: impl Fn(u64) -> FedRecord<'static> + 'static,
        more: &'static [AtomicU64],
        new: fn(VirtualPmu) -> Mock<'static>,
    ) -> &'static Mock<'static> {
        let [area, buffer] = words(memory);
        let ram = ProcessMemory::default().with(area, 0).with(buffer, PHYSICAL);
        let ram = ram.with(more, 2 * PHYSICAL);
        let ram: &'static RefCell<dyn GuestMemory> = Box::leak(Box::new(RefCell::new(ram)));
        let configuration = Configuration::Intel(self.counters);
        let precise = VirtualPrecise::new(&configuration, self.records).unwrap();
        let pmu = VirtualPmu::new(configuration, fed_events()).unwrap();
        let mock = new(pmu).with_precise(precise, ram, Box::leak(Box::new(instructions)));
        let mock: &'static Mock<'static> = Box::leak(Box::new(mock.deviating(self.deviations)));
        let _ = mock.with_pmu(|pmu| pmu.write(0x38F, 0));
        mock
    }
}

impl Kernel {
    fn new(processor: Processor, memory: &'static PreciseMemory, mock: &Mock<'_>) -> Self {
        let snapshot = mock.snapshot();
        let unit = PreciseUnit::detect(&snapshot, mock)
            .unwrap_or_else(|reason| panic!("{}: {reason}", processor.name));
        Self {
            processor,
            unit,
            counters: pmu_intel::counters(&snapshot).unwrap(),
            memory,
            counter_memory: CounterMemory::new(),
            table: EventTable::new(),
            reported: RefCell::default(),
            tags: RefCell::default(),
            overflows: Cell::new(0),
            claimed: Cell::new(0),
            unclaimed: Cell::new(0),
            unknown: Unknown::default(),
            faulted: Cell::new(0),
        }
    }

    pub(crate) fn source(&self) -> OpenedEvents<'_> {
        OpenedEvents::new(&self.counters, &self.table as &EventTable)
    }

    /// Takes the counters alone.
    pub(crate) fn take_counters(&'static self, mock: Msr) -> Session {
        let (source, unit, memory) = (self.source(), &self.counters, &self.counter_memory);
        CounterSession::take(source, unit, CounterSet::ALL, mock, mock, memory).unwrap()
    }

    /// Takes the counters, and the records.
    pub(crate) fn take(&'static self, mock: Msr) -> (Session, Recorder) {
        let mut session = self.take_counters(mock);
        if self.processor.freezes {
            session.freeze_on_interrupt().unwrap();
        }
        (session, self.take_records(mock))
    }

    /// Takes the records alone.
    pub(crate) fn take_records(&'static self, mock: Msr) -> Recorder {
        // SAFETY: the mock writes to the lent memory alone, which lasts.
        let recorder =
            unsafe { PreciseRecorder::take(&self.unit, mock, self.memory, Some(PHYSICAL)) };
        recorder.unwrap()
    }

    /// Keeps a report.
    pub(crate) fn report(&self, report: &PreciseReport<'_>) {
        let record = &report.record;
        let address = record.address().or(record.next_address().map(|next| next - 4));
        self.reported.borrow_mut().push(address.expect("an address"));
        self.tags.borrow_mut().push(report.tag);
        assert_eq!(report.sample().address, record.address());
    }

    pub(crate) fn handle(&self, mock: &Mock<'_>) {
        let records = Precise::new(&self.unit, self.memory, |report: &PreciseReport<'_>| {
            self.report(report);
        });
        self.handle_with(mock, records);
    }

    pub(crate) fn handle_with(&self, mock: &Mock<'_>, facility: impl Facility) {
        let counters = &self.counter_memory;
        let serviced = service_with(&self.source(), mock, mock, counters, facility, |_, _| {
            self.overflows.set(self.overflows.get() + 1);
        });
        let count = |cell: &Cell<u32>, more| cell.set(cell.get() + more);
        let claim = serviced.map(|serviced| serviced.claim);
        claim.iter().for_each(|claim| self.unknown.note(*claim));
        match claim {
            Ok(Claim::NotOurs) => count(&self.unclaimed, 1),
            Ok(claim) => count(&self.claimed, claim.interrupts()),
            Err(_) => count(&self.faulted, 1),
        }
    }

    /// Checks that each record that the processor wrote was reported once, in order.
    #[track_caller]
    pub(crate) fn all_reported(&self, mock: &Mock<'_>, what: &str) {
        let expected: Vec<u64> = (0..mock.written_records()).map(address).collect();
        assert_eq!(*self.reported.borrow(), expected, "{what}");
    }

    /// Shuts recorder and session down. `records` records were reported, once and in order, and nothing stays enabled.
    #[track_caller]
    pub(crate) fn ends(
        &self,
        mock: &Mock<'_>,
        mut session: Session,
        mut recorder: Recorder,
        records: usize,
        what: &str,
    ) {
        let report = |report: &PreciseReport<'_>| self.report(report);
        recorder.shut_down(&mut session, report).expect(what);
        self.all_reported(mock, what);
        assert_eq!(self.reported.borrow().len(), records, "{what}");
        session.shut_down().expect(what);
        nothing_is_enabled(mock, what);
    }
}

/// Checks that no counter counts, and that nothing is recorded or pending.
#[track_caller]
pub(crate) fn nothing_is_enabled(mock: &Mock<'_>, what: &str) {
    let state = mock.with_pmu(|pmu| pmu.state());
    assert_eq!((state.selects(), state.fixed_control()), ([0; 8], 0), "{what}");
    assert_eq!((state.global_status(), state.debug_control()), (0, 0), "{what}");
    let records = mock
        .with_precise_records(|records| (records.enabled(), records.due(), records.is_tracing()));
    assert_eq!(records, Some((0, 0, false)), "{what}");
    // IA32_DS_AREA, IA32_PEBS_ENABLE, IA32_PEBS_BASE and IA32_PEBS_INDEX, of those that there are.
    for register in [0x600, 0x3F1, 0x3F4, 0x3F5] {
        let value = mock.with_precise_records(|records| {
            mock.with_pmu(|pmu| pmu.read_beside(records, register))
        });
        let clear = [Read::Value(0), Read::GeneralProtection, Read::Unhandled].map(Some);
        assert!(clear.contains(&value), "{what}: {register:#x} is {value:x?}");
    }
}
