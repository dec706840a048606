//! A session whose events have branches, with the handler of its interrupt.

use core::cell::{Cell, RefCell};

use super::asked::Source;
use super::support::*;
use pmu_core::access::{RegisterAddress, RegisterBackend};
use pmu_core::branches::{BranchFilter, BranchMemory, BranchSlot, BranchUnit, Branches};
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::{CounterSession, CounterSet, CounterUnit, EventId, Events, Sample, service};
use pmu_tests::opened::{happened, raw};
use pmu_virt::branches::{FedBranch, FedBranchKind};

pub(crate) const PERIOD: u64 = 100_000;

pub(crate) type Session<'a> = CounterSession<'a, Source<'a>, &'a Mock<'a>>;

/// The samples of a session: tags and branches; `None` without records.
pub(crate) type Found = Vec<(u64, Option<Vec<u64>>)>;

pub(crate) struct Scene<'a> {
    pub(crate) name: &'a str,
    pub(crate) mock: &'a Mock<'a>,
    pub(crate) unit: &'a BranchUnit,
    pub(crate) counters: &'a CounterUnit,
    pub(crate) records: &'a Records,
    pub(crate) source: Source<'a>,
    pub(crate) memory: &'a CounterMemory,
    pub(crate) session: Session<'a>,
    pub(crate) samples: &'a RefCell<Found>,
    /// The number of the access before which an event happens, from now on, and the event's kind.
    pub(crate) happens: &'a Cell<(u32, usize)>,
    /// The register that faults.
    pub(crate) missing: u32,
}

pub(crate) fn with_scene(processor: &Processor, act: impl FnOnce(&mut Scene<'_>)) {
    let prepared = Prepared::new(processor);
    let (unit, counters, mock) = (&prepared.unit, &processor.counters(), &processor.mock());
    let records: Records = BranchMemory::<[BranchSlot; 32]>::new();
    let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let memory: &CounterMemory = &memory;
    let table = EventTable::<[EventEntry; 12]>::new();
    let source = Events::new(counters, &table as &EventTable);
    let source = source.with(Branches::new(unit, &records));
    let samples = RefCell::new(vec![]);
    let handler = |mock: &Mock<'_>| {
        let _ = service(&source, mock, memory, |sample: Sample<'_, Branches<'_>>| {
            let records = sample.branch_records();
            let found = records.map(|records| records.iter().map(|of| of.from).collect());
            samples.borrow_mut().push((sample.tag, found));
        });
    };
    mock.on_interrupt(&handler);
    let happens = Cell::new((0_u32, 0));
    let before_access = |mock: &Mock<'_>| {
        let (left, kind) = happens.get();
        happens.set((left.saturating_sub(1), kind));
        if left == 1 {
            mock.advance(&mut happened(kind, PERIOD));
        }
    };
    mock.on_access(&before_access);
    let session = CounterSession::take(source, counters, CounterSet::ALL, mock, memory);
    let (records, samples, name) = (&records, &samples, processor.name);
    let session = session.unwrap();
    act(&mut Scene {
        name,
        mock,
        unit,
        counters,
        records,
        source,
        memory,
        session,
        samples,
        happens: &happens,
        missing: 0,
    });
    no_breach(mock, processor.name);
}

impl<'a> Scene<'a> {
    pub(crate) fn open(&mut self, kind: usize, filter: BranchFilter) -> EventId {
        let event = raw(kind).every(PERIOD).tagged(kind as u64).with_branches(filter);
        self.session.open(self.counters, &[event]).unwrap()
    }

    pub(crate) fn overflow(&self, kind: usize) -> Found {
        self.mock.advance(&mut happened(kind, PERIOD));
        self.samples.take()
    }

    /// A borrower sees nothing of a thread, and nothing at all if no guest may have left something.
    pub(crate) fn check_borrowed(&self, guests: bool, at: &str) {
        let visible = self.visible();
        if !guests {
            return assert_eq!(visible, None, "{at}");
        }
        let registers = self.unit.registers();
        for record in 0..u32::from(self.unit.depth()) {
            // SAFETY: the mock's registers are numbers.
            let from = unsafe { RegisterAddress::new(registers.from + record * registers.step) };
            let found = self.mock.read(from).unwrap() << 16 >> 16;
            let is_of_guest = |base: u64| found.wrapping_sub(base << 16 >> 16) / 0x10 / 100 == 5000;
            let is_guests = is_of_guest(user(0).from) || is_of_guest(kernel(0).from);
            assert!(found == 0 || is_guests, "{at}: {found:#X}");
        }
    }

    /// Every sample's branches are of this thread.
    pub(crate) fn check(&self, epoch: u64, at: &str) {
        for (tag, found) in self.samples.take() {
            for from in found.into_iter().flatten() {
                if epoch == 0 {
                    continue;
                }
                let is_user = from >> 63 == 0;
                assert!(is_user || tag != 3, "{at}: sample of {tag} has {from:#X}");
                let base = if is_user { user(0).from } else { kernel(0).from };
                let number = (from - base) / 0x10;
                assert_eq!(number / 100, epoch, "{at}: sample of {tag} has {from:#X}");
            }
        }
    }

    /// A further session takes the counters.
    pub(crate) fn take_again(&mut self) {
        let (mock, all) = (self.mock, CounterSet::ALL);
        self.session =
            CounterSession::take(self.source, self.counters, all, mock, self.memory).unwrap();
    }

    /// Returns what a borrower of the counters would see.
    pub(crate) fn visible(&self) -> Option<String> {
        let (mock, registers) = (self.mock, self.unit.registers());
        if is_recording(mock) {
            return Some(String::from("records"));
        }
        for record in 0..u32::from(self.unit.depth()) {
            // SAFETY: the mock's registers are numbers.
            let from = unsafe { RegisterAddress::new(registers.from + record * registers.step) };
            let found = mock.read(from).unwrap();
            if found != 0 {
                return Some(format!("record {record}: {found:#X}"));
            }
        }
        let freeze = registers.freeze?;
        let found = mock.update(freeze.bit.read()).unwrap();
        (found & freeze.bit.bits() != 0).then(|| String::from("freezes"))
    }
}

pub(crate) fn stack_of(processor: &Processor) -> Option<BranchFilter> {
    let stack = BranchFilter::USER.call_stack();
    processor.unit().recorded(stack).map(|_| stack)
}

pub(crate) fn text(error: impl core::fmt::Debug) -> String {
    format!("{error:?}")
}

/// A near call, which a call stack has until it returns.
pub(crate) fn call(number: u64) -> FedBranch {
    FedBranch { kind: FedBranchKind::RelativeCall, ..user(number) }
}

/// Each register that a session with branches accesses.
pub(crate) fn accessed(processor: &Processor) -> Vec<u32> {
    let mut found = vec![];
    let unit = processor.unit();
    let registers = unit.registers();
    found.extend(registers.depth.map(RegisterAddress::get));
    found.extend(registers.filter.map(RegisterAddress::get));
    found.extend(registers.freeze.and_then(|freeze| freeze.status).map(|(_, of)| of.get()));
    for record in [0, u32::from(unit.depth()) - 1] {
        let at = |first: u32| first + record * registers.step;
        found.push(at(registers.from));
        found.extend(registers.to.map(at));
        found.extend(registers.info.map(at));
    }
    // The enabling registers, and those of the freeze.
    found.extend([0x1D9, 0x14CE, 0xC000_010F, 0x1C9]);
    found
}
