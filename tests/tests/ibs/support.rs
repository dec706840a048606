//! Processors that sample, and a kernel that takes the samples.

use core::cell::{Cell, RefCell};

use pmu_amd::ibs::{Ibs, IbsKind, IbsMemory, IbsRecord, IbsSampling, IbsUnit};
use pmu_core::{
    Claim, CounterMemory, CounterSession, CounterSet, CounterSlot, CounterUnit, EventEntry,
    EventTable, Facility, MAX_COUNTERS, OpenedEvents, service_with,
};
use pmu_tests::opened::fed_events;
use pmu_virt::mock::{Deviation, Deviations, MockMsr};
use pmu_virt::{
    AmdConfiguration, Configuration, FedFetch, FedOp, IbsConfiguration, VirtualIbs, VirtualPmu,
};

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
    pub(crate) fn unit(&self, kind: IbsKind) -> IbsUnit {
        let snapshot = processor(self.family, self.model, self.ibs.capabilities);
        IbsUnit::of(&snapshot, kind).expect("a unit")
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

    /// Returns a request that the unit can do.
    pub(crate) fn request(&self, kind: IbsKind) -> IbsSampling {
        match kind {
            IbsKind::Fetch => IbsSampling::fetches(PERIOD),
            IbsKind::Op if self.unit(kind).capabilities().counts_ops() => IbsSampling::ops(PERIOD),
            IbsKind::Op => IbsSampling::cycles(PERIOD),
        }
    }
}

/// Executes, or fetches, the instruction at this address. Returns whether it was sampled.
pub(crate) fn step(mock: &Mock<'_>, kind: IbsKind, address: u64) -> bool {
    match kind {
        IbsKind::Op => mock.execute(&FedOp::new(address)),
        IbsKind::Fetch => mock.fetch(&FedFetch::new(address)),
    }
}

/// Declares the mock of a processor, a kernel that handles its interrupts, and a sampler of one of its units.
macro_rules! sampler {
    ($processor:expr, $kind:expr => $mock:ident, $kernel:ident, $sampler:ident) => {
        let $mock = $processor.mock();
        let $kernel = $crate::support::Kernel::new($processor.unit($kind), &$mock);
        let handler = |mock: &$crate::support::Mock<'_>| $kernel.handle(mock);
        $mock.on_interrupt(&handler);
        let taken = IbsSampler::take($kernel.unit, &$mock, &$mock, &$kernel.memory);
        #[allow(unused_mut, reason = "a test may only read the sampler")]
        let mut $sampler = taken.unwrap();
    };
}
pub(crate) use sampler;

/// A kernel's memory of one processor, and what its handler has seen.
pub(crate) struct Kernel {
    pub(crate) unit: IbsUnit,
    pub(crate) counters: CounterUnit,
    pub(crate) memory: IbsMemory,
    pub(crate) counter_memory: CounterMemory<[CounterSlot; MAX_COUNTERS]>,
    pub(crate) table: EventTable<[EventEntry; 4]>,
    /// Addresses that were sampled, by the processor.
    pub(crate) sampled: RefCell<Vec<u64>>,
    /// Addresses that were reported, by the driver.
    pub(crate) reported: RefCell<Vec<u64>>,
    pub(crate) overflows: Cell<u32>,
    pub(crate) claimed: Cell<u32>,
    pub(crate) unclaimed: Cell<u32>,
    /// Interrupts that no claim accounts for, not even an earlier one that stood for two.
    pub(crate) unknown: Cell<u32>,
    expects: Cell<bool>,
    pub(crate) faulted: Cell<u32>,
    next: Cell<u64>,
}

impl Kernel {
    pub(crate) fn new(unit: IbsUnit, mock: &Mock<'_>) -> Self {
        Self {
            unit,
            counters: pmu_amd::counters(&mock.snapshot()).unwrap(),
            memory: IbsMemory::new(),
            counter_memory: CounterMemory::new(),
            table: EventTable::new(),
            sampled: RefCell::default(),
            reported: RefCell::default(),
            overflows: Cell::new(0),
            claimed: Cell::new(0),
            unclaimed: Cell::new(0),
            unknown: Cell::new(0),
            expects: Cell::new(false),
            faulted: Cell::new(0),
            next: Cell::new(0x40_0000),
        }
    }

    pub(crate) fn source(&self) -> OpenedEvents<'_> {
        OpenedEvents::new(&self.counters, &self.table as &EventTable)
    }

    /// Takes the processor's counters.
    pub(crate) fn take_counters<'m>(
        &'m self,
        mock: &'m Mock<'m>,
    ) -> CounterSession<'m, OpenedEvents<'m>, &'m Mock<'m>, &'m Mock<'m>> {
        let unit = &self.counters;
        CounterSession::take(self.source(), unit, CounterSet::ALL, mock, mock, &self.counter_memory)
            .unwrap()
    }

    /// Services an interrupt.
    pub(crate) fn handle(&self, mock: &Mock<'_>) {
        self.handle_with(mock, self.ibs());
    }

    /// Services an interrupt of two units, with the counters and the claims of the first.
    pub(crate) fn handle_both(first: &Self, second: &Self, mock: &Mock<'_>) {
        first.handle_with(mock, (first.ibs(), second.ibs()));
    }

    /// The unit's side of an interrupt.
    fn ibs(&self) -> Ibs<'_, impl FnMut(&IbsRecord)> {
        Ibs::new(&self.unit, &self.memory, |record: &IbsRecord| self.push(record))
    }

    /// Notes a reported sample.
    pub(crate) fn push(&self, record: &IbsRecord) {
        let address = record.sample(&self.unit).address;
        self.reported.borrow_mut().push(address.expect("an address"));
    }

    fn handle_with(&self, mock: &Mock<'_>, facility: impl Facility) {
        let counters = &self.counter_memory;
        let serviced = service_with(&self.source(), mock, mock, counters, facility, |_, _| {
            self.overflows.set(self.overflows.get() + 1);
        });
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
            Err(_) => count(&self.faulted, 1),
        }
    }

    /// Executes instructions, each at its own address, until one is sampled, or `most` were executed.
    pub(crate) fn run(&self, mock: &Mock<'_>, most: u32) -> bool {
        (0..most).any(|_| {
            let address = self.next.get();
            self.next.set(address + 16);
            // Before the interrupt, in which the report is compared.
            self.sampled.borrow_mut().push(address);
            let sampled = step(mock, self.unit.kind(), address);
            if !sampled {
                self.sampled.borrow_mut().retain(|other| *other != address);
            }
            sampled
        })
    }

    /// Checks that each sample was reported once, in order.
    #[track_caller]
    pub(crate) fn all_reported(&self, what: &str) {
        assert_eq!(*self.reported.borrow(), *self.sampled.borrow(), "{what}");
    }
}
