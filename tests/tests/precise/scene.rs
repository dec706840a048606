//! Processors that write precise records, and a kernel whose events are precise.

use core::cell::{Cell, RefCell};

use pmu_core::{
    CounterMemory, CounterSession, CounterSet, CounterSlot, CounterUnit, Event, EventEntry,
    EventFacility, EventId, EventTable, MAX_COUNTERS, OpenedEvents, Precision, Sample, service,
};
use pmu_intel::precise::{Pebs, PreciseMemory, PreciseUnit};
use pmu_tests::opened::raw;
use pmu_virt::{FedRecord, VirtualPmu};

use crate::support::{
    Mock, Msr, PHYSICAL, Processor, Unknown, instruction, lend, nothing_is_enabled,
};

pub(crate) type Source = OpenedEvents<'static, Option<Pebs<'static>>>;
pub(crate) type Session = CounterSession<'static, Source, Msr, Msr>;

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
        let memory = lend();
        let mock = processor.mock(memory, instructions, &[], new);
        let snapshot = mock.snapshot();
        let unit = PreciseUnit::detect(&snapshot, mock)
            .unwrap_or_else(|reason| panic!("{}: {reason}", processor.name));
        let scene: &'static Self = Box::leak(Box::new(Self {
            processor,
            mock,
            unit,
            counters: pmu_intel::counters(&snapshot).unwrap(),
            memory,
            counter_memory: CounterMemory::new(),
            table: EventTable::new(),
            seen: RefCell::default(),
            unknown: Unknown::default(),
            faulted: Cell::new(0),
            react: RefCell::new(None),
        }));
        scene.table.set_min_period(1);
        mock.on_interrupt(Box::leak(Box::new(|mock: &Mock<'static>| scene.handle(mock))));
        scene
    }

    pub(crate) fn source(&'static self) -> Source {
        // SAFETY: the mock writes to the lent memory alone, which lasts.
        let pebs = unsafe { Pebs::new(&self.unit, self.memory, Some(PHYSICAL)) };
        OpenedEvents::new(&self.counters, &self.table as &EventTable).with(Some(pebs.unwrap()))
    }

    pub(crate) fn take(&'static self) -> Session {
        let (unit, memory) = (&self.counters, &self.counter_memory);
        let session = CounterSession::take(
            self.source(),
            unit,
            CounterSet::ALL,
            self.mock,
            self.mock,
            memory,
        );
        let mut session = session.unwrap();
        if self.processor.freezes {
            session.freeze_on_interrupt().unwrap();
        }
        session
    }

    /// Opens and starts an event.
    #[track_caller]
    pub(crate) fn start(&'static self, session: &mut Session, event: &Event) -> EventId {
        let event = session.open_event(&self.counters, event).expect(self.processor.name);
        session.start_event(event, 0).expect(self.processor.name);
        event
    }

    pub(crate) fn note<F: EventFacility + Records>(&'static self, sample: &Sample<'_, F>) {
        let seen = Seen {
            event: sample.event,
            tag: sample.tag,
            period: sample.period,
            address: sample.facility().address(),
        };
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
        let serviced = service(&source, mock, mock, &self.counter_memory, report);
        match serviced {
            Ok(serviced) => self.unknown.note(serviced.claim),
            Err(_) => self.faulted.set(self.faulted.get() + 1),
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

    /// Checks that each record that the processor wrote was reported once, in order.
    #[track_caller]
    pub(crate) fn all_reported(&self, what: &str) {
        let seen = self.seen.borrow();
        let found: Vec<_> = seen.iter().filter_map(|seen| seen.address).collect();
        let expected: Vec<u64> =
            (0..self.mock.written_records()).map(crate::support::address).collect();
        assert_eq!(found, expected, "{what}");
        assert_eq!((self.mock.lost_records(), self.unknown.get()), (0, 0), "{what}");
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

/// A facility with records.
pub(crate) trait Records {
    fn address(&self) -> Option<u64>;
}

impl Records for Option<Pebs<'_>> {
    fn address(&self) -> Option<u64> {
        let record = self.as_ref()?.record()?;
        record.address().or(record.next_address().map(|next| next - 4))
    }
}
