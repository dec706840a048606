//! Totals of opened events: what is read is what was fed while the event was on a counter.

mod opened;

use core::cell::RefCell;

use opened::*;
use pmu_core::{CounterSet, EventId, EventOverflow, OpenedEvents, service};
use pmu_virt::mock::{Deviation, Deviations};

/// A strict handler that counts reports by event.
fn handler<'a>(
    processor: &'a Processor,
    memory: &'a Memory,
    table: &'a Table,
    reports: &'a RefCell<Vec<EventOverflow>>,
) -> impl Fn(&Mock<'_>) + 'a {
    move |mock| {
        let source = OpenedEvents::new(&processor.unit, table);
        let push = |overflow| reports.borrow_mut().push(overflow);
        service(&source, mock, mock, memory, push).unwrap();
    }
}

/// Everything that may happen to counted events, at random; the naive model adds up what is fed while an event
/// has a counter.
#[test]
fn totals_are_exact_whatever_happens_to_the_events() {
    let all = processors(Deviations::NONE).into_iter().chain(
        [Deviation::RaisesOnUnmask, Deviation::LatchesSecondInterrupt, Deviation::DeadCounter]
            .into_iter()
            .flat_map(|deviation| processors(Deviations::of(&[deviation]))),
    );
    for processor in all {
        for seed in 1..40 {
            random_totals(&processor, seed);
        }
    }
}

fn random_totals(processor: &Processor, seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let (memory, table, reports) = (Memory::new(), Table::new(), RefCell::default());
    let handler = handler(processor, &memory, &table, &reports);
    let mock = processor.mock();
    mock.on_interrupt(&handler);
    let mut counters = processor.take(&mock, &memory, &table);
    // By event: its kind, total and reports expected, and its period.
    struct Expected {
        id: EventId,
        kind: usize,
        total: u64,
        period: u64,
    }
    let mut events = vec![];
    for n in 0..9 {
        let kind = n % 8;
        let period = [0, 0, 0x1000, 0x3000][random.below(4) as usize];
        let event = raw(kind).rotating();
        let event = if period == 0 { event } else { event.every(period).with_total() };
        let id = counters.open_event(&processor.unit, &event).unwrap();
        events.push(Expected { id, kind, total: 0, period });
    }
    let mask = (1u64 << 40) - 1;
    for step in 0..120 {
        let context = format!("{processor:?}, seed {seed}, step {step}");
        let place = random.below(events.len() as u64) as usize;
        match random.below(8) {
            0..=1 => {
                let _ = counters.start_event(events[place].id, step);
            }
            2 => {
                let _ = counters.stop_event(events[place].id, step);
            }
            3 => counters.rotate(step).unwrap(),
            // Near its wrap, as if it had counted so far.
            4 => {
                let kind = events[place].kind;
                let of_kind = |event: &&mut Expected| {
                    event.kind == kind && counters.counter_of(event.id).is_some()
                };
                let count = mask - random.below(50);
                if events.iter().all(|event| event.kind != kind || event.period == 0) {
                    events.iter_mut().filter(of_kind).for_each(|event| event.total += count);
                    happen(&mock, kind, count);
                }
            }
            _ => {
                let (kind, count) = (events[place].kind, random.below(0x9000));
                for event in &mut events {
                    if event.kind == kind && counters.counter_of(event.id).is_some() {
                        event.total += count;
                    }
                }
                happen(&mock, kind, count);
            }
        }
        for event in &events {
            assert_eq!(total(&counters, event.id), event.total, "{context}: {:?}", event.id);
        }
    }
    counters.shut_down().unwrap();
    assert_eq!(running(&mock), CounterSet::NONE);
}
