//! Totals of opened events: they equal the events fed while the event was on a counter.

use core::cell::{Cell, RefCell};

use pmu_core::error::CounterError;
use pmu_core::interrupt::EventOverflow;
use pmu_core::profile::{
    AddedSlot, AddedSource, AddedSources, KProfileSource, ProfileSource, Session,
};
use pmu_core::registers::EventSelect;
use pmu_core::{CounterSet, EventId, Events, service};
use pmu_intel::Emon;
use pmu_tests::StateRegisters;
use pmu_tests::opened::*;
use pmu_virt::configuration::IntelConfiguration;
use pmu_virt::mock::{Deviation, Deviations};

/// A strict handler that counts reports by event.
fn handler<'a>(
    processor: &'a Processor,
    memory: &'a Memory,
    table: &'a Table,
    reports: &'a RefCell<Vec<EventOverflow>>,
) -> impl Fn(&Mock<'_>) + 'a {
    move |mock| {
        let source = Events::new(&processor.unit, table);
        let push = |overflow| reports.borrow_mut().push(overflow);
        service(&source, mock, memory, |sample| push(*sample)).unwrap();
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
        let id = counters.open(&processor.unit, &[event]).unwrap();
        events.push(Expected { id, kind, total: 0, period });
    }
    let mask = (1u64 << 40) - 1;
    for step in 0..120 {
        let context = format!("{processor:?}, seed {seed}, step {step}");
        let place = random.below(events.len() as u64) as usize;
        match random.below(8) {
            0..=1 => {
                let _ = counters.enable(events[place].id, step);
            }
            2 => {
                let _ = counters.disable(events[place].id, step);
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

/// An event without a period wraps once between two readings, from any value.
#[test]
fn a_total_is_exact_over_many_wraps() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, reports) = (Memory::new(), Table::new(), RefCell::default());
        let handler = handler(&processor, &memory, &table, &reports);
        let mock = processor.mock();
        mock.on_interrupt(&handler);
        let mut counters = processor.take(&mock, &memory, &table);
        let id = counters.open(&processor.unit, &[raw(2)]).unwrap();
        counters.enable(id, 0).unwrap();
        let mut expected = 0;
        for power in 30..42 {
            for more in [0, 1, 7] {
                let count = (1u64 << power) + more;
                happen(&mock, 2, count);
                expected += count;
                assert_eq!(total(&counters, id), expected, "{processor:?}");
            }
        }
        assert_eq!(*reports.borrow(), []);
        // A wrap that is pending with interrupts off is counted, too, by whichever looks first.
        for look in 0..3 {
            let registers = processor.unit.counter(counters.counter_of(id).unwrap()).unwrap();
            let value = mock.with_pmu(|pmu| pmu.state().general()[counter_place(&counters, id)]);
            let left = registers.mask() - value + 1;
            let mut feed = happened(2, left + 9);
            mock.pass(&mut feed);
            let counted = if processor.freezing { left } else { left + 9 };
            mock.pass(&mut feed);
            expected += counted;
            match look {
                0 => assert_eq!(total(&counters, id), expected, "{processor:?}"),
                1 => counters.disable(id, 0).unwrap(),
                _ => {}
            }
            mock.deliver();
            assert_eq!(total(&counters, id), expected, "{processor:?}, {look}");
            if look == 1 {
                counters.enable(id, 0).unwrap();
            }
        }
    }
}

/// No event is lost if the counters run while their interrupt is serviced, and the status shows a wrap: an event
/// happens before each access. `exact.rs` has the other processors, and the operations.
#[test]
fn what_happens_while_a_wrap_is_serviced_is_counted() {
    let runs = |processor: &Processor| {
        processor.unit.global().is_some_and(|global| !global.stop_while_serviced)
    };
    let processor = processors(Deviations::NONE).into_iter().find(runs).expect("PerfMonV2");
    let (memory, table, reports) = (Memory::new(), Table::new(), RefCell::default());
    let (handler, passed) = (handler(&processor, &memory, &table, &reports), Cell::new(0));
    let more = |mock: &Mock<'_>| {
        if passed.get() > 0 {
            passed.set(passed.get() + 1);
            mock.pass(&mut happened(2, 1));
        }
    };
    let mock = processor.mock();
    mock.on_interrupt(&handler);
    mock.on_access(&more);
    let mut counters = processor.take(&mock, &memory, &table);
    let id = counters.open(&processor.unit, &[raw(2)]).unwrap();
    counters.enable(id, 0).unwrap();
    let mut expected = 0;
    for count in [1 << 47, 1 << 48, 1 << 48] {
        passed.set(1);
        happen(&mock, 2, count);
        let while_serviced = passed.take() - 1;
        assert!(while_serviced > 1, "the interrupt made accesses");
        expected += count + while_serviced;
        assert_eq!(total(&counters, id), expected);
    }
    counters.disable(id, 0).unwrap();
    assert_eq!(total(&counters, id), expected);
}

/// A counter that lost its contents holds 0, as if it had wrapped.
#[test]
fn a_total_of_lost_registers_is_an_error_until_they_are_programmed_again() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let events = [raw(0), raw(2), raw(3).every(0x1000).with_total()].map(|event| {
            let id = counters.open(&processor.unit, &[event]).unwrap();
            counters.enable(id, 0).unwrap();
            id
        });
        happen(&mock, 2, 55);
        // Stopped and started: this much is accumulated.
        counters.disable(events[1], 0).unwrap();
        counters.enable(events[1], 0).unwrap();
        mock.lose_registers();
        for id in events {
            let lost = Err(CounterError::RegistersLost);
            assert_eq!(counters.read(id, 0), lost, "{processor:?}");
        }
        assert_eq!(counters.reprogram(|o| panic!("{o:?}")).map(CounterSet::len), Ok(3));
        happen(&mock, 2, 7);
        assert_eq!(events.map(|id| total(&counters, id)), [0, 62, 0]);
    }
}

fn counter_place(counters: &Opened<'_, '_>, id: EventId) -> usize {
    counters.counter_of(id).unwrap().number().into()
}

/// Times of a caller who passes 0 in between, without a clock for an event of its own; and an added source, which has
/// none either.
#[test]
fn a_time_before_the_last_one_changes_no_event_s_times() {
    static ROW: AddedSource = AddedSource::new(
        ProfileSource::new(0x25, "ProfileAdded", EventSelect::from_bits(0x3_01D1)),
        CounterSet::GENERAL,
    );
    static ADDED: AddedSources<[AddedSlot; 1]> = AddedSources::new();
    let added: &AddedSources = &ADDED;
    added.add(&ROW).unwrap();
    let processor = Processor::intel(IntelConfiguration::new(4, 6, 3));
    let (mock, memory, table) = (processor.mock(), Memory::new(), Table::new());
    let emon = Emon::detect(&processor.snapshot).unwrap();
    let of = Events::new(&emon, &table).adding(added);
    let session = Session::take(of, &processor.snapshot, CounterSet::ALL, &mock, &memory);
    let mut session = session.unwrap();
    let counters = session.counters_mut();
    let [event, other] = [2, 3].map(|event| counters.open(&processor.unit, &[raw(event)]).unwrap());
    counters.enable(event, 1_000_000).unwrap();
    counters.enable(other, 0).unwrap();
    counters.read(event, 0).unwrap();
    counters.rotate(500).unwrap();
    session.start(KProfileSource::new(0x25).unwrap()).unwrap();
    let count = session.counters_mut().read(event, 1_000_010).unwrap();
    assert_eq!((count.enabled, count.running), (10, 10));
}

/// An event with a period has a total if it was asked for, before or after the period; an event without one always has.
#[test]
fn a_total_that_was_asked_for_is_kept_with_every_period() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        for (event, has_total) in [
            (raw(2), true),
            (raw(2).every(0x1000), false),
            (raw(2).every(0x1000).with_total(), true),
            (raw(2).with_total().every(0x1000), true),
            (raw(2).with_total().every(0x1000).every(0x2000), true),
            (raw(2).every(0x1000).every(0), true),
        ] {
            let context = format!("{processor:?}: {event:?}");
            let id = counters.open(&processor.unit, &[event]).unwrap();
            counters.enable(id, 0).unwrap();
            happen(&mock, 2, 77);
            let value = counters.read(id, 0).map(|count| count.value);
            let expected = if has_total { Ok(77) } else { Err(CounterError::NoTotal(id)) };
            assert_eq!(value, expected, "{context}");
            counters.close(id, 0).unwrap();
        }
        counters.shut_down().unwrap();
    }
}
