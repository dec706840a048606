//! Sources on a processor that is interrupted: the expected reports, and the drivers that are tested.

use super::world::{Accesses, World};
use core::cell::{Cell, RefCell};
use pmu_amd::Amd64;
use pmu_core::frame::PlainFrame;
use pmu_core::memory::{CounterMemory, CounterSlot};
use pmu_core::profile::{KProfileSource, Overflow};
use pmu_core::thread::{SavedCounter, SavedCounters};
use pmu_core::x86::Snapshot;
use pmu_core::{Claim, EventSource};
use pmu_intel::Emon;
use pmu_tests::deviations::snapshot;
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration};
use pmu_virt::mock::{Deviation, Deviations, MockMsr};
use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};
use std::collections::VecDeque;

pub(crate) type Mock<'h> = MockMsr<'h, 0>;
pub(crate) type Memory = CounterMemory<[CounterSlot; 8]>;
pub(crate) type Area = SavedCounters<[SavedCounter; 8]>;
pub(crate) const INTERVAL: u64 = 0x1000;
/// Two sources that run, and one that is started.
pub(crate) const SOURCES: usize = 3;
pub(crate) const STARTED: usize = 2;
/// Events by which every running counter overflows, also that of a source just started.
pub(crate) const ALL: [(usize, u64); SOURCES] = [(0, 1), (1, 1), (STARTED, INTERVAL)];
/// Number of events that may pass uncounted while an overflow is serviced.
pub(crate) const SLACK: u64 = 64;
/// Number of further intervals that pass until a late interrupt is taken.
pub(crate) const LATE: u64 = 3;

/// Events within an operation. Accesses are counted from 1, those of the interrupts included; unmasking the LVT
/// entry is one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plan {
    /// Every running counter overflows just before access `at`; the interrupt is delivered `late` accesses later.
    All { at: u32, late: u32 },
    /// One source's counter overflows, and another's later.
    OneByOne { first: u32, second: u32 },
    /// An NMI of another source comes; then one source's counter overflows.
    Spurious { at: u32, second: u32 },
}

impl Plan {
    /// Returns the access before which the last event happens.
    pub(crate) fn last(self) -> u32 {
        match self {
            Self::All { at, .. } => at,
            Self::OneByOne { second, .. } | Self::Spurious { second, .. } => second,
        }
    }
}

/// Expected reports of one source, from the events that it was fed.
#[derive(Default)]
pub(crate) struct Book {
    /// Events counted since the last overflow.
    pub(crate) since: Cell<u64>,
    /// Events of the overflows that the driver has not reported yet.
    pub(crate) untold: RefCell<VecDeque<u64>>,
    pub(crate) told: Cell<u64>,
    /// Overflowed again while it was being reported.
    pub(crate) again: Cell<bool>,
}

/// Events on a processor, and its driver's reports of them.
pub(crate) struct Sources {
    pub(crate) context: String,
    pub(crate) deviations: Deviations,
    pub(crate) events: FedEvents,
    pub(crate) keys: [EventKey; SOURCES],
    pub(crate) sources: [KProfileSource; SOURCES],
    pub(crate) books: [Book; SOURCES],
    /// An overflow is a source's, which it is not while counters that firmware left are taken.
    pub(crate) booking: Cell<bool>,
    pub(crate) plan: Cell<Option<Plan>>,
    pub(crate) accesses: Accesses,
    /// The next NMI that is handled is another source's, whose handler claims it.
    pub(crate) foreign: Cell<bool>,
    /// One NMI that no handler claims is a counter's.
    pub(crate) swallow: Cell<bool>,
    /// NMIs that no handler claimed, and whether they are expected.
    pub(crate) unknown: Cell<u32>,
    pub(crate) expects_unknown: Cell<bool>,
}

impl Sources {
    pub(crate) fn new<I>(bench: &Bench<'_, I>, context: &str) -> Self {
        Self {
            context: context.into(),
            deviations: bench.deviations,
            events: FedEvents::new(&bench.keys).unwrap(),
            keys: bench.keys,
            sources: bench.sources,
            books: Default::default(),
            booking: Cell::new(true),
            plan: Cell::new(None),
            accesses: Accesses::default(),
            foreign: Cell::new(false),
            swallow: Cell::new(false),
            unknown: Cell::new(0),
            expects_unknown: Cell::new(false),
        }
    }

    pub(crate) fn deviates(&self, deviation: Deviation) -> bool {
        self.deviations.contains(deviation)
    }

    pub(crate) fn mock<'h>(&self, configuration: Configuration) -> Mock<'h> {
        let pmu = VirtualPmu::new(configuration, self.events).unwrap();
        MockMsr::strict(pmu).deviating(self.deviations)
    }

    /// Lets the rest of the plan happen, after the operation. Returns whether there was any.
    pub(crate) fn end(&self, mock: &Mock<'_>) -> bool {
        let Some(plan) = self.plan.take() else { return false };
        let left = plan.last() > self.accesses.made();
        self.accesses.deliver_late(mock);
        if left {
            match plan {
                Plan::All { .. } => self.overflow_all(mock, ALL, 0),
                Plan::OneByOne { first, .. } => {
                    if first > self.accesses.made() {
                        self.overflow(mock, 0);
                    }
                    self.overflow(mock, 1);
                }
                Plan::Spurious { at, .. } => {
                    if at > self.accesses.made() {
                        self.interrupt(mock);
                    }
                    self.overflow(mock, 1);
                }
            }
        }
        left
    }

    /// Lets a running source overflow that is an event short of it.
    pub(crate) fn overflow(&self, mock: &Mock<'_>, source: usize) {
        self.happen(mock, source, 1);
    }

    /// An NMI of another source, which its handler claims.
    pub(crate) fn interrupt(&self, mock: &Mock<'_>) {
        self.foreign.set(true);
        mock.interrupt_from_elsewhere();
    }

    /// The handlers' claims of an NMI are added up.
    pub(crate) fn claimed(&self, claim: Claim, foreign: bool) {
        let claims = claim.interrupts() + u32::from(foreign);
        if claims > 1 {
            self.swallow.set(true);
        }
        if claims == 0 && !self.swallow.take() {
            assert!(self.expects_unknown.get(), "{}: an NMI that no handler claims", self.context);
            self.unknown.set(self.unknown.get() + 1);
        }
    }

    /// The driver tells of an overflow.
    #[track_caller]
    pub(crate) fn told(&self, overflow: Overflow) {
        let book = &self.books[self.source_of(overflow)];
        let events = book.untold.borrow_mut().pop_front();
        let events = events.unwrap_or_else(|| panic!("{}: invented: {overflow:?}", self.context));
        // Events are lost until the counter is loaded again.
        let late = self.deviates(Deviation::ServicesLate)
            || self.deviates(Deviation::OverflowsWhileServiced);
        let (least, most) = (overflow.events, if late { u64::MAX } else { SLACK });
        let fits = events + SLACK >= least && events.saturating_sub(least) <= most;
        assert!(fits, "{}: it took {events} events: {overflow:?}", self.context);
        book.told.set(book.told.get() + 1);
    }

    /// The driver's callback takes its time.
    pub(crate) fn callback(&self, mock: &Mock<'_>, overflow: Overflow) {
        let source = self.source_of(overflow);
        if self.deviates(Deviation::OverflowsWhileServiced)
            && !self.books[source].again.replace(true)
        {
            self.happen(mock, source, 2 * INTERVAL);
        }
    }

    pub(crate) fn source_of(&self, overflow: Overflow) -> usize {
        let source = self.sources.iter().position(|source| *source == overflow.source);
        source.expect("a source that was started")
    }

    /// Returns for each source whether the hardware counts it.
    pub(crate) fn counted(&self, mock: &Mock<'_>) -> [bool; SOURCES] {
        mock.with_pmu(|pmu| self.keys.map(|key| pmu.running().any(|event| event.key == key)))
    }
}

impl World<0> for Sources {
    type Plan = Plan;

    fn accesses(&self) -> &Accesses {
        &self.accesses
    }

    fn plan(&self) -> Option<Plan> {
        self.plan.get()
    }

    fn disturb(&self, mock: &Mock<'_>, plan: Plan, access: u32) {
        match plan {
            Plan::All { at, late } if at == access => self.overflow_all(mock, ALL, late),
            Plan::OneByOne { first, second } => {
                if first == access {
                    self.overflow(mock, 0);
                }
                if second == access {
                    self.overflow(mock, 1);
                }
            }
            Plan::Spurious { at, second } => {
                if second == access {
                    self.overflow(mock, 1);
                }
                if at == access {
                    self.interrupt(mock);
                }
            }
            Plan::All { .. } => {}
        }
    }

    /// Records every overflow. Where interrupts come late, some more events pass.
    fn pass(&self, mock: &Mock<'_>, source: usize, count: u64) -> (u64, bool) {
        let event = self.events.find(self.keys[source]).unwrap();
        let mut feed = Feed::new(&self.events);
        feed.add(event, Privilege::Kernel, count).unwrap();
        let counted = self.counted(mock)[source] && self.booking.get();
        let advanced = mock.pass(&mut feed);
        let left = feed.count(event, Privilege::Kernel);
        let book = &self.books[source];
        if counted {
            book.since.set(book.since.get() + count - left);
            if advanced.overflowed != 0 {
                assert_eq!(advanced.overflowed.count_ones(), 1, "one counter per source");
                book.untold.borrow_mut().push_back(book.since.take());
            }
        }
        if advanced.pmi && self.deviates(Deviation::ServicesLate) {
            let mut late = Feed::new(&self.events);
            late.add(event, Privilege::Kernel, LATE * INTERVAL).unwrap();
            let counted = self.counted(mock)[source] && self.booking.get();
            assert_eq!(mock.pass(&mut late).overflowed, 0, "a counter wraps once");
            book.since.set(book.since.get() + if counted { LATE * INTERVAL } else { 0 });
        }
        (left, advanced.pmi)
    }
}

/// The interrupted context of every sample.
pub(crate) const FRAME: PlainFrame = PlainFrame::new(0x1004, 0, 0, 0);

/// A driver on one configuration.
pub(crate) struct Bench<'i, I> {
    pub(crate) interface: &'i I,
    pub(crate) configuration: Configuration,
    pub(crate) deviations: Deviations,
    pub(crate) freezing: bool,
    pub(crate) sources: [KProfileSource; SOURCES],
    pub(crate) keys: [EventKey; SOURCES],
}

impl<'i, I: EventSource<Processor = Snapshot>> Bench<'i, I> {
    pub(crate) fn new(
        interface: &'i I,
        configuration: Configuration,
        deviations: Deviations,
        freezing: bool,
    ) -> Self {
        let mut rows = vec![];
        for row in interface.sources() {
            let source = row.source();
            let fresh = row.canonical().is_none() && interface.query(source).is_supported();
            let key = EventKey::of_select(configuration.vendor(), row.select().select_bits());
            if source != KProfileSource::TIME && fresh && rows.iter().all(|(_, k)| *k != key) {
                rows.push((source, key));
            }
        }
        let row = |n: usize| rows[n];
        Self {
            interface,
            configuration,
            deviations,
            freezing,
            sources: [row(0).0, row(1).0, row(2).0],
            keys: [row(0).1, row(1).1, row(2).1],
        }
    }

    /// Returns the tested processor, which may have less than the boot processor.
    pub(crate) fn processor(&self) -> (Configuration, Snapshot) {
        let own = self.deviations.configuration(self.configuration);
        (own, snapshot(own, self.deviations))
    }

    /// Returns whether the counters really freeze.
    pub(crate) fn freezes(&self) -> bool {
        let left = self.deviations.contains(Deviation::LeftFrozen);
        let ignored = self.deviations.contains(Deviation::IgnoresDebugControl);
        self.freezing && (left || !ignored)
    }
}

/// A check that runs on any driver.
pub(crate) trait Test {
    fn run<I: EventSource<Processor = Snapshot>>(&self, bench: &Bench<'_, I>);
}

/// Runs a test on each kind of overflow reporting.
pub(crate) fn everywhere(deviations: Deviations, test: &impl Test) {
    for (version, freezing) in
        [(1, false), (2, false), (3, true), (4, false), (4, true), (5, false), (5, true)]
    {
        let configuration = Configuration::Intel(IntelConfiguration::new(version, 6, 0));
        let emon = Emon::detect(&snapshot(configuration, deviations)).unwrap();
        test.run(&Bench::new(&emon, configuration, deviations, freezing));
    }
    for amd in [
        AmdConfiguration::LEGACY,
        AmdConfiguration::CORE_EXTENSION,
        AmdConfiguration::perf_mon_v2(8),
    ] {
        let configuration = Configuration::Amd(amd);
        let amd64 = Amd64::detect(&snapshot(configuration, deviations)).unwrap();
        test.run(&Bench::new(&amd64, configuration, deviations, false));
    }
}
