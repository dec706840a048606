//! Processors that divide issue slots, a kernel that counts them, and a naive model of what is counted.

use core::cell::{Cell, RefCell};

use pmu_core::error::{CounterError, EventsError};
use pmu_core::facility::DivisionMemory;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::reading::sample_read;
use pmu_core::registers::{EventSelect, MAX_COUNTERS};
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::{
    Claim, CounterSession, CounterSet, CounterUnit, Event, EventCount, EventId, Events, service,
};
use pmu_intel::topdown::{TopDown, TopDownCounts, TopDownPart, TopDownUnit};
use pmu_virt::configuration::{Configuration, IntelConfiguration, IntelFeature};
use pmu_virt::mock::MockMsr;
use pmu_virt::topdown::{TopDownMix, VirtualTopDown};
use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};

pub(crate) type Mock<'h> = MockMsr<'h, 64>;
pub(crate) type Source<'a> = Events<'a, CounterUnit, TopDown<'a>>;
pub(crate) type Session<'a, 'm> = CounterSession<'a, Source<'a>, &'m Mock<'m>>;

/// Slots, and an event of a general counter beside them.
pub(crate) const SLOTS: EventKey = EventKey::fixed(3).unwrap();
pub(crate) const BRANCHES: EventKey = EventKey::general(0xC4, 0);

/// Issue slots, of which events follow that are parts.
pub(crate) fn slots() -> Event {
    Event::raw(EventSelect::from_bits(0x0400))
}

/// A part of them, by its number in the register of the shares.
pub(crate) fn part(number: u64) -> Event {
    Event::raw(EventSelect::from_bits(0x8000 | number << 8)).on(CounterSet::NONE)
}

pub(crate) fn branch() -> Event {
    Event::raw(EventSelect::from_bits(0x00C4))
}

/// All parts, in the order of the register's bytes.
pub(crate) fn parts() -> impl Iterator<Item = TopDownPart> {
    TopDownPart::LEVEL_1.into_iter().chain(TopDownPart::LEVEL_2)
}

/// Mixes whose shares are whole.
pub(crate) const MIXES: [TopDownMix; 4] = [
    TopDownMix { shares: [255, 0, 0, 0, 0, 0, 0, 0] },
    TopDownMix { shares: [40, 15, 100, 100, 30, 10, 90, 70] },
    TopDownMix { shares: [1, 2, 3, 249, 0, 2, 1, 240] },
    TopDownMix { shares: [85, 85, 80, 5, 0, 85, 0, 5] },
];

#[derive(Clone, Copy, Debug)]
pub(crate) struct Processor {
    pub(crate) intel: IntelConfiguration,
    pub(crate) level_2: bool,
    pub(crate) freezing: bool,
}

/// A processor of each kind.
pub(crate) fn processors() -> Vec<Processor> {
    let mut all = vec![];
    for (intel, level_2) in [
        (IntelConfiguration::new(5, 8, 4), false),
        (IntelConfiguration::new(5, 8, 4), true),
        (
            IntelConfiguration::new(6, 8, 4)
                .with(|intel| intel.set(IntelFeature::RdpmcUserDisable, true)),
            true,
        ),
    ] {
        all.extend([false, true].map(|freezing| Processor { intel, level_2, freezing }));
    }
    all
}

pub(crate) fn events() -> FedEvents {
    FedEvents::new(&[SLOTS, BRANCHES]).unwrap()
}

impl Processor {
    pub(crate) fn mock<'h>(&self) -> Mock<'h> {
        let configuration = Configuration::Intel(self.intel);
        let pmu = VirtualPmu::new(configuration, events()).unwrap();
        let metrics = VirtualTopDown::new(&configuration, self.level_2).unwrap();
        let mock = Mock::strict(pmu).with_top_down(metrics);
        // No other owner's counters run.
        let _ = mock.with_pmu(|pmu| pmu.write(0x38F, 0));
        mock
    }

    pub(crate) fn counters(&self, mock: &Mock<'_>) -> CounterUnit {
        pmu_intel::counters(&mock.snapshot())
    }

    pub(crate) fn unit(&self, mock: &Mock<'_>) -> TopDownUnit {
        let unit = TopDownUnit::of(&mock.snapshot(), mock).unwrap();
        assert_eq!((unit.has_metrics(), unit.has_level_2()), (true, self.level_2));
        unit
    }
}

/// Declares the mock of a processor, a kernel that handles its interrupts, and a session with all counters.
macro_rules! counting {
    ($processor:expr => $mock:ident, $kernel:ident, $session:ident) => {
        let $mock = $processor.mock();
        let $kernel = $crate::support::Kernel::new(&$processor, &$mock);
        let handler = |mock: &$crate::support::Mock<'_>| $kernel.handle(mock);
        $mock.on_interrupt(&handler);
        let mut $session = $kernel.take(&$mock);
    };
}
pub(crate) use counting;

/// A kernel's memory of one processor, and what its handler has seen.
pub(crate) struct Kernel {
    pub(crate) freezing: bool,
    pub(crate) counters: CounterUnit,
    pub(crate) unit: TopDownUnit,
    pub(crate) memory: DivisionMemory,
    pub(crate) counter_memory: CounterMemory<[CounterSlot; MAX_COUNTERS]>,
    pub(crate) table: EventTable<[EventEntry; 32]>,
    pub(crate) unclaimed: Cell<u32>,
    pub(crate) faulted: Cell<u32>,
    /// An event of the group whose counts the handler reads.
    pub(crate) sampled_event: Cell<Option<EventId>>,
    /// The counts that the handler read.
    pub(crate) sampled: RefCell<Vec<TopDownCounts>>,
    /// An event of another counter.
    pub(crate) beside: Cell<Option<EventId>>,
    /// The counts of threads.
    pub(crate) of_threads: Cell<TopDownCounts>,
}

impl Kernel {
    pub(crate) fn new(processor: &Processor, mock: &Mock<'_>) -> Self {
        Self {
            freezing: processor.freezing,
            counters: processor.counters(mock),
            unit: processor.unit(mock),
            memory: DivisionMemory::new(),
            counter_memory: CounterMemory::new(),
            table: EventTable::new(),
            unclaimed: Cell::new(0),
            faulted: Cell::new(0),
            sampled_event: Cell::new(None),
            sampled: RefCell::default(),
            beside: Cell::new(None),
            of_threads: Cell::default(),
        }
    }

    pub(crate) fn source(&self) -> Source<'_> {
        let events = Events::new(&self.counters, &self.table as &EventTable);
        events.with(TopDown::new(&self.unit, &self.memory))
    }

    pub(crate) fn take<'a, 'm>(&'a self, mock: &'m Mock<'m>) -> Session<'a, 'm> {
        let memory = &self.counter_memory;
        let mut session =
            CounterSession::take(self.source(), &self.counters, CounterSet::ALL, mock, memory)
                .unwrap();
        if self.freezing {
            session.freeze_on_interrupt().unwrap();
        }
        session
    }

    /// Opens the events of the slots as a group.
    pub(crate) fn open(
        &self,
        session: &mut Session<'_, '_>,
        change: impl Fn(Event) -> Event,
    ) -> Result<EventId, EventsError> {
        let events = self.unit.events(session.counters().usable);
        session.open(&self.counters, &events.each(change))
    }

    /// Opens and starts the slots of all privilege levels.
    pub(crate) fn start(&self, session: &mut Session<'_, '_>) -> EventId {
        let group = self.open(session, |event| event).unwrap();
        session.enable(group, 0).unwrap();
        group
    }

    /// Reads a group of the slots.
    pub(crate) fn read(
        &self,
        session: &Session<'_, '_>,
        group: EventId,
    ) -> Result<TopDownCounts, CounterError> {
        let mut counts = [EventCount::default(); 9];
        let read = session.read_group(group, 0, &mut counts).map_err(|error| error.reason)?;
        Ok(self.unit.counts(&counts[..read]))
    }

    /// Returns the slots as events of a thread that is about to run.
    pub(crate) fn thread(
        &self,
        session: &Session<'_, '_>,
        change: impl Fn(Event) -> Event,
    ) -> Vec<ThreadEvent> {
        let events = self.unit.events(session.counters().usable).each(change);
        let saved = events.iter().map(|event| SavedEvent::new(&self.counters, event).unwrap());
        let mut saved: Vec<_> = saved.map(|event| event.to_be_enabled(true)).collect();
        SavedEvent::make_group(&mut saved).unwrap();
        saved.into_iter().map(ThreadEvent::SwitchedOut).collect()
    }

    /// Returns the counts of a thread that does not run.
    pub(crate) fn counts_of(&self, thread: &[ThreadEvent]) -> TopDownCounts {
        let counts: Vec<_> = thread
            .iter()
            .map(|event| match event {
                ThreadEvent::SwitchedOut(event) => event.count(),
                other => panic!("{other:?}"),
            })
            .collect();
        self.unit.counts(&counts)
    }

    /// Services an interrupt, and reads the counts in it.
    pub(crate) fn handle(&self, mock: &Mock<'_>) {
        let (source, memory) = (self.source(), &self.counter_memory);
        match service(&source, mock, memory, |_| ()) {
            Ok(serviced) if serviced.claim == Claim::NotOurs => {
                self.unclaimed.set(self.unclaimed.get() + 1);
            }
            Ok(_) => {}
            Err(_) => self.faulted.set(self.faulted.get() + 1),
        }
        let Some(event) = self.sampled_event.get() else { return };
        let reads = sample_read(&source, mock, memory, event, 0).ok();
        let counts: Option<Vec<_>> =
            reads.and_then(|reads| reads.map(|read| read.count.ok()).collect());
        if let Some(counts) = counts {
            self.sampled.borrow_mut().push(self.unit.counts(&counts));
        }
    }
}

/// The naive model: the slots that passed while the slots' counter ran, and 255ths of them by part.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    pub(crate) slots: u128,
    pub(crate) parts: [u128; 8],
    pub(crate) level_2: bool,
}

impl Expected {
    pub(crate) fn of(processor: &Processor) -> Self {
        Self { level_2: processor.level_2, ..Self::default() }
    }

    pub(crate) fn add(&mut self, slots: u64, mix: TopDownMix) {
        self.slots += u128::from(slots);
        for (part, share) in self.parts.iter_mut().zip(mix.shares) {
            *part += u128::from(slots) * u128::from(share);
        }
    }

    /// Checks that the slots are exact, and each part is right to a 255th of the slots, and a slot for each reading.
    #[track_caller]
    pub(crate) fn check(&self, counts: &TopDownCounts, readings: u64, what: &str) {
        assert_eq!(u128::from(counts.slots), self.slots, "{what}: slots");
        self.check_parts(counts, readings, what);
    }

    #[track_caller]
    pub(crate) fn check_parts(&self, counts: &TopDownCounts, readings: u64, what: &str) {
        let mut sum = 0;
        for (part, exact) in parts().zip(self.parts) {
            let Some(counted) = counts.of(part) else {
                let lacks = part.parent().is_some() && (!self.level_2 || self.slots == 0);
                assert!(lacks, "{what}: {part}");
                continue;
            };
            sum += if part.parent().is_none() { u128::from(counted) } else { 0 };
            let off = (u128::from(counted) * 255).abs_diff(exact);
            let most = self.slots + 255 * u128::from(readings);
            assert!(off <= most, "{what}: {part} is {counted}, exactly {exact}/255");
        }
        // The parts of level 1 are all slots, within what each reading rounds.
        let most = 2 * self.slots / 255 + 4 * u128::from(readings);
        assert!(
            sum.abs_diff(u128::from(counts.slots)) <= most,
            "{what}: {sum} of {}",
            counts.slots
        );
    }
}

/// Lets slots pass at a privilege level.
pub(crate) fn pass_at(mock: &Mock<'_>, privilege: Privilege, slots: u64, mix: TopDownMix) {
    let mut feed = Feed::new(&events());
    feed.add(events().find(SLOTS).unwrap(), privilege, slots).unwrap();
    mock.set_mix(mix);
    mock.advance(&mut feed);
}

/// Lets slots of user mode pass.
pub(crate) fn pass(mock: &Mock<'_>, slots: u64, mix: TopDownMix) {
    pass_at(mock, Privilege::User, slots, mix);
}

pub(crate) fn branches(mock: &Mock<'_>, count: u64) {
    let mut feed = Feed::new(&events());
    feed.add(events().find(BRANCHES).unwrap(), Privilege::User, count).unwrap();
    mock.advance(&mut feed);
}

/// Returns whether the slots' counter runs.
pub(crate) fn counts_slots(mock: &Mock<'_>) -> bool {
    mock.with_pmu(|pmu| pmu.running().any(|event| event.counter == 35))
}
