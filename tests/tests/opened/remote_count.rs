//! Counts of events on another processor, from its memory alone.

use core::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use pmu_core::error::CounterError;
use pmu_core::reading::{RemoteCount, remote_count};
use pmu_core::{CounterSet, EventCount, EventId, Events, service};
use pmu_tests::opened::operations::general;
use pmu_tests::opened::*;
use pmu_virt::mock::{Deviations, Fault};

const PERIOD: u64 = 0x1000;

fn of(value: u64, enabled: u64, running: u64) -> EventCount {
    EventCount { value, enabled, running }
}

/// An event that samples, one that is counted only, and one that waits: started, counted, interrupted, stopped.
#[test]
fn a_count_is_current_off_its_counter_and_has_its_age_on_it() {
    for processor in processors(Deviations::NONE) {
        let context = format!("{processor:?}");
        let (memory, table) = (Memory::new(), Table::new());
        let source = Events::new(&processor.unit, &table);
        let handler = |mock: &Mock<'_>| {
            service(&source, mock, &memory, |_| ()).unwrap();
        };
        let mock = processor.mock();
        mock.on_interrupt(&handler);
        let mut counters = processor.take(&mock, &memory, &table);
        let one = general(&processor, 0);
        let mut open = |event| counters.open(&processor.unit, &[event]).unwrap();
        let sampled = open(raw(2).every(PERIOD).with_total().on(one));
        let counted = open(raw(3));
        let waits = open(raw(4).on(one).rotating());
        let untotaled = open(raw(5).every(PERIOD));
        let remote = |event, now| remote_count(&table, &memory, event, now);
        mock.clear();
        assert_eq!(remote(sampled, 7), Ok(RemoteCount::Current(of(0, 0, 0))), "{context}");
        assert_eq!(remote(untotaled, 7), Err(CounterError::NoTotal(untotaled)));
        assert_eq!(mock.accesses().total(), 0, "{context}");
        for event in [sampled, counted, waits] {
            counters.enable(event, 100).unwrap();
        }
        happen(&mock, 2, PERIOD + 9);
        happen(&mock, 3, 9);
        mock.clear();
        let older = |count, lacks| Ok(RemoteCount::Older { count, lacks });
        assert_eq!(remote(sampled, 120), older(of(PERIOD, 0, 0), Some(PERIOD)), "{context}");
        assert_eq!(remote(counted, 120), older(of(0, 0, 0), None), "{context}");
        let waiting = of(0, 20, 0);
        assert_eq!(remote(waits, 120), Ok(RemoteCount::Current(waiting)), "{context}");
        assert_eq!(mock.accesses().total(), 0, "{context}");
        // While the counters are lent, the event keeps its counter.
        let window = counters.lend(130, |o| panic!("{o:?}")).unwrap();
        let lent = older(of(PERIOD, 30, 30), Some(PERIOD));
        assert_eq!(remote(sampled, 140), lent, "{context}");
        window.end(130).unwrap();
        counters.disable(sampled, 140).unwrap();
        counters.disable(counted, 140).unwrap();
        let current = |count| Ok(RemoteCount::Current(count));
        assert_eq!(remote(sampled, 200), current(of(PERIOD + 9, 40, 40)), "{context}");
        assert_eq!(remote(counted, 200), current(of(9, 40, 40)), "{context}");
        counters.close(counted, 140).unwrap();
        assert_eq!(remote(counted, 200), Err(CounterError::NoSuchEvent(counted)), "{context}");
        counters.shut_down().unwrap();
    }
}

#[test]
fn a_count_whose_counter_faulted_is_left_to_its_processor() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let source = Events::new(&processor.unit, &table);
        let mut counters = processor.take(&mock, &memory, &table);
        let event = raw(2).every(PERIOD).with_total();
        let event = counters.open(&processor.unit, &[event]).unwrap();
        counters.enable(event, 0).unwrap();
        mock.pass(&mut happened(2, PERIOD));
        mock.inject(Fault::From(1));
        service(&source, &mock, &memory, |_| ()).unwrap_err();
        mock.inject(Fault::None);
        assert!(!counters.is_enabled(event));
        let found = remote_count(&table, &memory, event, 0);
        assert_eq!(found, Ok(RemoteCount::Changing), "{processor:?}");
        counters.shut_down().unwrap();
        assert_eq!(running(&mock), CounterSet::NONE);
    }
}

/// One thread counts, by tens between a start and a stop, and samples within; the other reads. What is said to be
/// current is a whole number of rounds, and never goes back; what is older is no more than there was.
#[test]
fn a_current_count_that_another_processor_reads_is_never_torn() {
    const ROUNDS: u64 = 300;
    const EVENTS: u64 = 2 * PERIOD + 10;
    let (memory, table, done) = (Memory::new(), Table::new(), AtomicBool::new(false));
    let event = EventId::of_index(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let processor = plain(4);
            let source = Events::new(&processor.unit, &table);
            let handler = |mock: &Mock<'_>| {
                service(&source, mock, &memory, |_| ()).unwrap();
            };
            let mock = processor.mock();
            mock.on_interrupt(&handler);
            let mut counters = processor.take(&mock, &memory, &table);
            let sampled = raw(2).every(PERIOD).with_total();
            assert_eq!(counters.open(&processor.unit, &[sampled]), Ok(event));
            for _ in 0..ROUNDS {
                counters.enable(event, 0).unwrap();
                happen(&mock, 2, EVENTS);
                counters.disable(event, 0).unwrap();
            }
            // The session is not shut down, so that the event stays open.
            done.store(true, Ordering::Release);
        });
        let mut last = 0;
        loop {
            let is_done = done.load(Ordering::Acquire);
            match remote_count(&table, &memory, event, 0) {
                Ok(RemoteCount::Current(count)) => {
                    assert_eq!(count.value % EVENTS, 0, "a part of a round");
                    assert!(count.value >= last, "{} after {last}", count.value);
                    last = count.value;
                }
                Ok(RemoteCount::Older { count, lacks }) => {
                    assert!(count.value <= ROUNDS * EVENTS && lacks.unwrap() <= PERIOD);
                }
                Ok(RemoteCount::Changing) | Err(CounterError::NoSuchEvent(_)) => {}
                Err(error) => panic!("{error}"),
            }
            if is_done {
                break;
            }
        }
        assert_eq!(last, ROUNDS * EVENTS);
    });
}
