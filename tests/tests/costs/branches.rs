//! Costs of branch records in register accesses: exact, and equal to the table in tests/data/accesses.md.

use core::cell::Cell;
use pmu_core::branch_recording::{BranchArea, BranchRecorder, SaveBranches, XsaveFault};
use pmu_core::branches::{BranchFilter, BranchMemory, BranchSlot, Branches, SavedBranches};
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::{CounterSession, CounterSet, Events, service};
use pmu_tests::opened::{Mock, fed_events, happened, raw};
use pmu_virt::branches::{BranchConfiguration, FedBranch, FedBranchKind, VirtualBranches};
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration};
use pmu_virt::{Privilege, VirtualPmu};

use super::{are_in_the_table, reads_and_writes_of};

/// Numbers of RDMSRs and WRMSRs.
pub(crate) type Cost = [u32; 2];

pub(crate) fn text([reads, writes]: Cost) -> String {
    match (reads, writes) {
        (0, 0) => "–".into(),
        (0, writes) => format!("{writes}W"),
        (reads, 0) => format!("{reads}R"),
        (reads, writes) => format!("{reads}R {writes}W"),
    }
}

/// Costs of one kind of branch records.
#[derive(Debug)]
struct Costs {
    /// Of an interrupt with all records full, and with five, beyond the counter's own.
    full: Cost,
    five: Cost,
    start: Cost,
    read: Cost,
    clear: Cost,
    /// A thread switch without records, and with a call stack of five.
    cleared: Cost,
    saved: Option<Cost>,
}

fn measure(configuration: Configuration, branches: BranchConfiguration, freezing: bool) -> Costs {
    let records = VirtualBranches::new(&configuration, branches).unwrap();
    let pmu = VirtualPmu::new(configuration, fed_events()).unwrap();
    let mock = Mock::strict(pmu).with_branches(records);
    for control in [0x38F, 0xC000_0301] {
        let _ = mock.with_pmu(|pmu| pmu.write(control, 0));
    }
    let snapshot = mock.snapshot();
    let is_amd = matches!(configuration, Configuration::Amd(_));
    let (unit, counter_unit) = if is_amd {
        (pmu_amd::branches(&snapshot).unwrap(), pmu_amd::counters(&snapshot))
    } else {
        let unit = pmu_intel::branches(&snapshot, &mock).unwrap();
        (unit, pmu_intel::counters(&snapshot))
    };
    let lent = BranchMemory::<[BranchSlot; 32]>::new();
    let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let table = EventTable::<[EventEntry; 2]>::new();
    let source = Events::new(&counter_unit, &table as &EventTable);
    let source = source.with(Branches::new(&unit, &lent));
    let mut counters =
        CounterSession::take(source, &counter_unit, CounterSet::ALL, &mock, &memory).unwrap();
    let event = counters.open(&counter_unit, &[raw(3).every(100_000)]).unwrap();
    counters.enable(event, 0).unwrap();
    let mut recorder = BranchRecorder::take(&unit, &mock, &lent).unwrap();
    if freezing {
        recorder.freeze_on_interrupt().unwrap();
    }
    let cost = |act: &mut dyn FnMut()| reads_and_writes_of(&mock, act);
    let found = Cell::new(0);
    let handler = |mock: &Mock<'_>| {
        let serviced = service(&source, mock, &memory, |sample| {
            found.set(sample.facility().unwrap().iter().count());
        });
        assert_eq!(serviced.unwrap().overflows, 1);
    };
    mock.on_interrupt(&handler);
    let branch = |from| {
        mock.branch(&FedBranch::new(from, 0x9000, FedBranchKind::RelativeCall, Privilege::User));
    };
    let interrupt = |count| {
        (0..count).for_each(|number| branch(0x1000 + number));
        cost(&mut || mock.advance(&mut happened(3, 100_000)))
    };
    let own = interrupt(0);
    let beyond = |cost: Cost| [cost[0] - own[0], cost[1] - own[1]];
    let start = cost(&mut || assert!(recorder.start(BranchFilter::USER).is_ok()));
    let full = beyond(interrupt(40));
    assert_eq!(found.get(), usize::from(unit.depth()));
    let clear = cost(&mut || recorder.clear().unwrap());
    let five = beyond(interrupt(5));
    assert_eq!(found.get(), 5);
    let read = cost(&mut || assert_eq!(recorder.read().unwrap().iter().count(), 5));
    recorder.restart().unwrap();
    let cleared = cost(&mut || {
        recorder.switch_out::<32>(None).unwrap();
        recorder.switch_in::<32>(None).unwrap();
    });
    let saved = unit.offers().call_stack.then(|| {
        let mut saved = SavedBranches::<32>::new();
        recorder.start(BranchFilter::USER.call_stack()).unwrap();
        (0..5).for_each(|number| branch(0x1000 + number));
        cost(&mut || {
            recorder.switch_out(Some(&mut saved)).unwrap();
            recorder.switch_in(Some(&saved)).unwrap();
        })
    });
    assert!(mock.breach().is_none(), "{:?}", mock.breach());
    Costs { full, five, start, read, clear, cleared, saved }
}

/// A thread switch of architectural records by XSAVES, which touches no register by RDMSR or WRMSR.
fn with_xsaves() -> Cost {
    struct Area(u32);
    // SAFETY: the fake executes nothing.
    unsafe impl SaveBranches for Area {
        fn save(&mut self) -> Result<(), XsaveFault> {
            self.0 += 1;
            Ok(())
        }
        fn restore(&mut self) -> Result<(), XsaveFault> {
            self.0 += 1;
            Ok(())
        }
    }
    let configuration = Configuration::Intel(IntelConfiguration::new(5, 4, 3));
    let records = VirtualBranches::new(&configuration, BranchConfiguration::ARCHITECTURAL).unwrap();
    let pmu = VirtualPmu::new(configuration, fed_events()).unwrap();
    let mock: Mock<'_> = Mock::strict(pmu).with_branches(records);
    let unit = pmu_intel::branches(&mock.snapshot(), &mock).unwrap();
    let lent = BranchMemory::<[BranchSlot; 32]>::new();
    let mut recorder = BranchRecorder::take(&unit, &mock, &lent).unwrap();
    let cpuid = |leaf, subleaf| {
        let (eax, ecx) = match (leaf, subleaf) {
            (0, _) => (0x1C, 0),
            (0x0D, 1) => (1 << 3, 1 << 15),
            _ => (808, 1),
        };
        pmu_core::x86::raw_cpuid::CpuIdResult { eax, ebx: 0, ecx, edx: 0 }
    };
    recorder.use_xsaves(cpuid).unwrap();
    recorder.start(BranchFilter::USER.call_stack()).unwrap();
    let mut area = BranchArea::new(Area(0));
    let before = mock.accesses();
    recorder.switch_out_to(&mut area).unwrap();
    recorder.switch_in_from(&mut area).unwrap();
    let after = mock.accesses();
    [after.reads - before.reads, after.writes - before.writes]
}

/// The rows of branch records in tests/data/accesses.md, and the most that each may cost.
#[test]
fn the_rows_of_branch_records_are_what_is_measured() {
    let intel = |version| Configuration::Intel(IntelConfiguration::new(version, 4, 3));
    let amd = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    let legacy = |format| BranchConfiguration::Legacy { format };
    let amd_only = |freeze| BranchConfiguration::amd(16, freeze);
    let architectural = BranchConfiguration::ARCHITECTURAL;
    let rows: [(&str, Configuration, BranchConfiguration, bool, Cost, Cost); 7] = [
        ("architectural, 32 records", intel(5), architectural, true, [96, 0], [17, 0]),
        ("architectural, 32, not freezing", intel(5), architectural, false, [96, 2], [17, 2]),
        ("format 5, version 4, 32", intel(4), legacy(5), true, [97, 0], [18, 0]),
        ("format 3, version 3, 16", intel(3), legacy(3), true, [35, 1], [15, 1]),
        ("format 3, version 3, 16, not freezing", intel(3), legacy(3), false, [35, 2], [15, 2]),
        ("AMD, 16", amd, amd_only(true), true, [32, 0], [32, 0]),
        ("AMD, 16, not freezing", amd, amd_only(false), false, [34, 2], [34, 2]),
    ];
    let mut lines = vec![];
    for (name, configuration, branches, freezing, most_full, most_five) in rows {
        let costs = measure(configuration, branches, freezing);
        for (cost, most) in [(costs.full, most_full), (costs.five, most_five)] {
            assert!(cost[0] <= most[0] && cost[1] <= most[1], "{name}: {cost:?}, {most:?}");
        }
        let saved = costs.saved.map_or("–".into(), text);
        let columns =
            [costs.full, costs.five, costs.start, costs.read, costs.clear, costs.cleared].map(text);
        lines.push(format!("| {name} | {} | {saved} |", columns.join(" | ")));
    }
    lines.push(format!("one XSAVES, one XRSTORS and {}", text(with_xsaves())));
    are_in_the_table(&lines);
}
