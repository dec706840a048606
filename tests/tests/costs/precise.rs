//! Costs of Intel's precise records in register accesses: exact, and equal to the table in tests/data/accesses.md.

use core::cell::{Cell, RefCell};
use core::sync::atomic::AtomicU64;

use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::precise::Precision;
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::thread::ThreadEvent;
use pmu_core::{CounterSession, CounterSet, Events, Platform, service};
use pmu_intel::precise::{Pebs, PreciseMemory, PreciseThreshold, PreciseUnit};
use pmu_tests::opened::{Mock, fed_events, happened, raw};
use pmu_virt::VirtualPmu;
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::mock::ProcessMemory;
use pmu_virt::precise::{FedRecord, GuestMemory, PreciseConfiguration, VirtualPrecise};

use super::are_in_the_table;

/// Numbers of RDMSRs, WRMSRs, RDPMCs, and unmaskings of the LVT entry.
type Cost = [u32; 4];

fn text(cost: Cost) -> String {
    let parts = cost.iter().zip(["R", "W", "P", "A"]).filter(|(count, _)| **count != 0);
    let parts: Vec<String> = parts.map(|(count, kind)| format!("{count}{kind}")).collect();
    if parts.is_empty() { "–".into() } else { parts.join(" ") }
}

const PERIOD: u64 = 100;
const PHYSICAL: u64 = 0x10_0000;

/// The mock's platform, which counts the unmaskings of the LVT entry.
struct Counting<'a, 'h> {
    mock: &'a Mock<'h>,
    unmasked: &'a Cell<u32>,
}

impl Platform for Counting<'_, '_> {
    fn unmask_performance_interrupt(&self) {
        self.unmasked.set(self.unmasked.get() + 1);
        self.mock.unmask_performance_interrupt();
    }

    fn mask_performance_interrupt(&self) {
        self.mock.mask_performance_interrupt();
    }
}

/// Costs of an interrupt with one record, and with many; of one after which the period is another one; of a start, of
/// samples that a task reports, of a switch of a thread's event out and in again, of a window, and of a stop.
fn measure(version: u8, records: PreciseConfiguration, freezes: bool) -> [Cost; 8] {
    let memory: &'static PreciseMemory<[AtomicU64; 2048]> =
        Box::leak(Box::new(PreciseMemory::new()));
    // SAFETY: the area and the buffer, one page behind it, consist of atomics.
    let ram = unsafe { ProcessMemory::default().with(memory, PHYSICAL - 0x1000) };
    let ram = RefCell::new(ram);
    let ram: &RefCell<dyn GuestMemory> = &ram;
    let instructions = |number| FedRecord::new(0x40_1000 + number);
    let configuration = Configuration::Intel(IntelConfiguration::new(version, 8, 3));
    let precise = VirtualPrecise::new(&configuration, records).unwrap();
    let pmu = VirtualPmu::new(configuration, fed_events()).unwrap();
    let mock = Mock::strict(pmu).with_precise(precise, ram, &instructions);
    let _ = mock.with_pmu(|pmu| pmu.write(0x38F, 0));
    let counter_unit = pmu_intel::counters(&mock.snapshot());
    let unit = PreciseUnit::detect(&mock.snapshot(), &&mock).unwrap();
    let table = EventTable::<[EventEntry; 2]>::new();
    let counters = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    // SAFETY: the mock writes to the lent memory alone, which lasts.
    let pebs = unsafe { Pebs::new(&unit, memory, Some(PHYSICAL)) }.unwrap();
    let source = Events::new(&counter_unit, &table as &EventTable).with(pebs);
    table.set_min_period(1);
    let unmasked = Cell::new(0);
    let next = Cell::new(None);
    let handler = |mock: &Mock<'_>| {
        let platform = Counting { mock, unmasked: &unmasked };
        service(&source, &(mock, &platform), &counters, |sample| {
            if let Some(period) = next.take() {
                table.set_period(sample.event, period).unwrap();
            }
        })
        .unwrap();
    };
    mock.on_interrupt(&handler);
    let cost = |act: &mut dyn FnMut()| {
        let (before, _) = (mock.accesses(), unmasked.take());
        act();
        let after = mock.accesses();
        [
            after.reads - before.reads,
            after.writes - before.writes,
            after.pmc_reads - before.pmc_reads,
            unmasked.take(),
        ]
    };
    let mut session =
        CounterSession::take(source, &counter_unit, CounterSet::ALL, &mock, &counters).unwrap();
    if freezes {
        session.freeze_on_interrupt().unwrap();
    }
    let event = raw(2).user_only().every(PERIOD).precise(Precision::ConstantSkid);
    let event = session.open(&counter_unit, &[event]).unwrap();
    // Once before: the memory is taken.
    session.enable(event, 0).unwrap();
    session.disable(event, 0).unwrap();
    let start = cost(&mut || session.enable(event, 0).unwrap());
    let one = cost(&mut || mock.advance(&mut happened(2, PERIOD)));
    next.set(Some(PERIOD / 2));
    let another = cost(&mut || mock.advance(&mut happened(2, PERIOD)));
    next.set(Some(PERIOD));
    mock.advance(&mut happened(2, PERIOD / 2));
    let report = cost(&mut || session.report_samples(|_| ()).unwrap());
    let window = cost(&mut || session.lend(0, |_| ()).unwrap().end(0).unwrap());
    let mut thread = [ThreadEvent::Opened(event)];
    let switch = cost(&mut || {
        session.switch_out(&mut thread, 0, |_| ()).unwrap();
        session.switch_in(&counter_unit, &mut thread, 0).unwrap();
    });
    let ThreadEvent::Opened(event) = thread[0] else { panic!("{thread:?}") };
    let stop = cost(&mut || session.disable(event, 0).unwrap());
    // The cost of a window without events.
    let without = cost(&mut || session.lend(0, |_| ()).unwrap().end(0).unwrap());
    let window = core::array::from_fn(|kind| window[kind] - without[kind]);
    memory.set_threshold(PreciseThreshold::NearlyFull);
    session.enable(event, 0).unwrap();
    let mut many = [0; 4];
    while many == [0; 4] {
        many = cost(&mut || mock.advance(&mut happened(2, PERIOD)));
    }
    session.disable(event, 0).unwrap();
    assert!(mock.breach().is_none(), "{:?}", mock.breach());
    [one, many, another, start, report, switch, window, stop]
}

/// The rows of precise records in tests/data/accesses.md, and the most that an interrupt may cost.
#[test]
fn the_rows_of_precise_records_are_what_is_measured() {
    let store = PreciseConfiguration::debug_store;
    let architectural = PreciseConfiguration::ARCHITECTURAL;
    let rows = [
        ("Debug Store, freezing", 4, store(3), true, [1, 1, 0, 1]),
        ("Debug Store, not freezing", 4, store(3), false, [1, 3, 0, 1]),
        ("adaptive, freezing", 5, store(4), true, [1, 1, 0, 1]),
        ("adaptive, not freezing", 5, store(4), false, [1, 3, 0, 1]),
        ("architectural, freezing", 6, architectural, true, [2, 2, 0, 1]),
        ("architectural, not freezing", 6, architectural, false, [2, 4, 0, 1]),
    ];
    let mut lines = vec![];
    for (name, version, records, freezes, interrupt) in rows {
        let costs = measure(version, records, freezes);
        assert_eq!(costs[0], interrupt, "{name}: one record");
        assert_eq!(costs[1], interrupt, "{name}: many records");
        lines.push(format!("| {name} | {} |", costs.map(text).join(" | ")));
    }
    are_in_the_table(&lines);
}
