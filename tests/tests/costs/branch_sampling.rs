//! Costs of Zen 3's branch sampling in register accesses, beyond those of the same event without branches: exact, and
//! equal to the table in tests/data/accesses.md.

use super::branches::{Cost, text};
use pmu_core::branches::{BranchMemory, BranchSlot, Branches};
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::{CounterId, EventSelect};
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::{CounterSession, CounterSet, Event, Events, service};
use pmu_tests::{FakePlatform, Fault, RegisterFile, recorded};

use super::are_in_the_table;

/// Of an interrupt with all records full, and with five; of the first start, and of another one; of a stop; of a switch
/// of threads; and of the stop before idle and the restart after.
fn measure(asks: bool) -> [Cost; 7] {
    const CONTROL: u32 = 0xC000_010F;
    let processor = recorded("amd-zen3.txt");
    let unit = pmu_amd::branches(&processor).unwrap();
    let counter_unit = pmu_amd::counters(&processor);
    let registers = (0xC001_0200..0xC001_020C).chain(0xC001_0300..0xC001_0320).chain([CONTROL]);
    let msr = RegisterFile::new(registers, 0xC001_0201).rdpmc_step(2);
    let platform = FakePlatform::default();
    let lent = BranchMemory::<[BranchSlot; 16]>::new();
    let memory = CounterMemory::<[CounterSlot; 6]>::new();
    let table = EventTable::<[EventEntry; 4]>::new();
    let source = Events::new(&counter_unit, &table as &EventTable);
    let source = source.with(Branches::new(&unit, &lent));
    let mut counters =
        CounterSession::take(source, &counter_unit, CounterSet::ALL, (&msr, &platform), &memory)
            .unwrap();
    let event = pmu_amd::branch_sampling_event(100_003).unwrap();
    let plain = Event::raw(EventSelect::from_bits(0xC4)).every(99_987);
    let event = if asks { event } else { plain.on(CounterId::general(0).unwrap().only()) };
    let cost = |act: &mut dyn FnMut()| {
        msr.fail(Fault::Never);
        msr.take_writes();
        act();
        let writes = msr.take_writes().len();
        [msr.accesses() - writes, writes].map(|count| count as u32)
    };
    let interrupt = |next: u64, recorded| {
        (0..32).for_each(|record| msr.set(0xC001_0300 + record, 0x1000));
        if asks {
            msr.set(CONTROL, 0x1C | 1 << 5 | next << 16);
        }
        msr.set(0xC001_0201, 3);
        let mut found = 0;
        let cost = cost(&mut || {
            let report = |sample: pmu_core::Sample<'_, _>| found = sample.branches().count();
            service(&source, &(&msr, &platform), &memory, report).map(|_| ()).unwrap();
        });
        assert_eq!(found, if asks { recorded } else { 0 });
        cost
    };
    let own = counters.open(&counter_unit, &[event]).unwrap();
    let first = cost(&mut || counters.enable(own, 0).unwrap());
    let (full, five) = (interrupt(0, 16), interrupt(5, 5));
    let branches = Branches::new(&unit, &lent);
    let idle = cost(&mut || {
        branches.before_idle(&msr).unwrap();
        branches.after_idle(&msr).unwrap();
    });
    let stop = cost(&mut || counters.disable(own, 0).unwrap());
    let start = cost(&mut || counters.enable(own, 0).unwrap());
    counters.disable(own, 0).unwrap();
    let saved = SavedEvent::new(&counter_unit, &event).unwrap().to_be_enabled(true);
    let [mut leaving, mut coming] = [[ThreadEvent::SwitchedOut(saved)]; 2];
    counters.switch_in(&counter_unit, &mut leaving, 0).unwrap();
    let switch = cost(&mut || {
        counters.switch_out(&mut leaving, 1, |_| ()).unwrap();
        counters.switch_in(&counter_unit, &mut coming, 1).unwrap();
    });
    [full, five, first, start, stop, switch, idle]
}

#[test]
fn the_row_of_branch_sampling_is_what_is_measured() {
    let (mut beyond, without) = (measure(true), measure(false));
    for (cost, own) in beyond.iter_mut().zip(without) {
        *cost = [cost[0] - own[0], cost[1] - own[1]];
    }
    // An interrupt reads two registers per record, and stops and starts the sampling.
    assert_eq!(beyond[..2], [[34, 2], [12, 2]]);
    let [columns @ .., idle] = beyond.map(text);
    let lines = [
        format!("| Zen 3's branch sampling, 16 of an event | {} |", columns.join(" | ")),
        format!("before idle and after, {idle}"),
    ];
    are_in_the_table(&lines);
}
