//! Operations and interrupts between a window that was forgotten and the next one.

use pmu_core::thread::ThreadEvent;
use pmu_core::{CounterSet, service};
use pmu_tests::opened::operations::general;
use pmu_tests::opened::*;
use pmu_virt::mock::Deviations;

/// The interrupt's delivery masked the entry, and the next window forgot that an interrupt had come.
#[test]
fn an_interrupt_in_a_forgotten_window_does_not_leave_the_entry_masked() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let source = pmu_core::Events::new(&processor.unit, &table);
        let mut counters = processor.take(&mock, &memory, &table);
        let entry = mock.performance_entry();
        let window = counters.lend(0, |o| panic!("{o:?}")).unwrap();
        mock.set_performance_entry(1 << 16 | entry);
        assert!(service(&source, &mock, &memory, |o| panic!("{o:?}")).unwrap().lent);
        drop(window);
        counters.lend(0, |o| panic!("{o:?}")).unwrap().end(0).unwrap();
        assert_eq!(mock.performance_entry(), entry, "{processor:?}");
    }
}

/// The tick's rotation found the event without a counter. The event came back to it as one that waits, so that none of
/// its time there was running time.
#[test]
fn a_rotating_event_that_counts_after_a_forgotten_window_and_a_rotation_runs() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let only = general(&processor, 0);
        let mut counters = processor.take_only(only, &mock, &memory, &table);
        let event = raw(2).rotating().with_total();
        let event = counters.open(&processor.unit, &[event]).unwrap();
        counters.enable(event, 10).unwrap();
        drop(counters.lend(20, |o| panic!("{o:?}")).unwrap());
        counters.rotate(30).unwrap();
        counters.lend(40, |o| panic!("{o:?}")).unwrap().end(50).unwrap();
        counters.rotate(60).unwrap();
        let before = counters.read(event, 70).unwrap();
        happen(&mock, 2, 5);
        let after = counters.read(event, 80).unwrap();
        assert_eq!((after.value - before.value, after.running - before.running), (5, 10));
    }
}

/// A thread's event took the place of another one in the table, and its counter with it, which cannot count it.
#[test]
fn an_event_in_the_place_of_another_is_not_counted_on_the_others_counter() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let [first, second] =
            [0, 1].map(|n| counters.counters().usable.iter().nth(n).unwrap().only());
        let open = |counters: &mut Opened<'_, '_>, only| {
            let event = raw(2).with_total().on(only);
            counters.open(&processor.unit, &[event]).unwrap()
        };
        let other = open(&mut counters, second);
        counters.enable(other, 0).unwrap();
        let mut thread = [ThreadEvent::Opened(other)];
        counters.switch_out(&mut thread, 0, |o| panic!("{o:?}")).unwrap();
        let event = open(&mut counters, first);
        counters.enable(event, 0).unwrap();
        drop(counters.lend(0, |o| panic!("{o:?}")).unwrap());
        let _ = counters.switch_out(&mut [ThreadEvent::Opened(event)], 0, |o| panic!("{o:?}"));
        counters.switch_in(&processor.unit, &mut thread, 0).unwrap();
        assert_eq!(thread, [ThreadEvent::Opened(event)], "in the same place");
        counters.lend(0, |o| panic!("{o:?}")).unwrap().end(0).unwrap();
        assert_eq!(running(&mock), CounterSet::NONE, "{processor:?}");
    }
}
