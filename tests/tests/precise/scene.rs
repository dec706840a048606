//! Processors that write precise records, and a kernel whose events are precise.

use core::cell::{Cell, RefCell};
use core::sync::atomic::AtomicU64;

use pmu_core::access::RegisterAddress;
use pmu_core::facility::EventFacility;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::precise::{PreciseSample, Precision};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::x86::Snapshot;
use pmu_core::{
    Claim, CounterSession, CounterSet, CounterUnit, Event, EventId, Events, Sample, service,
};
use pmu_intel::precise::{Pebs, PreciseMemory, PreciseRecord, PreciseUnit};
use pmu_tests::opened::raw;
use pmu_virt::mock::Fault;
use pmu_virt::precise::FedRecord;
use pmu_virt::{Read, VirtualPmu};

use crate::support::{
    Mock, Msr, PHYSICAL, Processor, Unknown, instruction, lend, nothing_is_enabled, processors,
};

pub(crate) type Source = Events<'static, CounterUnit, Option<Pebs<'static>>>;
pub(crate) type Session = CounterSession<'static, Source, Msr>;

/// The period of the tests.
pub(crate) const PERIOD: u64 = 100;

/// A sample as it was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) event: EventId,
    pub(crate) tag: u64,
    pub(crate) period: u64,
    /// The address of the instruction; in formats without it, 4 less than the next one's. `None` without a record.
    pub(crate) address: Option<u64>,
}

/// A kernel's memory of one processor, and what its handler has seen.
pub(crate) struct Scene {
    pub(crate) processor: Processor,
    pub(crate) mock: Msr,
    pub(crate) unit: PreciseUnit,
    pub(crate) counters: CounterUnit,
    pub(crate) memory: &'static PreciseMemory,
    pub(crate) counter_memory: CounterMemory<[CounterSlot; MAX_COUNTERS]>,
    pub(crate) table: EventTable<[EventEntry; 12]>,
    pub(crate) seen: RefCell<Vec<Seen>>,
    /// The records and instructions of the samples that have them.
    pub(crate) records: RefCell<Vec<PreciseRecord<'static>>>,
    pub(crate) instructions: RefCell<Vec<PreciseSample>>,
    /// Interrupts that were claimed, and calls of the handler that claimed none.
    pub(crate) claimed: Cell<u32>,
    pub(crate) unclaimed: Cell<u32>,
    pub(crate) unknown: Unknown,
    pub(crate) faulted: Cell<u32>,
    /// Called with each sample, after it was noted.
    pub(crate) react: RefCell<Option<Reaction>>,
}

type Reaction = Box<dyn Fn(&'static Scene, &Seen)>;

/// Returns a precise event of a kind, with the kind as its tag.
pub(crate) fn precise(kind: usize) -> Event {
    raw(kind).user_only().every(PERIOD).tagged(kind as u64).precise(Precision::ConstantSkid)
}

impl Scene {
    pub(crate) fn new(processor: Processor) -> &'static Self {
        Self::with(processor, instruction, Mock::strict)
    }

    pub(crate) fn with(
        processor: Processor,
        instructions: impl Fn(u64) -> FedRecord<'static> + 'static,
        new: fn(VirtualPmu) -> Mock<'static>,
    ) -> &'static Self {
        Self::build(processor, instructions, &[], new, |snapshot| snapshot)
    }

    /// Makes a processor that has these words in its memory, too.
    pub(crate) fn beside(processor: Processor, more: &'static [AtomicU64]) -> &'static Self {
        Self::build(processor, instruction, more, Mock::strict, |snapshot| snapshot)
    }

    /// Makes a processor that the kernel takes for another one.
    pub(crate) fn build(
        processor: Processor,
        instructions: impl Fn(u64) -> FedRecord<'static> + 'static,
        more: &'static [AtomicU64],
        new: fn(VirtualPmu) -> Mock<'static>,
        seen_as: impl FnOnce(Snapshot) -> Snapshot,
    ) -> &'static Self {
        let memory = lend();
        let mock = processor.mock(memory, instructions, more, new);
        let snapshot = seen_as(mock.snapshot());
        let unit = PreciseUnit::detect(&snapshot, mock)
            .unwrap_or_else(|reason| panic!("{}: {reason}", processor.name));
        let scene: &'static Self = Box::leak(Box::new(Self {
            processor,
            mock,
            unit,
            counters: pmu_intel::counters(&snapshot),
            memory,
            counter_memory: CounterMemory::new(),
            table: EventTable::new(),
            seen: RefCell::default(),
            records: RefCell::default(),
            instructions: RefCell::default(),
            claimed: Cell::new(0),
            unclaimed: Cell::new(0),
            unknown: Unknown::default(),
            faulted: Cell::new(0),
            react: RefCell::new(None),
        }));
        scene.table.set_min_period(1);
        mock.on_interrupt(Box::leak(Box::new(|mock: &Mock<'static>| scene.handle(mock))));
        scene
    }

    pub(crate) fn source(&'static self) -> Source {
        Events::new(&self.counters, &self.table as &EventTable).with(self.pebs())
    }

    pub(crate) fn pebs(&'static self) -> Option<Pebs<'static>> {
        // SAFETY: the mock writes to the lent memory alone, which lasts.
        let pebs = unsafe { Pebs::new(&self.unit, self.memory, Some(PHYSICAL)) };
        Some(pebs.unwrap())
    }

    pub(crate) fn take(&'static self) -> Session {
        let (unit, memory) = (&self.counters, &self.counter_memory);
        let session = CounterSession::take(self.source(), unit, CounterSet::ALL, self.mock, memory);
        let mut session = session.unwrap();
        if self.processor.freezes {
            session.freeze_on_interrupt().unwrap();
        }
        session
    }

    /// Opens and starts an event.
    #[track_caller]
    pub(crate) fn start(&'static self, session: &mut Session, event: &Event) -> EventId {
        let event = session.open(&self.counters, &[*event]).expect(self.processor.name);
        session.enable(event, 0).expect(self.processor.name);
        event
    }

    /// Opens and starts events that are counted together. Returns their group, and its last event.
    #[track_caller]
    pub(crate) fn start_together(
        &'static self,
        session: &mut Session,
        events: &[Event],
    ) -> (EventId, EventId) {
        let group = session.open(&self.counters, events).expect(self.processor.name);
        session.enable(group, 0).expect(self.processor.name);
        (group, session.group_events(group).last().unwrap())
    }

    /// Reports the samples whose records wait, after an access.
    #[track_caller]
    pub(crate) fn drain(&'static self, session: &mut Session) {
        // An overflow may come before this access.
        let _ = pmu_core::access::RegisterBackend::read(self.mock, status());
        session.report_samples(|sample| self.note(&sample)).expect(self.processor.name);
    }

    pub(crate) fn note<F: EventFacility + Records>(&'static self, sample: &Sample<'_, F>) {
        let seen = Seen {
            event: sample.event,
            tag: sample.tag,
            period: sample.period,
            address: sample
                .facility()
                .and_then(|pebs| pebs.record())
                .and_then(|record| address_of(&record)),
        };
        self.records.borrow_mut().extend(sample.facility().and_then(|pebs| pebs.record()));
        self.instructions.borrow_mut().extend(sample.instruction());
        if let Some(instruction) = sample.instruction() {
            assert_eq!(instruction.address.is_some(), self.unit.format().has_own_address());
            assert_eq!(sample.address(7), instruction.address.unwrap_or(7));
        }
        self.seen.borrow_mut().push(seen);
        if let Some(react) = &*self.react.borrow() {
            react(self, &seen);
        }
    }

    pub(crate) fn handle(&'static self, mock: &Mock<'_>) {
        let source = self.source();
        let report = |sample: Sample<'_, Option<Pebs<'static>>>| self.note(&sample);
        let serviced = service(&source, mock, &self.counter_memory, report);
        self.served(serviced.ok().map(|serviced| serviced.claim));
    }

    pub(crate) fn served(&self, claim: Option<Claim>) {
        let count = |cell: &Cell<u32>, more| cell.set(cell.get() + more);
        claim.iter().for_each(|claim| self.unknown.note(*claim));
        match claim {
            Some(Claim::NotOurs) => count(&self.unclaimed, 1),
            Some(claim) => count(&self.claimed, claim.interrupts()),
            None => count(&self.faulted, 1),
        }
    }

    /// Lets events of a kind happen in user mode.
    pub(crate) fn happen(&self, kind: usize, count: u64) {
        self.mock.advance(&mut pmu_tests::opened::happened(kind, count));
    }

    /// Returns the addresses of the samples with this tag.
    pub(crate) fn addresses(&self, tag: u64) -> Vec<Option<u64>> {
        let seen = self.seen.borrow();
        seen.iter().filter(|seen| seen.tag == tag).map(|seen| seen.address).collect()
    }

    /// Returns the number of samples with this tag.
    pub(crate) fn samples(&self, tag: u64) -> usize {
        self.seen.borrow().iter().filter(|seen| seen.tag == tag).count()
    }

    /// Returns the number of records that were reported.
    pub(crate) fn reported(&self) -> usize {
        self.seen.borrow().iter().filter(|seen| seen.address.is_some()).count()
    }

    /// Rotates two events, of which one is on a counter at a time. Meanwhile the register has the event's value.
    #[track_caller]
    pub(crate) fn take_turns(
        &self,
        session: &mut Session,
        register: u32,
        events: [(u64, EventId); 2],
        what: &str,
    ) {
        let mut turns = [0; 2];
        for now in 1..=20 {
            let on = events.map(|(_, event)| session.counter_of(event).is_some());
            assert_eq!(on.iter().filter(|on| **on).count(), 1, "{what}");
            let turn = usize::from(on[1]);
            turns[turn] += 1;
            assert_eq!(self.read(register), events[turn].0, "{what}");
            session.rotate(now).unwrap();
        }
        assert_eq!(turns, [10; 2], "{what}");
    }

    /// Returns the value of a register.
    #[track_caller]
    pub(crate) fn read(&self, register: u32) -> u64 {
        let mock = self.mock;
        let read =
            mock.with_precise_records(|of| mock.with_pmu(|pmu| pmu.read_beside(of, register)));
        match read {
            Some(Read::Value(value)) => value,
            other => panic!("{register:#x}: {other:?}"),
        }
    }

    /// Another owner, such as firmware, writes a register.
    #[track_caller]
    pub(crate) fn write(&self, register: u32, value: u64) {
        let mock = self.mock;
        mock.with_precise_records(|of| {
            let _ = mock.with_pmu(|pmu| pmu.write_beside(of, register, value));
        });
        assert_eq!(self.read(register), value, "{register:#x}");
    }

    /// The registers lose their contents.
    pub(crate) fn lose_registers(&self) {
        self.mock.lose_registers();
        self.mock.set_performance_entry(0x400);
    }

    /// Calls `act` while an access and its retry fail. Returns its result, unless it has less accesses.
    pub(crate) fn fails_twice_at<R>(&self, access: u32, act: impl FnOnce() -> R) -> Option<R> {
        let mock = self.mock;
        let before = mock.accesses().total();
        let ends = before + access + 1;
        mock.inject(Fault::From(access));
        mock.on_access(Box::leak(Box::new(move |mock: &Mock<'_>| {
            if mock.accesses().total() == ends {
                mock.inject(Fault::None);
            }
        })));
        let outcome = act();
        mock.inject(Fault::None);
        mock.on_access(&|_| ());
        (mock.accesses().total() >= before + access).then_some(outcome)
    }

    /// Returns the counters that write records.
    pub(crate) fn enabled(&self) -> u64 {
        self.mock.with_precise_records(|records| records.enabled()).unwrap()
    }

    /// Checks that each record that the processor wrote was reported once, in order.
    #[track_caller]
    pub(crate) fn all_reported(&self, what: &str) {
        self.all_reported_but(0, what);
    }

    /// Checks the same, after this many interrupts of others.
    #[track_caller]
    pub(crate) fn all_reported_but(&self, unknown: u32, what: &str) {
        let seen = self.seen.borrow();
        let found: Vec<_> = seen.iter().filter_map(|seen| seen.address).collect();
        let expected: Vec<u64> =
            (0..self.mock.written_records()).map(crate::support::address).collect();
        assert_eq!(found, expected, "{what}");
        assert_eq!((self.mock.lost_records(), self.unknown.get()), (0, unknown), "{what}");
    }

    /// Shuts the session down after this many records, which were reported. Nothing stays enabled.
    #[track_caller]
    pub(crate) fn ends_after(&'static self, mut session: Session, records: usize, what: &str) {
        session.report_samples(|sample| self.note(&sample)).expect(what);
        self.all_reported(what);
        assert_eq!(self.reported(), records, "{what}");
        self.ends(session, what);
    }

    /// Shuts the session down. Nothing stays enabled.
    #[track_caller]
    pub(crate) fn ends(&'static self, mut session: Session, what: &str) {
        session.report_samples(|sample| self.note(&sample)).expect(what);
        session.shut_down().expect(what);
        nothing_is_enabled(self.mock, what);
        assert_eq!(self.mock.breach(), None, "{what}");
    }
}

/// Makes a thread with one event, which starts as the thread does.
pub(crate) fn thread(scene: &Scene, event: &Event) -> [ThreadEvent; 1] {
    // A saved event knows no table whose least period is less.
    let saved = SavedEvent::new(&scene.counters, &event.every(100_000)).unwrap();
    let mut saved = saved.to_be_enabled(true);
    saved.set_period(&scene.table, PERIOD).unwrap();
    [ThreadEvent::SwitchedOut(saved)]
}

/// Returns the register of the overflow status.
fn status() -> RegisterAddress {
    // SAFETY: the register is read.
    unsafe { RegisterAddress::new(0x38E) }
}

/// A facility with records.
pub(crate) trait Records {
    fn record(&self) -> Option<PreciseRecord<'static>>;
}

impl Records for Option<Pebs<'_>> {
    fn record(&self) -> Option<PreciseRecord<'static>> {
        self.as_ref()?.record()
    }
}

/// Returns the address of a record's instruction; in formats without it, 4 less than the next one's.
pub(crate) fn address_of(record: &PreciseRecord<'_>) -> Option<u64> {
    record.address().or(record.next_address().map(|next| next - 4))
}

/// Returns a processor's name for messages.
pub(crate) fn name(processor: &Processor) -> String {
    format!("{}, freezes: {}", processor.name, processor.freezes)
}

/// Returns the processors with this name: freezing, and not.
pub(crate) fn named(name: &str) -> impl Iterator<Item = Processor> {
    processors().into_iter().filter(move |processor| processor.name == name)
}

/// Returns whether a processor tells records of two events apart.
pub(crate) fn tells_apart(processor: &Processor) -> bool {
    !["format 0", "format 1"].contains(&processor.name)
}
