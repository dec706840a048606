//! Events without a period, one of which happens before every register access: the total includes everything that
//! their counter counts, and every interrupt is claimed.

use core::cell::Cell;

use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::thread::ThreadEvent;
use pmu_core::{Claim, Events, service};
use pmu_tests::StateRegisters;
use pmu_tests::opened::*;
use pmu_virt::EventKey;
use pmu_virt::mock::{Deviation, Deviations};

#[derive(Clone, Copy, Debug)]
enum Operation {
    Nothing,
    Read,
    Stop,
    Switch,
    Move,
    ShutDown,
}

const OPERATIONS: [Operation; 6] = [
    Operation::Nothing,
    Operation::Read,
    Operation::Stop,
    Operation::Switch,
    Operation::Move,
    Operation::ShutDown,
];

/// Events that happen at the accesses.
struct Clock {
    going: Cell<bool>,
    /// Events that happened while a counter was counting them.
    counted: Cell<u64>,
    /// Accesses until a pending interrupt is delivered.
    late: u32,
    pending: Cell<Option<u32>>,
    swallow: Cell<bool>,
    unclaimed: Cell<u32>,
}

impl Clock {
    fn step(&self, mock: &Mock<'_>) {
        if !self.going.get() {
            return;
        }
        if runs(mock) {
            self.counted.set(self.counted.get() + 1);
        }
        let raised = mock.pass(&mut happened(2, 1)).pmi;
        let left = if raised { Some(self.late) } else { self.pending.get() };
        self.pending.set(left.and_then(|left| left.checked_sub(1)));
        if left == Some(0) {
            mock.deliver();
        }
    }

    /// Records the driver's claim of an interrupt that a counter raised.
    fn claim(&self, claimed: Claim) {
        let swallowed = self.swallow.replace(claimed.interrupts() > 1);
        if claimed == Claim::NotOurs && !swallowed {
            self.unclaimed.set(self.unclaimed.get() + 1);
        }
    }
}

fn runs(mock: &Mock<'_>) -> bool {
    let (event, unit_mask) = KINDS[2];
    let key = EventKey::general(event.into(), unit_mask);
    mock.with_pmu(|pmu| pmu.running().any(|running| running.key == key))
}

/// Wraps a counter `at` accesses after the beginning of the operation.
fn wrap_at(processor: &Processor, operation: Operation, (at, late): (u64, u32), wraps: u64) {
    let context = format!("{processor:?}: {operation:?}, wrap {wraps} at {at}, {late} late");
    let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let table = EventTable::<[EventEntry; 3]>::new();
    let clock = Clock {
        going: Cell::new(false),
        counted: Cell::new(0),
        late,
        pending: Cell::new(None),
        swallow: Cell::new(false),
        unclaimed: Cell::new(0),
    };
    let handler = |mock: &Mock<'_>| {
        let source = Events::new(&processor.unit, &table);
        let serviced = service(&source, mock, &memory, |o| panic!("{context}: {o:?}"));
        clock.claim(serviced.unwrap().claim);
    };
    let step = |mock: &Mock<'_>| clock.step(mock);
    let mock = processor.mock();
    mock.on_interrupt(&handler);
    mock.on_access(&step);
    let mut counters = processor.take(&mock, &memory, &table);
    let id = counters.open(&processor.unit, &[raw(2)]).unwrap();
    counters.enable(id, 0).unwrap();
    let counter = counters.counter_of(id).unwrap();
    for wrap in 0..wraps {
        let mask = processor.unit.counter(counter).unwrap().mask();
        let value = mock.with_pmu(|pmu| pmu.state().general()[usize::from(counter.number())]);
        let left = (mask - value) + 1;
        let count = if wrap + 1 == wraps { left - 1 - at } else { left + 3 };
        clock.counted.set(clock.counted.get() + count);
        happen(&mock, 2, count);
    }
    clock.going.set(true);
    let mut id = id;
    match operation {
        Operation::Nothing => (0..at + 2).for_each(|_| clock.step(&mock)),
        Operation::Read => {
            let (before, total) = (clock.counted.get(), total(&counters, id));
            let after = clock.counted.get();
            assert!((before..=after).contains(&total), "{context}: {total}, {before}..={after}");
        }
        Operation::Stop => counters.disable(id, 0).unwrap(),
        Operation::Switch => {
            let mut thread = [ThreadEvent::Opened(id)];
            counters.switch_out(&mut thread, 0, |o| panic!("{context}: {o:?}")).unwrap();
            counters.switch_in(&processor.unit, &mut thread, 0).unwrap();
            let [ThreadEvent::Opened(back)] = thread else { panic!("{context}: {thread:?}") };
            id = back;
        }
        Operation::Move => {
            let mover = raw(3).on(counter.only());
            let mover = counters.open(&processor.unit, &[mover]).unwrap();
            counters.enable(mover, 0).unwrap();
            assert_ne!(counters.counter_of(id), Some(counter), "{context}");
        }
        Operation::ShutDown => counters.shut_down().unwrap(),
    }
    clock.going.set(false);
    if clock.pending.take().is_some() {
        mock.deliver();
    }
    if !matches!(operation, Operation::ShutDown) {
        assert_eq!(total(&counters, id), clock.counted.get(), "{context}");
        // It continues to the next wrap, and over it.
        let more = if counters.is_enabled(id) { (1 << 48) + 5 } else { 0 };
        happen(&mock, 2, more);
        let counted = clock.counted.get() + more;
        assert_eq!(total(&counters, id), counted, "{context}");
        assert_eq!(counters.close(id, 0).unwrap().value, counted, "{context}");
        counters.shut_down().unwrap();
    }
    assert_eq!(clock.unclaimed.get(), 0, "{context}: an interrupt that nothing claims");
}

#[test]
fn whatever_a_counter_counts_is_in_its_total_wherever_it_wraps() {
    let deviating = [Deviation::RaisesOnUnmask, Deviation::LatchesSecondInterrupt]
        .into_iter()
        .flat_map(|deviation| processors(Deviations::of(&[deviation])));
    for processor in processors(Deviations::NONE).into_iter().chain(deviating) {
        // A wrap of 2³¹ events would have to be repeated for long.
        let narrow = processor.unit.global().is_none() && !format!("{processor:?}").contains("Amd");
        for operation in OPERATIONS {
            for at in 0..10 {
                for late in [0, 1, 2, 4] {
                    for wraps in if narrow { 1..=1 } else { 1..=2 } {
                        wrap_at(&processor, operation, (at, late), wraps);
                    }
                }
            }
        }
    }
}
