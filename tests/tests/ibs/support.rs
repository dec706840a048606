//! Processors that sample, and a kernel that takes the samples.

use core::cell::{Cell, RefCell};

use pmu_amd::ibs::{Ibs, IbsKind, IbsMemory, IbsRecord, IbsSampling, IbsUnit, IbsUnits};
use pmu_core::access::AccessOperation;
use pmu_core::error::CounterError;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::{
    Claim, CounterSession, CounterSet, CounterUnit, Event, EventId, EventStatus, Events, Sample,
    service,
};
use pmu_tests::Reason;
use pmu_tests::opened::fed_events;
use pmu_virt::configuration::{AmdConfiguration, Configuration};
use pmu_virt::ibs::{FedFetch, FedOp, IbsConfiguration, VirtualIbs};
use pmu_virt::mock::{Deviation, Deviations, MockMsr, Record};
use pmu_virt::{GuestFacility, Read, VirtualPmu, Writer};

use pmu_tests::ibs_processor as processor;

pub(crate) type Mock<'h> = MockMsr<'h, 64>;

/// The period of the tests.
pub(crate) const PERIOD: u32 = 160;

/// A processor that samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Processor {
    pub(crate) name: &'static str,
    pub(crate) family: u32,
    pub(crate) model: u32,
    pub(crate) ibs: IbsConfiguration,
    pub(crate) counters: AmdConfiguration,
    pub(crate) deviations: Deviations,
}

/// Returns a processor of each kind.
pub(crate) fn processors() -> Vec<Processor> {
    let kept = |ibs| IbsConfiguration { fetch_count_kept: true, ..ibs };
    [
        ("family 10h", 0x10, 0x02, IbsConfiguration::FAMILY_10H),
        ("Zen 2", 0x17, 0x31, kept(IbsConfiguration::ZEN_3)),
        ("Zen 3, early", 0x19, 0x01, IbsConfiguration::ZEN_3),
        ("Zen 3", 0x19, 0x21, IbsConfiguration::ZEN_3),
        ("Zen 4", 0x19, 0x61, IbsConfiguration::ZEN_4),
        ("Zen 5", 0x1A, 0x24, IbsConfiguration::ZEN_5),
        ("Zen 6", 0x1A, 0x50, IbsConfiguration::ZEN_6),
    ]
    .map(|(name, family, model, ibs)| {
        let ibs = IbsConfiguration { lvt_entry: Some(1), ..ibs };
        let counters = AmdConfiguration::perf_mon_v2(6);
        Processor { name, family, model, ibs, counters, deviations: Deviations::NONE }
    })
    .to_vec()
}

/// Returns the processor of this name.
pub(crate) fn named(name: &str) -> Processor {
    processors().into_iter().find(|processor| processor.name == name).expect("a processor")
}

/// Both units of each processor.
pub(crate) fn units() -> impl Iterator<Item = (Processor, IbsKind)> {
    let both = |processor| [(processor, IbsKind::Op), (processor, IbsKind::Fetch)];
    processors().into_iter().flat_map(both)
}

impl Processor {
    pub(crate) fn units(&self) -> IbsUnits {
        IbsUnits::of(&processor(self.family, self.model, self.ibs.capabilities)).expect("units")
    }

    pub(crate) fn unit(&self, kind: IbsKind) -> IbsUnit {
        *self.units().get(kind).expect("a unit")
    }

    pub(crate) fn mock<'h>(&self) -> Mock<'h> {
        let configuration = self.deviations.configuration(Configuration::Amd(self.counters));
        let pmu = VirtualPmu::new(configuration, fed_events()).unwrap();
        let mock = Mock::strict(pmu).with_sampling(VirtualIbs::new(self.ibs));
        let mock = mock.deviating(self.deviations);
        if !self.deviations.contains(Deviation::LeftRunning) {
            // No other owner's counters run.
            let _ = mock.with_pmu(|pmu| pmu.write(0xC000_0301, 0));
        }
        mock
    }

    /// Returns whether the unit's count can be written: what is left of a period goes on exactly.
    pub(crate) fn is_exact(&self, kind: IbsKind) -> bool {
        kind == IbsKind::Op && self.unit(kind).capabilities().count_writable()
    }

    /// Returns a request that the unit can do.
    pub(crate) fn request(&self, kind: IbsKind) -> IbsSampling {
        match kind {
            IbsKind::Fetch => IbsSampling::fetches(),
            IbsKind::Op if self.unit(kind).capabilities().counts_ops() => IbsSampling::ops(),
            IbsKind::Op => IbsSampling::cycles(),
        }
    }

    /// Returns the event of that request, with the period of the tests.
    pub(crate) fn event(&self, kind: IbsKind) -> Event {
        every(self.request(kind))
    }
}

/// Returns the event of a request, with the period of the tests.
pub(crate) fn every(request: IbsSampling) -> Event {
    request.event().every(PERIOD.into()).with_total()
}

/// Executes, or fetches, the instruction at this address. Returns whether it was sampled.
pub(crate) fn step(mock: &Mock<'_>, kind: IbsKind, address: u64) -> bool {
    match kind {
        IbsKind::Op => mock.execute(&FedOp::new(address)),
        IbsKind::Fetch => mock.fetch(&FedFetch::new(address)),
    }
}

/// The control register of a unit, and its bits that enable it and set its valid bit.
pub(crate) fn control(kind: IbsKind) -> (u32, u64, u64) {
    match kind {
        IbsKind::Fetch => (0xC001_1030, 1 << 48, 1 << 49),
        IbsKind::Op => (0xC001_1033, 1 << 17, 1 << 18),
    }
}

/// The second control register of a unit, which only some processors have.
pub(crate) fn second_control(kind: IbsKind) -> u32 {
    match kind {
        IbsKind::Fetch => 0xC001_103F,
        IbsKind::Op => 0xC001_103E,
    }
}

/// Reads a register of the units, without an access of the driver.
pub(crate) fn read(mock: &Mock<'_>, register: u32) -> u64 {
    match mock.with_sampling_unit(|unit| unit.read(register)) {
        Some(Read::Value(value)) => value,
        _ => 0,
    }
}

/// Returns whether the unit has a sample.
pub(crate) fn is_valid(mock: &Mock<'_>, kind: IbsKind) -> bool {
    let (register, _, valid) = control(kind);
    read(mock, register) & valid != 0
}

/// Returns whether a unit is enabled.
pub(crate) fn is_enabled(mock: &Mock<'_>) -> bool {
    mock.with_sampling_unit(|unit| unit.is_enabled()) == Some(true)
}

/// Lets another owner sample by a unit, which is free.
pub(crate) fn sample_as_another(mock: &Mock<'_>, kind: IbsKind) {
    let (register, enable, _) = control(kind);
    let _ = mock.with_sampling_unit(|unit| {
        let _ = unit.write(Writer::Guest, register, enable | 9);
        let _ = unit.write(Writer::Guest, second_control(kind), 0);
    });
}

/// Returns whether an event is on a counter.
pub(crate) fn is_on(session: &Session<'_>, event: EventId) -> bool {
    matches!(session.event_status(event), Ok(EventStatus::Active(_)))
}

/// Declares the mock of a processor, a kernel that handles its interrupts, and a session with its counters and units.
macro_rules! sampler {
    ($processor:expr, $kind:expr => $mock:ident, $kernel:ident, $sampler:ident) => {
        $crate::support::sampler!(
            $processor, $kind => $mock, $kernel, $sampler, pmu_core::CounterSet::ALL
        );
    };
    ($processor:expr, $kind:expr => $mock:ident, $kernel:ident, $sampler:ident, $only:expr) => {
        let $mock = $processor.mock();
        let $kernel = $crate::support::Kernel::new($processor, $kind, &$mock);
        let handler = |mock: &$crate::support::Mock<'_>| $kernel.handle(mock);
        $mock.on_interrupt(&handler);
        #[allow(unused_mut, reason = "a test may only read the session")]
        let mut $sampler = $kernel.try_take(&$mock, $only).unwrap();
    };
}
pub(crate) use sampler;

/// The source of a session's events.
pub(crate) type Source<'m> = Events<'m, CounterUnit, Ibs<'m>>;
/// A session on a mock.
pub(crate) type Session<'m> = CounterSession<'m, Source<'m>, &'m Mock<'m>>;

/// A kernel's memory of one processor, and what its handler has seen.
pub(crate) struct Kernel {
    pub(crate) units: IbsUnits,
    /// The unit that [`run`](Self::run) feeds.
    pub(crate) kind: IbsKind,
    pub(crate) counters: CounterUnit,
    pub(crate) memory: IbsMemory,
    pub(crate) counter_memory: CounterMemory<[CounterSlot; MAX_COUNTERS]>,
    pub(crate) table: EventTable<[EventEntry; 12]>,
    /// Addresses that were sampled, by the processor: fetches and ops.
    pub(crate) sampled: [RefCell<Vec<u64>>; 2],
    /// Addresses that were reported, by the driver: of fetches and of ops.
    pub(crate) reported: [RefCell<Vec<u64>>; 2],
    pub(crate) overflows: Cell<u32>,
    pub(crate) claimed: Cell<u32>,
    pub(crate) unclaimed: Cell<u32>,
    /// Interrupts that no claim accounts for, not even an earlier one that stood for two.
    pub(crate) unknown: Cell<u32>,
    expects: Cell<bool>,
    pub(crate) faulted: Cell<u32>,
    /// The period that each sample ends; 0: any.
    pub(crate) period: Cell<u64>,
    /// Every sample and overflow that was reported.
    pub(crate) seen: RefCell<Vec<Seen>>,
    /// Called with each sample, after it was noted.
    pub(crate) react: RefCell<Option<Reaction>>,
    next: Cell<u64>,
}

type Reaction = Box<dyn Fn(&Kernel, &Seen)>;

/// A sample, or an overflow, as it was reported.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) event: EventId,
    pub(crate) tag: u64,
    pub(crate) period: u64,
    /// Address of the sampled fetch or op; `None`: an overflow.
    pub(crate) address: Option<u64>,
}

impl Kernel {
    pub(crate) fn new(processor: Processor, kind: IbsKind, mock: &Mock<'_>) -> Self {
        Self {
            units: processor.units(),
            kind,
            counters: pmu_amd::counters(&mock.snapshot()),
            memory: IbsMemory::new(),
            counter_memory: CounterMemory::new(),
            table: EventTable::new(),
            sampled: Default::default(),
            reported: Default::default(),
            overflows: Cell::new(0),
            claimed: Cell::new(0),
            unclaimed: Cell::new(0),
            unknown: Cell::new(0),
            expects: Cell::new(false),
            faulted: Cell::new(0),
            period: Cell::new(PERIOD.into()),
            seen: RefCell::default(),
            react: RefCell::default(),
            next: Cell::new(0x40_0000),
        }
    }

    pub(crate) fn source(&self) -> Source<'_> {
        let ibs = Ibs::new(&self.units, &self.memory);
        Events::new(&self.counters, &self.table as &EventTable).with(ibs)
    }

    /// Takes those of the processor's counters and units.
    pub(crate) fn try_take<'m>(
        &'m self,
        mock: &'m Mock<'m>,
        only: CounterSet,
    ) -> Result<Session<'m>, CounterError> {
        let (unit, memory) = (&self.counters, &self.counter_memory);
        let session = CounterSession::take(self.source(), unit, only, mock, memory)?;
        self.table.set_min_period(1);
        Ok(session)
    }

    /// Takes the processor's counters and units.
    pub(crate) fn take<'m>(&'m self, mock: &'m Mock<'m>) -> Session<'m> {
        self.try_take(mock, CounterSet::ALL).unwrap()
    }

    /// Opens and starts an event.
    pub(crate) fn start(
        &self,
        session: &mut Session<'_>,
        event: &Event,
    ) -> Result<EventId, CounterError> {
        let id = session.open(&self.counters, &[*event])?;
        let started = session.enable(id, 0).reason();
        started.map(|()| id).inspect_err(|_| {
            let _ = session.close(id, 0);
        })
    }

    /// Services an interrupt.
    pub(crate) fn handle(&self, mock: &Mock<'_>) {
        let serviced =
            service(&self.source(), mock, &self.counter_memory, |sample| self.note(&sample));
        let count = |cell: &Cell<u32>, more| cell.set(cell.get() + more);
        match serviced.map(|serviced| serviced.claim) {
            Ok(Claim::NotOurs) => {
                count(&self.unclaimed, 1);
                count(&self.unknown, u32::from(!self.expects.take()));
            }
            Ok(claim) => {
                count(&self.claimed, claim.interrupts());
                self.expects.set(self.expects.get() | (claim == Claim::OursAndMore));
            }
            Err(_) => {
                // It is to be treated as one that stands for two.
                count(&self.faulted, 1);
                self.expects.set(true);
            }
        }
    }

    /// Notes a reported sample, or an overflow.
    pub(crate) fn note(&self, sample: &Sample<'_, Ibs<'_>>) {
        let found = sample.instruction();
        let address = found.map(|found| found.address.expect("an address"));
        let (event, tag, period) = (sample.event, sample.tag, sample.period);
        let seen = Seen { event, tag, period, address };
        self.seen.borrow_mut().push(seen);
        if let Some(react) = &*self.react.borrow() {
            react(self, &seen);
        }
        let Some(address) = address else {
            return self.overflows.set(self.overflows.get() + 1);
        };
        if self.period.get() != 0 {
            assert_eq!(period, self.period.get());
        }
        let ops = matches!(sample.facility().and_then(|ibs| ibs.record()), Some(IbsRecord::Op(_)));
        self.reported[usize::from(ops)].borrow_mut().push(address);
    }

    /// Returns the addresses that were reported of the events of this tag.
    pub(crate) fn of_tag(&self, tag: u64) -> Vec<u64> {
        let seen = self.seen.borrow();
        seen.iter().filter(|seen| seen.tag == tag).filter_map(|seen| seen.address).collect()
    }

    /// Executes this number of instructions, of which each is at its own address.
    pub(crate) fn pass(&self, mock: &Mock<'_>, kind: IbsKind, number: u32) {
        let end = self.next.get() + 16 * u64::from(number);
        while self.next.get() < end {
            let rest = (end - self.next.get()) / 16;
            self.run_of(mock, kind, rest as u32);
        }
    }

    /// Executes instructions until a sample is reported, most of them at once. Returns their number; `None`: `most`
    /// were executed.
    pub(crate) fn distance(&self, mock: &Mock<'_>, kind: IbsKind, most: u64) -> Option<u64> {
        let (before, mut passed) = (self.seen.borrow().len(), 0);
        while passed < most {
            let next = mock.with_sampling_unit(|unit| unit.next_sample()).unwrap_or_default();
            let next = match kind {
                IbsKind::Fetch => next.fetches,
                IbsKind::Op => next.ops.or(next.cycles),
            };
            let skipped = next.unwrap_or(most).min(most - passed) - 1;
            mock.with_sampling_unit(|unit| unit.pass(skipped, skipped, skipped));
            passed += skipped + 1;

            self.run_of(mock, kind, 1);
            if self.seen.borrow().len() != before {
                return Some(passed);
            }
        }
        None
    }

    /// Executes instructions, each at its own address, until one is sampled, or `most` were executed.
    pub(crate) fn run(&self, mock: &Mock<'_>, most: u32) -> bool {
        self.run_of(mock, self.kind, most)
    }

    /// The same for one of the units.
    pub(crate) fn run_of(&self, mock: &Mock<'_>, kind: IbsKind, most: u32) -> bool {
        let sampled = &self.sampled[kind as usize];
        (0..most).any(|_| {
            let address = self.next.get();
            self.next.set(address + 16);
            // Before the interrupt, in which the report is compared.
            sampled.borrow_mut().push(address);
            let is_sampled = step(mock, kind, address);
            if !is_sampled {
                sampled.borrow_mut().retain(|other| *other != address);
            }
            is_sampled
        })
    }

    /// Returns the addresses that were reported of the unit of the test.
    pub(crate) fn reported(&self) -> Vec<u64> {
        self.reported[self.kind as usize].borrow().clone()
    }

    /// Returns the addresses that the unit of the test sampled.
    pub(crate) fn sampled(&self) -> Vec<u64> {
        self.sampled[self.kind as usize].borrow().clone()
    }

    /// Takes back the newest sample, which came just before the access `last`, if that access stopped the unit by the
    /// register that also has the valid bit: nothing tells such a sample if its interrupt is late, and its event's next
    /// occurrence is sampled in its place. In the old model the late interrupt reported it.
    pub(crate) fn forget_without_trace(&self, kind: IbsKind, last: Option<Record>) {
        let has_second = self.units.get(kind).is_some_and(|unit| unit.capabilities().control2());
        let is_stop = |last: Record| {
            (last.operation, last.register) == (AccessOperation::Write, control(kind).0)
        };
        if !has_second && last.is_some_and(is_stop) {
            self.sampled[kind as usize].borrow_mut().pop();
        }
    }

    /// Checks that each sample was reported once, in order.
    #[track_caller]
    pub(crate) fn all_reported(&self, what: &str) {
        assert_eq!(self.reported, self.sampled, "{what}");
    }
}
