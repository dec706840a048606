//! Processors on which events are opened, and the events that happen on them.
#![allow(missing_docs, reason = "parts of tests")]

pub mod operations;

use core::fmt;

use crate::deviations::snapshot;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::{EventSelect, MAX_COUNTERS};
use pmu_core::thread::ThreadEvent;
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSession, CounterSet, CounterUnit, Event, EventCount, EventId, Events};
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration, IntelFeature};
use pmu_virt::mock::{Deviations, MockMsr};
use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};

pub type Mock<'h> = MockMsr<'h, 64>;
pub type Memory = CounterMemory<[CounterSlot; MAX_COUNTERS]>;
pub type Table = EventTable<[EventEntry; 12]>;
pub type Opened<'a, 'm> = CounterSession<'a, Events<'a>, &'m Mock<'m>>;

/// Events that general counters count, by number and unit mask; of the first two there are fixed counters.
pub const KINDS: [(u8, u8); 8] =
    [(0xC0, 0), (0x3C, 0), (0xD0, 1), (0xD1, 1), (0xD2, 1), (0xD3, 1), (0xD4, 1), (0xD5, 1)];

/// An event of [`KINDS`].
pub fn raw(kind: usize) -> Event {
    let (event, unit_mask) = KINDS[kind];
    Event::raw(EventSelect::from_bits(u64::from(event) | u64::from(unit_mask) << 8))
}

/// A processor with counters.
#[derive(Clone, Copy)]
pub struct Processor {
    pub configuration: Configuration,
    pub deviations: Deviations,
    pub freezing: bool,
    pub unit: CounterUnit,
    pub snapshot: Snapshot,
}

impl fmt::Debug for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let freezing = if self.freezing { ", freezing" } else { "" };
        write!(f, "{:?}{freezing}, {}", self.configuration, self.deviations)
    }
}

impl Processor {
    pub fn new(configuration: Configuration, freezing: bool, deviations: Deviations) -> Self {
        let snapshot = snapshot(configuration, deviations);
        let unit = match configuration {
            Configuration::Intel(_) => pmu_intel::counters(&snapshot),
            _ => pmu_amd::counters(&snapshot),
        };
        Self { configuration, deviations, freezing, unit, snapshot }
    }

    pub fn intel(configuration: IntelConfiguration) -> Self {
        Self::new(Configuration::Intel(configuration), false, Deviations::NONE)
    }

    pub fn mock<'h>(&self) -> Mock<'h> {
        let pmu = VirtualPmu::new(self.configuration, fed_events()).unwrap();
        let mock = Mock::strict(pmu).deviating(self.deviations);
        // No other owner's counters run.
        for control in [0x38F, 0xC000_0301] {
            let _ = mock.with_pmu(|pmu| pmu.write(control, 0));
        }
        mock
    }

    /// Takes all counters.
    pub fn take<'a, 'm>(
        &'a self,
        mock: &'m Mock<'m>,
        memory: &'a CounterMemory,
        table: &'a EventTable,
    ) -> Opened<'a, 'm> {
        self.take_only(CounterSet::ALL, mock, memory, table)
    }

    pub fn take_only<'a, 'm>(
        &'a self,
        only: CounterSet,
        mock: &'m Mock<'m>,
        memory: &'a CounterMemory,
        table: &'a EventTable,
    ) -> Opened<'a, 'm> {
        let source = Events::new(&self.unit, table);
        let mut counters = CounterSession::take(source, &self.unit, only, mock, memory).unwrap();
        if self.freezing {
            counters.freeze_on_interrupt().unwrap();
        }
        counters
    }

    /// Returns whether the status shows frozen counters, and its acknowledgement releases them.
    pub fn freezes_by_status(&self) -> bool {
        self.unit.global().is_some_and(|global| global.frozen != 0)
    }

    pub fn fixed(&self) -> bool {
        !(self.unit.counters() & CounterSet::FIXED).is_empty()
    }
}

/// The events of [`KINDS`].
pub fn fed_events() -> FedEvents {
    FedEvents::new(&KINDS.map(|(event, unit_mask)| EventKey::general(event.into(), unit_mask)))
        .unwrap()
}

/// Returns a feed of `count` of an event in user mode.
pub fn happened(kind: usize, count: u64) -> Feed {
    happened_at(kind, Privilege::User, count)
}

pub fn happened_at(kind: usize, privilege: Privilege, count: u64) -> Feed {
    let events = fed_events();
    let (event, unit_mask) = KINDS[kind];
    let key = EventKey::general(event.into(), unit_mask);
    let mut feed = Feed::new(&events);
    feed.add(events.find(key).unwrap(), privilege, count).unwrap();
    feed
}

pub fn happen(mock: &Mock<'_>, kind: usize, count: u64) {
    mock.advance(&mut happened(kind, count));
}

/// Returns the running counters.
pub fn running(mock: &Mock<'_>) -> CounterSet {
    let bits = mock.with_pmu(|pmu| pmu.running().fold(0, |set, event| set | 1u64 << event.counter));
    CounterSet::from_bits(bits)
}

/// Returns an event's count.
#[track_caller]
/// Returns the identity that a switch gave to an event of the thread that runs.
pub fn id_of(event: &ThreadEvent) -> EventId {
    let ThreadEvent::Opened(id) = event else { panic!("{event:?}") };
    *id
}

pub fn total(counters: &Opened<'_, '_>, event: EventId) -> u64 {
    count(counters, event).value
}

#[track_caller]
pub fn count(counters: &Opened<'_, '_>, event: EventId) -> EventCount {
    counters.read(event, 0).unwrap()
}

/// Returns a processor of each kind of overflow reporting and counters.
pub fn processors(deviations: Deviations) -> Vec<Processor> {
    let plain = IntelConfiguration::new;
    let mut all = vec![];
    for (intel, freezing) in [
        (plain(1, 4, 0), false),
        (plain(2, 4, 3), false),
        (plain(2, 4, 3).with(|intel| intel.set(IntelFeature::FullWidthWrites, false)), false),
        (
            plain(3, 4, 3).with(|intel| {
                intel.general_width = 40;
                intel.fixed_width = 40;
            }),
            true,
        ),
        (plain(4, 4, 3), false),
        (plain(4, 4, 4), true),
        (
            plain(5, 8, 4).with(|intel| {
                intel.general = 0b0101_1011;
                intel.fixed = 0b1011;
                intel.set(IntelFeature::ExtendedLeaf, true);
            }),
            true,
        ),
        (plain(6, 8, 4).with(|intel| intel.set(IntelFeature::RdpmcUserDisable, true)), false),
    ] {
        all.push(Processor::new(Configuration::Intel(intel), freezing, deviations));
    }
    for amd in [
        AmdConfiguration::LEGACY,
        AmdConfiguration::CORE_EXTENSION,
        AmdConfiguration::perf_mon_v2(8),
    ] {
        all.push(Processor::new(Configuration::Amd(amd), false, deviations));
    }
    all
}

pub fn plain(version: u8) -> Processor {
    Processor::intel(IntelConfiguration::new(version, 4, 3))
}

/// Marsaglia's xorshift64, for the same cases everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % end
    }
}
