//! Costs of branches that events ask for, in register accesses beyond those of the same events without branches: exact,
//! and equal to the table in tests/data/accesses.md.

use core::cell::Cell;

use super::branches::{Cost, text};
use pmu_core::branches::{BranchFilter, BranchMemory, BranchSlot, BranchUnit, Branches};
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::{CounterSession, CounterSet, CounterUnit, Events, Sample, service};
use pmu_tests::opened::{Mock, fed_events, happened, raw};
use pmu_virt::branches::{BranchConfiguration, FedBranch, FedBranchKind, VirtualBranches};
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration};
use pmu_virt::{Privilege, VirtualPmu};

use super::{are_in_the_table, reads_and_writes_of};

/// Of an interrupt with all records full, and with five; of the first start, and of another one; of a stop; and of a
/// switch of threads.
type Costs = [Cost; 6];

fn units(configuration: Configuration, mock: &Mock<'_>) -> (BranchUnit, CounterUnit) {
    let snapshot = mock.snapshot();
    match configuration {
        Configuration::Amd(_) => {
            (pmu_amd::branches(&snapshot).unwrap(), pmu_amd::counters(&snapshot))
        }
        _ => {
            let unit = pmu_intel::branches(&snapshot, mock).unwrap();
            (unit, pmu_intel::counters(&snapshot))
        }
    }
}

fn measure(configuration: Configuration, branches: BranchConfiguration, asks: bool) -> Costs {
    let records = VirtualBranches::new(&configuration, branches).unwrap();
    let pmu = VirtualPmu::new(configuration, fed_events()).unwrap();
    let mock = Mock::strict(pmu).with_branches(records);
    for control in [0x38F, 0xC000_0301] {
        let _ = mock.with_pmu(|pmu| pmu.write(control, 0));
    }
    let (unit, counter_unit) = units(configuration, &mock);
    let lent = BranchMemory::<[BranchSlot; 32]>::new();
    let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let table = EventTable::<[EventEntry; 4]>::new();
    let source = Events::new(&counter_unit, &table as &EventTable);
    let source = source.with(Branches::new(&unit, &lent));
    let mut counters =
        CounterSession::take(source, &counter_unit, CounterSet::ALL, &mock, &memory).unwrap();
    let event = raw(3).every(100_000);
    let event = if asks { event.with_branches(BranchFilter::USER) } else { event };
    let cost = |act: &mut dyn FnMut()| reads_and_writes_of(&mock, act);
    let found = Cell::new(0);
    let handler = |mock: &Mock<'_>| {
        let report = |sample: Sample<'_, _>| found.set(sample.branches().count());
        assert_eq!(service(&source, mock, &memory, report).unwrap().overflows, 1);
    };
    mock.on_interrupt(&handler);
    let interrupt = |count, recorded| {
        for number in 0..count {
            let (from, kind) = (0x1000 + number, FedBranchKind::RelativeCall);
            mock.branch(&FedBranch::new(from, 0x9000, kind, Privilege::User));
        }
        let cost = cost(&mut || mock.advance(&mut happened(3, 100_000)));
        assert_eq!(found.get(), if asks { recorded } else { 0 });
        cost
    };
    let own = counters.open(&counter_unit, &[event]).unwrap();
    let first = cost(&mut || counters.enable(own, 0).unwrap());
    let full = interrupt(40, unit.depth().into());
    let stop = cost(&mut || counters.disable(own, 0).unwrap());
    let start = cost(&mut || counters.enable(own, 0).unwrap());
    let five = interrupt(5, 5);
    counters.disable(own, 0).unwrap();
    let saved = SavedEvent::new(&counter_unit, &event).unwrap().to_be_enabled(true);
    let [mut leaving, mut coming] = [[ThreadEvent::SwitchedOut(saved)]; 2];
    counters.switch_in(&counter_unit, &mut leaving, 0).unwrap();
    let switch = cost(&mut || {
        counters.switch_out(&mut leaving, 1, |_| ()).unwrap();
        counters.switch_in(&counter_unit, &mut coming, 1).unwrap();
    });
    assert!(mock.breach().is_none(), "{:?}", mock.breach());
    [full, five, first, start, stop, switch]
}

#[test]
fn the_rows_of_branches_that_events_ask_for_are_what_is_measured() {
    let intel = |version| Configuration::Intel(IntelConfiguration::new(version, 4, 3));
    let amd = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    let legacy = |format| BranchConfiguration::Legacy { format };
    // With what an interrupt's branches cost where a recorder has them: an event's cost no more.
    let rows: [(&str, Configuration, BranchConfiguration, Cost, Cost); 5] = [
        ("architectural, 32", intel(5), BranchConfiguration::ARCHITECTURAL, [96, 0], [17, 0]),
        ("format 5, version 4, 32", intel(4), legacy(5), [97, 0], [18, 0]),
        ("format 3, version 3, 16", intel(3), legacy(3), [35, 1], [15, 1]),
        ("AMD, 16", amd, BranchConfiguration::amd(16, true), [32, 0], [32, 0]),
        ("AMD, 16, not freezing", amd, BranchConfiguration::amd(16, false), [34, 2], [34, 2]),
    ];
    let mut lines = vec![];
    for (name, configuration, branches, most_full, most_five) in rows {
        let with = measure(configuration, branches, true);
        let without = measure(configuration, branches, false);
        let mut beyond = with;
        for (cost, own) in beyond.iter_mut().zip(without) {
            *cost = [cost[0] - own[0], cost[1] - own[1]];
        }
        for (cost, most) in beyond.iter().zip([most_full, most_five]) {
            assert!(cost[0] <= most[0] && cost[1] <= most[1], "{name}: {cost:?}, {most:?}");
        }
        lines.push(format!("| {name} of an event | {} |", beyond.map(text).join(" | ")));
    }
    are_in_the_table(&lines);
}
