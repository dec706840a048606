//! Counters that are suspended, and what a kernel may do with their events meanwhile.

use pmu_core::error::CounterError;
use pmu_core::{CounterSet, EventStatus};
use pmu_tests::opened::operations::general;
use pmu_tests::opened::*;
use pmu_virt::mock::Deviations;

/// Events that end while the counters are suspended leave their counters to others.
#[test]
fn an_event_that_is_closed_or_stopped_during_a_suspend_leaves_its_counter() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let only = [0, 1, 2].map(|number| general(&processor, number));
        let only = only.into_iter().fold(CounterSet::NONE, |all, one| all | one);
        let mut counters = processor.take_only(only, &mock, &memory, &table);
        let [closed, stopped, stays, next] =
            [2, 3, 4, 5].map(|kind| counters.open(&processor.unit, &[raw(kind)]).unwrap());
        for event in [closed, stopped, stays] {
            counters.enable(event, 0).unwrap();
        }
        (2..5).for_each(|kind| happen(&mock, kind, 7));
        counters.suspend(10, |o| panic!("{o:?}")).unwrap();
        let context = format!("{processor:?}");
        mock.clear();
        // The window's rules hold: nothing is programmed.
        let not_available = |error| matches!(error, CounterError::NotAvailable(_));
        assert!(counters.reprogram(|o| panic!("{o:?}")).is_err_and(not_available), "{context}");
        assert!(counters.enable(next, 10).is_err(), "{context}");
        assert_eq!(counters.close(closed, 10).unwrap().value, 7, "{context}");
        counters.disable(stopped, 10).unwrap();
        assert_eq!(mock.accesses().total(), 0, "{context}");
        mock.lose_registers();
        let loaded = counters.resume(30, |o| panic!("{o:?}")).unwrap();
        let on = counters.counter_of(stays).unwrap().only();
        assert_eq!((running(&mock), loaded), (on, on), "{context}");
        for event in [stopped, next] {
            counters.enable(event, 30).unwrap();
        }
        (2..6).for_each(|kind| happen(&mock, kind, 1));
        let counts = [stopped, stays, next].map(|event| counters.read(event, 40).unwrap());
        assert_eq!(counts.map(|count| count.value), [8, 8, 1], "{context}");
        assert_eq!(counts.map(|count| count.enabled), [20, 20, 10], "{context}");
        counters.shut_down().unwrap();
        assert_eq!(running(&mock), CounterSet::NONE, "{context}");
    }
}

/// A window after a suspend, and a resume after a window that was dropped: both bring the events back.
#[test]
fn a_suspend_and_a_window_bring_each_other_s_events_back() {
    for processor in processors(Deviations::NONE) {
        for suspends in [true, false] {
            let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
            let mut counters = processor.take(&mock, &memory, &table);
            let context = format!("{processor:?}, {suspends}");
            let event = raw(2).every(0x1000).with_total();
            let event = counters.open(&processor.unit, &[event]).unwrap();
            counters.enable(event, 0).unwrap();
            happen(&mock, 2, 0x700);
            let not = |o: pmu_core::interrupt::EventOverflow| panic!("{o:?}");
            if suspends {
                counters.suspend(0, |sample| not(*sample)).unwrap();
                counters.lend(0, |sample| not(*sample)).unwrap().end(0).unwrap();
            } else {
                drop(counters.lend(0, |sample| not(*sample)).unwrap());
                mock.lose_registers();
                counters.resume(0, |sample| not(*sample)).unwrap();
            }
            assert!(matches!(counters.event_status(event), Ok(EventStatus::Active(_))));
            // The counts before a dropped window are lost.
            let before = if suspends { 0x700 } else { 0 };
            happen(&mock, 2, 5);
            assert_eq!(total(&counters, event), before + 5, "{context}");
            let mut reported = 0;
            let source = pmu_core::Events::new(&processor.unit, &table);
            happen(&mock, 2, 0x1000 - before - 6);
            counters.lend(0, |_| reported += 1).unwrap().end(0).unwrap();
            assert_eq!(reported, 0, "{context}");
            mock.pass(&mut happened(2, 1));
            pmu_core::service(&source, &&mock, &memory, |_| reported += 1).unwrap();
            assert_eq!(reported, 1, "{context}");
            counters.shut_down().unwrap();
        }
    }
}
