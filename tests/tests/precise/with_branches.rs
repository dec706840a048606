//! Branches of precise events: they are read also at an interrupt that brings records alone.

use core::cell::RefCell;

use pmu_core::branches::{BranchFilter, BranchMemory, BranchSlot, Branches};
use pmu_core::facility::EventFacility;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::{CounterSession, CounterSet, Events, Sample, service};
use pmu_intel::precise::{Pebs, PreciseThreshold, PreciseUnit};
use pmu_tests::opened::{happened, raw};
use pmu_virt::branches::{BranchConfiguration, FedBranch, FedBranchKind, VirtualBranches};
use pmu_virt::{Privilege, VirtualPmu};

use crate::scene::{PERIOD, precise};
use crate::support::{Mock, PHYSICAL, Processor, instruction, lend, processors};

fn branch(number: u64, privilege: Privilege) -> FedBranch {
    let from = if privilege == Privilege::User { 0x40_0000 } else { 0xFFFF_8000_0000_0000 };
    let from = from + 16 * number;
    FedBranch::new(from, from + 0x1000, FedBranchKind::RelativeCall, privilege)
}

/// Returns a mock that also records branches: of Skylake's format, or architecturally.
fn with_branches(pmu: VirtualPmu) -> Mock<'static> {
    let configuration = pmu.configuration();
    let version = match configuration {
        pmu_virt::configuration::Configuration::Intel(intel) => intel.version,
        _ => unreachable!(),
    };
    let format = match version {
        ..=3 => BranchConfiguration::Legacy { format: 3 },
        4 => BranchConfiguration::Legacy { format: 5 },
        _ => BranchConfiguration::ARCHITECTURAL,
    };
    Mock::strict(pmu).with_branches(VirtualBranches::new(&configuration, format).unwrap())
}

/// Tags of samples, with the branches' sources.
type Found = Vec<(u64, Option<Vec<u64>>)>;

fn samples_of<F: EventFacility + 'static>(
    processor: Processor,
    threshold: PreciseThreshold,
    both: fn(Pebs<'static>, Branches<'static>) -> F,
) {
    let what = format!("{}, {}, {threshold:?}", processor.name, processor.freezes);
    let memory = lend();
    let mock = processor.mock(memory, instruction, &[], with_branches);
    let snapshot = mock.snapshot();
    let unit: &'static _ = Box::leak(Box::new(PreciseUnit::detect(&snapshot, mock).unwrap()));
    let of_branches: &'static _ =
        Box::leak(Box::new(pmu_intel::branches(&snapshot, mock).expect(&what)));
    let records: &'static BranchMemory<[BranchSlot; 32]> = Box::leak(Box::default());
    // SAFETY: the mock writes to the lent memory alone, which lasts.
    let pebs = unsafe { Pebs::new(unit, memory, Some(PHYSICAL)) }.unwrap();
    let counters: &'static _ = Box::leak(Box::new(pmu_intel::counters(&snapshot)));
    let table: &'static EventTable<[EventEntry; 8]> = Box::leak(Box::default());
    let lent: &'static CounterMemory<[CounterSlot; MAX_COUNTERS]> = Box::leak(Box::default());
    table.set_min_period(1);
    let facility = both(pebs, Branches::new(of_branches, records));
    let source = Events::new(counters, table as &EventTable).with(facility);
    let found: &'static RefCell<Found> = Box::leak(Box::default());
    let handler = move |mock: &Mock<'static>| {
        (1..=5).for_each(|number| mock.branch(&branch(number, Privilege::Kernel)));
        let report = |sample: Sample<'_, F>| {
            let branches = sample.branch_records().map(|_| sample.branches().map(|of| of.from));
            found.borrow_mut().push((sample.tag, branches.map(Iterator::collect)));
        };
        assert_eq!(service(&source, mock, lent, report).map(|of| of.others), Ok(0));
    };
    mock.on_interrupt(Box::leak(Box::new(handler)));
    let mut session = CounterSession::take(source, counters, CounterSet::ALL, mock, lent).unwrap();
    if processor.freezes {
        session.freeze_on_interrupt().unwrap();
    }
    memory.set_threshold(threshold);
    let asked = precise(0).with_branches(BranchFilter::USER);
    let event = session.open(counters, &[asked]).expect(&what);
    session.enable(event, 0).expect(&what);
    let from = |numbers: &[u64]| {
        Some(numbers.iter().map(|number| branch(*number, Privilege::User).from).collect())
    };
    (1..=3).for_each(|number| mock.branch(&branch(number, Privilege::User)));
    mock.advance(&mut happened(0, PERIOD));
    assert_eq!(*found.borrow(), [(0, from(&[3, 2, 1]))], "{what}");
    mock.branch(&branch(4, Privilege::User));
    mock.advance(&mut happened(0, PERIOD));
    assert_eq!(found.borrow()[1], (0, from(&[4, 3, 2, 1])), "{what}");
    // Beside it a plain event, and one that did not ask for branches.
    if processor.name != "format 0" {
        let others = [raw(2).user_only().every(PERIOD).tagged(2), precise(3)];
        for other in others {
            let other = session.open(counters, &[other]).expect(&what);
            session.enable(other, 0).expect(&what);
        }
        mock.advance(&mut happened(2, PERIOD));
        mock.advance(&mut happened(3, PERIOD));
        assert_eq!(found.borrow()[2..], [(2, None), (3, None)], "{what}");
        mock.advance(&mut happened(0, PERIOD));
        assert_eq!(found.borrow()[4], (0, from(&[4, 3, 2, 1])), "{what}");
    }
    session.shut_down().expect(&what);
    assert_eq!(mock.breach(), None, "{what}");
}

#[test]
fn an_interrupt_with_records_alone_brings_their_branches() {
    for processor in processors() {
        for threshold in [PreciseThreshold::EachRecord, PreciseThreshold::NearlyFull] {
            samples_of(processor, threshold, |pebs, branches| (pebs, branches));
            samples_of(processor, threshold, |pebs, branches| (branches, Some(pebs)));
        }
    }
}
