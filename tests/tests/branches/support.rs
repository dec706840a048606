//! Processors with branch records, and the branches that they take.

use core::cell::RefCell;

use pmu_core::access::RegisterAccess;
use pmu_core::branch_recording::BranchRecorder;
use pmu_core::branches::{
    Branch, BranchEnable, BranchFilter, BranchKind, BranchMemory, BranchPath, BranchSlot,
    BranchTransaction, BranchUnit, Branches,
};
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSession, CounterSet, CounterUnit, Events, service};
use pmu_tests::opened::{fed_events, raw};
use pmu_virt::branches::{BranchConfiguration, FedBranch, FedBranchKind, VirtualBranches};
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration};
use pmu_virt::mock::{Deviation, Deviations, MockMsr};
use pmu_virt::{Privilege, VirtualPmu};

pub(crate) type Mock<'h> = MockMsr<'h, 64>;
pub(crate) type Records = BranchMemory<[BranchSlot; 32]>;
pub(crate) type Recorder<'a, 'm> = BranchRecorder<'a, &'m Mock<'m>>;
pub(crate) type Counters<'a, 'm> =
    CounterSession<'a, Events<'a, CounterUnit, Branches<'a>>, &'m Mock<'m>>;

/// Findings of the interrupts of [`with_samples`].
#[derive(Default)]
pub(crate) struct Samples {
    pub(crate) taken: Vec<Sample>,
    /// Bits of the status that no service acknowledged.
    pub(crate) others: u64,
}

/// A sample: its branches, and whether the records were frozen.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) branches: Vec<Branch>,
    pub(crate) is_frozen: bool,
}

impl Samples {
    pub(crate) fn last(&self) -> &Sample {
        self.taken.last().unwrap()
    }
}

impl Sample {
    pub(crate) fn addresses(&self) -> Vec<u64> {
        self.branches.iter().map(|branch| branch.from).collect()
    }
}

/// A processor with branch records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Processor {
    pub(crate) name: &'static str,
    pub(crate) configuration: Configuration,
    pub(crate) branches: BranchConfiguration,
    pub(crate) deviations: Deviations,
}

/// Returns a processor of each kind.
pub(crate) fn processors() -> Vec<Processor> {
    let intel = |version| Configuration::Intel(IntelConfiguration::new(version, 4, 3));
    let legacy = |format| BranchConfiguration::Legacy { format };
    let amd = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    [
        ("architectural", intel(5), BranchConfiguration::ARCHITECTURAL),
        ("format 3, version 3", intel(3), legacy(3)),
        ("format 4, version 3", intel(3), legacy(4)),
        ("format 5", intel(4), legacy(5)),
        ("format 6", intel(4), legacy(6)),
        ("format 7", intel(4), legacy(7)),
        ("AMD", amd, BranchConfiguration::AMD),
        ("AMD, never freezing", amd, BranchConfiguration::amd(16, false)),
    ]
    .map(|(name, configuration, branches)| Processor {
        name,
        configuration,
        branches,
        deviations: Deviations::NONE,
    })
    .to_vec()
}

impl Processor {
    pub(crate) fn deviating(self, deviations: &[Deviation]) -> Self {
        Self { deviations: Deviations::of(deviations), ..self }
    }

    pub(crate) fn is_amd(&self) -> bool {
        matches!(self.configuration, Configuration::Amd(_))
    }

    pub(crate) fn mock<'h>(&self) -> Mock<'h> {
        let branches = VirtualBranches::new(&self.configuration, self.branches).unwrap();
        let pmu = VirtualPmu::new(self.configuration, fed_events()).unwrap();
        let mock = Mock::strict(pmu).with_branches(branches).deviating(self.deviations);
        // No other owner's counters run.
        for control in [0x38F, 0xC000_0301] {
            let _ = mock.with_pmu(|pmu| pmu.write(control, 0));
        }
        mock
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.mock().snapshot()
    }

    pub(crate) fn unit(&self) -> BranchUnit {
        let (mock, snapshot) = (self.mock(), self.snapshot());
        let unit = if self.is_amd() {
            pmu_amd::branches(&snapshot)
        } else {
            pmu_intel::branches(&snapshot, &mock)
        };
        unit.unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    pub(crate) fn counters(&self) -> CounterUnit {
        let snapshot = self.snapshot();
        if self.is_amd() { pmu_amd::counters(&snapshot) } else { pmu_intel::counters(&snapshot) }
    }

    /// Returns what the records tell of a fed branch.
    pub(crate) fn told(&self, fed: &FedBranch) -> Branch {
        let format = match self.branches {
            BranchConfiguration::Legacy { format } => Some(format),
            _ => None,
        };
        let is_architectural = matches!(self.branches, BranchConfiguration::Architectural(_));
        let tsx = self.snapshot().leaf(7, 0).ebx & (1 << 4 | 1 << 11) != 0;
        let tells_tsx = is_architectural || matches!(format, Some(4 | 5));
        let cycles = fed.cycles;
        Branch {
            from: fed.from,
            to: fed.to,
            mispredicted: Some(fed.mispredicted),
            cycles: match format {
                _ if is_architectural => cycles,
                Some(5..=7) => Some(cycles.unwrap_or(0)),
                _ => None,
            },
            kind: is_architectural.then(|| kind(fed.kind)),
            path: self.is_amd().then_some(BranchPath::Correct),
            transaction: (tsx && tells_tsx).then(BranchTransaction::default),
            events: is_architectural.then_some(fed.counts),
        }
    }
}

fn kind(fed: FedBranchKind) -> BranchKind {
    match fed {
        FedBranchKind::Conditional => BranchKind::Conditional,
        FedBranchKind::RelativeJump => BranchKind::DirectJump,
        FedBranchKind::IndirectJump => BranchKind::IndirectJump,
        FedBranchKind::RelativeCall => BranchKind::DirectCall,
        FedBranchKind::IndirectCall => BranchKind::IndirectCall,
        FedBranchKind::Return => BranchKind::Return,
        _ => BranchKind::Other,
    }
}

/// Returns the branch with this number, in user mode.
pub(crate) fn user(number: u64) -> FedBranch {
    let (from, to) = (0x40_1000 + 0x10 * number, 0x50_1000 + 0x10 * number);
    FedBranch {
        mispredicted: number.is_multiple_of(3),
        cycles: Some(7 + number as u16),
        ..FedBranch::new(from, to, FedBranchKind::Conditional, Privilege::User)
    }
}

/// Returns the branch with this number, in the kernel.
pub(crate) fn kernel(number: u64) -> FedBranch {
    const KERNEL: u64 = 0xFFFF_FFFF_8100_0000;
    let (from, to) = (KERNEL + 0x10 * number, KERNEL + 0x1000 + 0x10 * number);
    FedBranch {
        cycles: Some(3),
        ..FedBranch::new(from, to, FedBranchKind::RelativeJump, Privilege::Kernel)
    }
}

/// Checks that the driver did nothing that the processor does not allow.
#[track_caller]
pub(crate) fn no_breach(mock: &Mock<'_>, name: &str) {
    if let Some(breach) = mock.breach() {
        panic!("{name}: {breach}");
    }
}

pub(crate) fn is_recording(mock: &Mock<'_>) -> bool {
    mock.with_branch_records(|records| records.is_recording()).unwrap()
}

/// Returns the addresses of the branches that a task reads.
pub(crate) fn addresses(recorder: &mut Recorder<'_, '_>) -> Vec<u64> {
    recorder.read().unwrap().iter().map(|branch| branch.from).collect()
}

/// A recorder that records, beside an event of 100,000 whose samples have the branches.
pub(crate) fn with_samples(
    processor: &Processor,
    freezing: bool,
    act: impl FnOnce(&Mock<'_>, &mut Recorder<'_, '_>, &mut Counters<'_, '_>, &RefCell<Samples>),
) {
    Prepared::new(processor).with_samples(freezing, act);
}

/// A processor with its descriptions, which are the same each time.
pub(crate) struct Prepared {
    pub(crate) processor: Processor,
    pub(crate) unit: BranchUnit,
    counters: CounterUnit,
}

impl Prepared {
    pub(crate) fn new(processor: &Processor) -> Self {
        let (unit, counters) = (processor.unit(), processor.counters());
        Self { processor: *processor, unit, counters }
    }

    /// See [`with_samples`].
    pub(crate) fn with_samples(
        &self,
        freezing: bool,
        act: impl FnOnce(&Mock<'_>, &mut Recorder<'_, '_>, &mut Counters<'_, '_>, &RefCell<Samples>),
    ) {
        let (unit, counter_unit, mock) = (&self.unit, &self.counters, self.processor.mock());
        let records = Records::new();
        let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
        let table = EventTable::<[EventEntry; 4]>::new();
        let source =
            Events::new(counter_unit, &table as &EventTable).with(Branches::new(unit, &records));
        let mut counters =
            CounterSession::take(source, counter_unit, CounterSet::ALL, &mock, &memory).unwrap();
        let event = counters.open(counter_unit, &[raw(3).every(100_000)]).unwrap();
        let mut recorder = BranchRecorder::take(unit, &mock, &records).unwrap();
        if freezing {
            recorder.freeze_on_interrupt().unwrap();
        }
        recorder.start(BranchFilter::ALL).unwrap();
        counters.enable(event, 0).unwrap();
        let samples = RefCell::new(Samples::default());
        let handler = |mock: &Mock<'_>| {
            let serviced = service(&source, mock, &memory, |sample| {
                let branches = sample.facility();
                let is_frozen = branches.is_some_and(|of| of.is_frozen());
                let branches = branches.into_iter().flat_map(|of| of.iter()).collect();
                samples.borrow_mut().taken.push(Sample { branches, is_frozen });
            });
            if let Ok(serviced) = serviced {
                samples.borrow_mut().others |= serviced.others;
            }
        };
        mock.on_interrupt(&handler);
        act(&mock, &mut recorder, &mut counters, &samples);
    }
}

/// Records branches of each kind and privilege, as a guest that has the registers.
pub(crate) fn record_as_guest(mock: &Mock<'_>, unit: &BranchUnit) {
    let registers = unit.registers();
    if let Some(filter) = registers.filter {
        mock.write_retrying(filter, 0).unwrap();
    }
    match registers.enable {
        BranchEnable::Register(control) => mock.write_retrying(control, 0x7F_0007).unwrap(),
        BranchEnable::Bits { bits, on, .. } => {
            mock.update_retrying(bits.set_to(on)).unwrap();
        }
    }
}
