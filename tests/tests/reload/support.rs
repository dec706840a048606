//! A processor whose counters can reload each other, and a naive model of a reload group.

use core::cell::{Cell, RefCell};

use pmu_core::interrupt::EventOverflow;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::{EventSelect, MAX_COUNTERS};
use pmu_core::reload::{AutoCounterReload, ReloadMemory};
use pmu_core::{Claim, CounterSession, CounterSet, CounterUnit, Event, Events, service};
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::mock::MockMsr;
use pmu_virt::reload::{ReloadConfiguration, VirtualReload};
use pmu_virt::{EventKey, FedEvents, Feed, Privilege, Read, VirtualPmu};

pub(crate) type Mock<'h> = MockMsr<'h, 128>;
pub(crate) type Source<'a> = Events<'a, CounterUnit, AutoCounterReload<'a>>;
pub(crate) type Session<'a, 'm> = CounterSession<'a, Source<'a>, &'m Mock<'m>>;

/// The events of the tests: misses, branches, and others, by number.
pub(crate) const KINDS: [u8; 6] = [0xC5, 0xC4, 0xD0, 0xD1, 0xD2, 0xD3];

pub(crate) fn events() -> FedEvents {
    FedEvents::new(&KINDS.map(|number| EventKey::general(number.into(), 0))).unwrap()
}

pub(crate) fn raw(kind: usize) -> Event {
    Event::raw(EventSelect::from_bits(KINDS[kind].into()))
}

pub(crate) fn intel() -> IntelConfiguration {
    IntelConfiguration::new(6, 4, 4)
}

pub(crate) fn mock<'h>(reload: ReloadConfiguration) -> Mock<'h> {
    let configuration = Configuration::Intel(intel());
    let pmu = VirtualPmu::new(configuration, events()).unwrap();
    let mock = Mock::strict(pmu).with_reload(VirtualReload::new(&configuration, reload).unwrap());
    let _ = mock.with_pmu(|pmu| pmu.write(0x38F, 0));
    mock
}

/// Lets events happen in user mode.
pub(crate) fn pass(mock: &Mock<'_>, counts: &[(usize, u64)]) {
    let mut feed = Feed::new(&events());
    for (kind, count) in counts {
        let key = EventKey::general(KINDS[*kind].into(), 0);
        feed.add(events().find(key).unwrap(), Privilege::User, *count).unwrap();
    }
    mock.advance(&mut feed);
}

pub(crate) struct Kernel {
    pub(crate) freezing: bool,
    pub(crate) unit: CounterUnit,
    pub(crate) reload: pmu_core::reload::CounterReload,
    pub(crate) reloads: ReloadMemory,
    pub(crate) memory: CounterMemory<[CounterSlot; MAX_COUNTERS]>,
    pub(crate) table: EventTable<[EventEntry; 12]>,
    /// Tags of the overflows that were reported.
    pub(crate) reported: RefCell<Vec<u64>>,
    pub(crate) unclaimed: Cell<u32>,
    pub(crate) faulted: Cell<u32>,
}

impl Kernel {
    pub(crate) fn new(mock: &Mock<'_>, freezing: bool) -> Self {
        let snapshot = mock.snapshot();
        Self {
            freezing,
            unit: pmu_intel::counters(&snapshot),
            reload: pmu_intel::counter_reload(&snapshot).unwrap(),
            reloads: ReloadMemory::new(),
            memory: CounterMemory::new(),
            table: EventTable::new(),
            reported: RefCell::default(),
            unclaimed: Cell::new(0),
            faulted: Cell::new(0),
        }
    }

    pub(crate) fn source(&self) -> Source<'_> {
        let opened = Events::new(&self.unit, &self.table as &EventTable);
        opened.with(AutoCounterReload::new(&self.reload, &self.reloads))
    }

    pub(crate) fn take<'a, 'm>(&'a self, mock: &'m Mock<'m>) -> Session<'a, 'm> {
        let all = CounterSet::ALL;
        let mut session =
            CounterSession::take(self.source(), &self.unit, all, mock, &self.memory).unwrap();
        if self.freezing {
            session.freeze_on_interrupt().unwrap();
        }
        session
    }

    pub(crate) fn handle(&self, mock: &Mock<'_>) {
        let report = |overflow: EventOverflow| self.reported.borrow_mut().push(overflow.tag);
        match service(&self.source(), mock, &self.memory, |sample| report(*sample)) {
            Ok(serviced) if serviced.claim == Claim::NotOurs => {
                self.unclaimed.set(self.unclaimed.get() + 1);
            }
            Ok(_) => {}
            Err(_) => self.faulted.set(self.faulted.get() + 1),
        }
    }
}

/// The reload registers, as a driver left them: of each counter, its causes and its value.
pub(crate) fn registers(mock: &Mock<'_>) -> Vec<(u8, u64, u64)> {
    use pmu_virt::GuestFacility;
    let read = |address| {
        mock.with_reloads(|reload| match reload.read(address) {
            Read::Value(value) => value,
            _ => 0,
        })
    };
    let general = (0..4u8).map(|n| (n, 0x1902 + 4 * u32::from(n)));
    let fixed = (0..4u8).map(|n| (32 + n, 0x1982 + 4 * u32::from(n)));
    let all = general
        .chain(fixed)
        .map(|(bit, address)| (bit, read(address).unwrap(), read(address + 1).unwrap()));
    all.filter(|(_, causes, _)| *causes != 0).collect()
}

/// Returns whether a counter's interrupt is enabled, and whether the counter is.
pub(crate) fn interrupts(mock: &Mock<'_>, counter: u8) -> (bool, bool) {
    mock.with_pmu(|pmu| match counter {
        0..32 => match pmu.read(0x1901 + 4 * u32::from(counter)) {
            Read::Value(select) => (select >> 20 & 1 != 0, select >> 22 & 1 != 0),
            other => panic!("{other:?}"),
        },
        _ => match pmu.read(0x38D) {
            Read::Value(control) => {
                let nibble = control >> (4 * (counter - 32));
                (nibble >> 3 & 1 != 0, nibble & 0b11 != 0)
            }
            other => panic!("{other:?}"),
        },
    })
}

/// The naive model of a group of two: a sampled event, begun anew by each `every` of another.
pub(crate) struct Naive {
    pub(crate) period: u64,
    pub(crate) every: u64,
    sampled: u64,
    other: u64,
    pub(crate) samples: usize,
}

impl Naive {
    pub(crate) fn new(period: u64, every: u64) -> Self {
        Self { period, every, sampled: 0, other: 0, samples: 0 }
    }

    /// One occurrence of the sampled event, or of the other.
    pub(crate) fn step(&mut self, is_sampled: bool) {
        if is_sampled {
            self.sampled += 1;
            if self.sampled == self.period {
                (self.sampled, self.samples) = (0, self.samples + 1);
            }
        } else {
            self.other += 1;
            if self.other == self.every {
                (self.sampled, self.other) = (0, 0);
            }
        }
    }
}
