//! Windows that end with a fault, fail, or are forgotten.

use core::cell::RefCell;

use super::borrower::*;
use pmu_core::error::{CounterError, EventsError};
use pmu_core::lending::WindowError;
use pmu_core::thread::ThreadEvent;
use pmu_core::{CounterSet, service};
use pmu_tests::opened::*;
use pmu_virt::mock::{Deviations, Fault};

/// A fault at any access that passes: done, and exact. It is tried again at the same place.
#[test]
fn a_fault_that_passes_leaves_everything_exact() {
    for processor in processors(Deviations::NONE) {
        for (at, at_end) in (1..24).flat_map(|at| [(at, false), (at, true)]) {
            counting(&processor, |mock, mut counters, events, reports| {
                let before = state(mock);
                if !at_end {
                    mock.inject(Fault::At(at));
                }
                let mut window = counters.lend(0, |o| panic!("{o:?}")).unwrap();
                mock.inject(Fault::None);
                borrow(&processor, mock, window.lent(), at % 2 == 0);
                if at_end {
                    mock.inject(Fault::At(at));
                }
                window.end(0).unwrap();
                mock.inject(Fault::None);
                assert_eq!(state(mock), before, "{processor:?}, {at}, {at_end}");
                assert_exact(&processor, mock, &counters, events, reports, 0x700);
            });
        }
    }
}

/// One register does not answer: that counter alone is missing, with those of its event's group. The error names it.
#[test]
fn a_register_that_stays_faulted_takes_its_own_counter_and_its_group_alone() {
    for processor in processors(Deviations::NONE) {
        let own: Vec<_> =
            processor.unit.iter().filter(|(counter, _)| !counter.is_fixed()).collect();
        for (place, broken) in own.iter().take(3).flat_map(|(counter, registers)| {
            [registers.control().register().get(), registers.value_register().get()]
                .map(|register| (counter.only(), register))
        }) {
            let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
            let mut counters = processor.take(&mock, &memory, &table);
            let events = open(&processor, &mut counters);
            kinds(&processor).iter().for_each(|kind| happen(&mock, *kind, 0x700));
            let before = state(&mock);
            let on: Vec<_> = events.iter().map(|event| counters.counter_of(*event)).collect();
            let mut window = counters.lend(0, |o| panic!("{o:?}")).unwrap();
            borrow(&processor, &mock, window.lent(), true);
            mock.inject(Fault::Register(broken));
            let ended = window.end(0);
            mock.inject(Fault::None);
            let used = on.iter().flatten().any(|counter| place.contains(*counter));
            // A preload may go to the counter's other address.
            if !used || ended == Ok(()) && before == state(&mock) {
                continue;
            }
            let WindowError { counters: lost, fault } = ended.unwrap_err();
            let group: CounterSet = on.iter().skip(3).flatten().copied().collect();
            let expected = if (group & place).is_empty() { place } else { group };
            assert_eq!((lost, fault.register), (expected, broken), "{processor:?}");
            for (event, on) in events.iter().zip(on) {
                let runs = on.is_some_and(|counter| !lost.contains(counter));
                assert_eq!(counters.counter_of(*event), on.filter(|_| runs), "{processor:?}");
                if runs {
                    assert_eq!(total(&counters, *event), 0x700, "{processor:?}");
                }
            }
            assert_eq!(running(&mock) & place, CounterSet::NONE, "{processor:?}");
            let _ = counters.reprogram(|o| panic!("{o:?}")).unwrap();
            assert!(counters.counters().usable.without(place) != counters.counters().usable);
        }
    }
}

/// Nothing can be written any more while the window ends: every counter is named.
#[test]
fn a_second_fault_does_not_hide_the_first() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let events = open(&processor, &mut counters);
        let on: CounterSet =
            events.iter().filter_map(|event| counters.counter_of(*event)).collect();
        let mut window = counters.lend(0, |o| panic!("{o:?}")).unwrap();
        borrow(&processor, &mock, window.lent(), true);
        mock.inject(Fault::From(1));
        let error = window.end(0).unwrap_err();
        mock.inject(Fault::None);
        assert_eq!(error.counters, on, "{processor:?}");
        assert_eq!(running(&mock), CounterSet::NONE, "{processor:?}");
        let _ = counters.reprogram(|o| panic!("{o:?}")).unwrap();
        for event in &events[..3] {
            if counters.is_enabled(*event) {
                counters.disable(*event, 0).unwrap();
            }
            counters.enable(*event, 0).unwrap();
        }
        let on: CounterSet =
            events.iter().filter_map(|event| counters.counter_of(*event)).collect();
        assert_eq!(running(&mock), on, "{processor:?}");
    }
}

/// `?` between the beginning and the end of a window drops it, with what a guest left.
#[test]
fn a_forgotten_window_is_recovered_by_the_end_of_the_next_one() {
    for processor in processors(Deviations::NONE) {
        let (memory, table) = (Memory::new(), Table::new());
        let reports = RefCell::new(vec![]);
        let handler = |mock: &Mock<'_>| {
            let source = pmu_core::Events::new(&processor.unit, &table);
            let _ = service(&source, mock, &memory, |o| reports.borrow_mut().push(*o));
        };
        let mock = processor.mock();
        mock.on_interrupt(&handler);
        let mut counters = processor.take(&mock, &memory, &table);
        let usable = counters.counters();
        let events = open(&processor, &mut counters);
        kinds(&processor).iter().for_each(|kind| happen(&mock, *kind, 0x700));
        let mut window = counters.lend(0, |o| panic!("{o:?}")).unwrap();
        borrow(&processor, &mock, window.lent(), false);
        drop(window);
        // Nothing is done with counters that are another owner's.
        let not_available = |error| matches!(error, CounterError::NotAvailable(_));
        mock.clear();
        assert!(counters.reprogram(|o| panic!("{o:?}")).is_err_and(not_available));
        assert!(counters.take_more(&processor.unit, usable.usable).is_err_and(not_available));
        assert_eq!(counters.enable(events[1], 0), Ok(())); // It is enabled.
        assert_eq!(mock.accesses().total(), 0, "{processor:?}");
        counters.lend(0, |o| panic!("{o:?}")).unwrap().end(0).unwrap();
        assert_eq!(reports.take(), []);
        let on: CounterSet =
            events.iter().filter_map(|event| counters.counter_of(*event)).collect();
        assert_eq!((running(&mock), on.len()), (on, events.len()), "{processor:?}");
        // Their periods begin anew, and what was counted before is lost.
        assert_exact(&processor, &mock, &counters, &events, &reports, 0);
        assert_eq!(counters.counters().usable, usable.usable);
        // Shut down while they are lent, no counter runs, and whoever comes next has them.
        drop(counters.lend(0, |o| panic!("{o:?}")).unwrap());
        counters.shut_down().unwrap();
        assert_eq!(running(&mock), CounterSet::NONE, "{processor:?}");
        let mut next = processor.take(&mock, &memory, &table);
        assert_eq!(next.counters().usable, usable.usable);
        next.shut_down().unwrap();
    }
}

/// Nothing is left over where a lend fails for good: everything goes on, or the error says that it does not.
#[test]
fn a_lend_that_fails_lends_nothing() {
    for processor in processors(Deviations::NONE) {
        for from in 1..20 {
            let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
            let mut counters = processor.take(&mock, &memory, &table);
            let events = open(&processor, &mut counters);
            let before = state(&mock);
            let mut failed = None;
            for fault in [Fault::From(from), Fault::Register(0x38E), Fault::Register(0x186)] {
                mock.inject(fault);
                failed = failed.or(counters.lend(0, |o| panic!("{o:?}")).map(|_| ()).err());
                mock.inject(Fault::None);
            }
            let Some(error) = failed else { continue };
            let on: CounterSet =
                events.iter().filter_map(|event| counters.counter_of(*event)).collect();
            match error {
                CounterError::Unchanged(_) if state(&mock) == before => {
                    assert_eq!(running(&mock), on, "{processor:?}");
                }
                CounterError::Unchanged(_) | CounterError::StateUnknown(_) => {
                    assert_eq!(
                        on.without(running(&mock)),
                        CounterSet::NONE,
                        "{processor:?}, {from}"
                    );
                }
                other => panic!("{processor:?}: {other:?}"),
            }
        }
    }
}

/// A thread's events are switched out after a window that was forgotten: their counters are free.
#[test]
fn an_event_that_went_away_after_a_forgotten_window_does_not_come_back() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let event = counters.open(&processor.unit, &[raw(2)]).unwrap();
        counters.enable(event, 0).unwrap();
        drop(counters.lend(0, |o| panic!("{o:?}")).unwrap());
        let mut thread = [ThreadEvent::Opened(event)];
        let lost = counters.switch_out(&mut thread, 0, |o| panic!("{o:?}"));
        let reason = CounterError::CounterLost(event);
        assert_eq!(lost, Err(EventsError { events: 1, reason }), "its count is");
        counters.lend(0, |o| panic!("{o:?}")).unwrap().end(0).unwrap();
        assert_eq!(running(&mock), CounterSet::NONE, "{processor:?}");
        counters.switch_in(&processor.unit, &mut thread, 0).unwrap();
        assert_eq!(running(&mock).len(), 1, "{processor:?}");
    }
}
