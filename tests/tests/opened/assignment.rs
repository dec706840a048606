//! Assignment of events to counters, and their turns, compared with exhaustive search.

use core::cell::RefCell;

use pmu_core::error::CounterError;
use pmu_core::interrupt::EventOverflow;
use pmu_core::memory::EventTable;
use pmu_core::profile::{KProfileSource, Session};
use pmu_core::registers::CounterId;
use pmu_core::{CounterSet, EventId, EventSource, Events, service};
use pmu_intel::Emon;
use pmu_tests::opened::*;
use pmu_tests::reports::{Report, service_reports};
use pmu_virt::configuration::IntelConfiguration;
use pmu_virt::mock::Deviations;

/// Returns whether there is an assignment of all these events to different counters.
fn assignable(events: &[CounterSet], free: CounterSet) -> bool {
    let Some((first, rest)) = events.split_first() else { return true };
    (*first & free).iter().any(|counter| assignable(rest, free.without(counter.only())))
}

/// Constrained events come and go at random: one is started exactly if all could have counters together.
#[test]
fn an_assignment_is_found_whenever_there_is_one() {
    let mut random = Random(0x1234_5678_9ABC_DEF1);
    let (mut found, mut refused) = (0, 0);
    for processor in processors(Deviations::NONE) {
        for _ in 0..60 {
            let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
            let mut counters = processor.take(&mock, &memory, &table);
            let own = counters.counters().usable;
            let all: Vec<CounterId> = own.iter().collect();
            let mut on: Vec<(EventId, CounterSet, u64, usize)> = vec![];
            for step in 0..24u64 {
                if random.below(3) == 0 && !on.is_empty() {
                    let (id, ..) = on.swap_remove(random.below(on.len() as u64) as usize);
                    counters.close(id, step).unwrap();
                    continue;
                }
                if on.len() == 12 {
                    continue;
                }
                let mut allowed = CounterSet::NONE;
                for _ in 0..1 + random.below(3) {
                    allowed = allowed | all[random.below(all.len() as u64) as usize].only();
                }
                let kind = 2 + random.below(6) as usize;
                // A fixed counter counts its own event, except a single one, which counts any.
                let fixed = allowed & CounterSet::FIXED;
                if !fixed.is_empty() && !(allowed & CounterSet::GENERAL).is_empty() {
                    allowed = allowed & CounterSet::GENERAL;
                } else if let Some(one) = fixed.iter().next() {
                    allowed = one.only();
                }
                let event = raw(kind).on(allowed);
                let id = counters.open(&processor.unit, &[event]).unwrap();
                let mut sets: Vec<CounterSet> = on.iter().map(|(_, set, ..)| *set).collect();
                sets.push(allowed);
                let context = format!("{processor:?}: {sets:?}");
                match counters.enable(id, step) {
                    Ok(()) => {
                        found += 1;
                        on.push((id, allowed, 0, kind));
                    }
                    Err(error) => {
                        refused += 1;
                        assert_eq!(error.reason, CounterError::NoFreeCounter);
                        assert!(!assignable(&sets, own), "{context}");
                        counters.close(id, step).unwrap();
                    }
                }
                // Each is on a counter of its own, that can count it, and counts on.
                let count = random.below(1000);
                for (id, allowed, total, of) in &mut on {
                    let counter = counters.counter_of(*id).expect(&context);
                    assert!(allowed.contains(counter), "{context}");
                    *total += if *of == kind && !counter.is_fixed() { count } else { 0 };
                }
                happen(&mock, kind, count);
                for (id, _, total, _) in &on {
                    let counter = counters.counter_of(*id).unwrap();
                    let read = counters.read(*id, step).unwrap().value;
                    assert!(counter.is_fixed() || read == *total, "{context}");
                }
                assert_eq!(running(&mock).len(), on.len(), "{context}");
            }
            counters.shut_down().unwrap();
        }
    }
    assert!(found > 500 && refused > 500, "{found}, {refused}");
}

fn general(number: u8) -> CounterSet {
    CounterId::general(number).unwrap().only()
}

/// Of two chains of moves the shorter one is taken.
#[test]
fn no_more_events_move_than_must() {
    let processor = Processor::intel(IntelConfiguration::new(4, 8, 0));
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let mut counters = processor.take(&mock, &memory, &table);
    let mut start = |set: CounterSet| {
        let id = counters.open(&processor.unit, &[raw(2).on(set)]).unwrap();
        counters.enable(id, 0).unwrap();
        (id, counters.counter_of(id).unwrap().only())
    };
    // 0 → 1 → 2 → 6 and 5 → 6; 3, 4 and 7 are others'.
    let fixed = [(0, 1), (1, 2), (2, 6), (5, 6)].map(|(on, other)| {
        let started = start(general(on) | general(other));
        assert_eq!(started.1, general(on));
        started
    });
    let (_, counter) = start(general(0) | general(5));
    assert_eq!(counter, general(5));
    let after = fixed.map(|(id, _)| counters.counter_of(id).unwrap().number());
    assert_eq!(after, [0, 1, 2, 6]);
}

/// An event that is to be started if a counter is free leaves the others where they are, though one of them could
/// move or give way; and one that rotates does not wait.
#[test]
fn an_event_that_starts_if_a_counter_is_free_disturbs_no_other() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let mut open = |event| counters.open(&processor.unit, &[event]).unwrap();
        let moves = open(raw(2));
        let gives_way = open(raw(3).on(general(1)).rotating());
        let refused =
            [raw(4).on(general(0)), raw(5).on(general(1)), raw(6).on(general(1)).rotating()];
        let refused = refused.map(open);
        counters.enable_if_free(moves, 0).unwrap();
        assert_eq!(counters.enable_if_free(moves, 0), Ok(()), "{processor:?}");
        counters.enable_if_free(gives_way, 0).unwrap();
        mock.clear();
        for event in refused {
            let outcome = counters.enable_if_free(event, 10);
            assert_eq!(outcome, Err(CounterError::NoFreeCounter), "{processor:?}");
            assert!(!counters.is_enabled(event));
            let count = counters.read(event, 20).unwrap();
            assert_eq!((count.enabled, count.running), (0, 0));
        }
        assert_eq!(mock.accesses().total(), 0, "{processor:?}");
        assert_eq!(counters.counter_of(moves), CounterId::general(0));
        assert_eq!(counters.counter_of(gives_way), CounterId::general(1));
        happen(&mock, 2, 7);
        assert_eq!(counters.read(moves, 100).unwrap().value, 7);
        counters.disable(moves, 100).unwrap();
        counters.enable_if_free(refused[0], 100).unwrap();
        assert_eq!(counters.counter_of(refused[0]), CounterId::general(0));
        counters.shut_down().unwrap();
    }
}

/// More events than counters: each has its turn within as many rotations as there are events, and scaled counts are
/// right where events happen evenly.
#[test]
fn events_that_are_more_than_the_counters_take_turns() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let general = processor.unit.counters() & CounterSet::GENERAL;
        let two: CounterSet = general.iter().take(2).collect();
        let mut counters = processor.take_only(two, &mock, &memory, &table);
        let events: Vec<EventId> = (0..5)
            .map(|n| counters.open(&processor.unit, &[raw(2 + n).rotating()]).unwrap())
            .collect();
        for event in &events {
            counters.enable(*event, 0).unwrap();
        }
        let mut turns = [0; 5];
        for tick in 0..10 {
            for (turn, event) in turns.iter_mut().zip(&events) {
                *turn += u32::from(counters.counter_of(*event).is_some());
            }
            (2..7).for_each(|kind| happen(&mock, kind, 600));
            counters.rotate(100 * (tick + 1)).unwrap();
        }
        assert_eq!(turns, [4; 5], "{processor:?}");
        for event in &events {
            let count = counters.read(*event, 1000).unwrap();
            assert_eq!((count.value, count.enabled, count.running), (2400, 1000, 400));
            assert_eq!(count.scaled(), Some(6000));
            assert!(counters.is_enabled(*event));
        }
        counters.shut_down().unwrap();
        assert_eq!(running(&mock), CounterSet::NONE);
    }
}

#[test]
fn rotation_touches_nothing_where_none_waits() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let id = counters.open(&processor.unit, &[raw(2).rotating()]).unwrap();
        counters.enable(id, 0).unwrap();
        mock.clear();
        counters.rotate(1).unwrap();
        assert_eq!(mock.accesses().total(), 0);
    }
}

/// An event that can be on one counter only has its turn though another event, which does not rotate, is
/// there: that one moves to the counter of one that does.
#[test]
fn a_turn_comes_also_where_another_event_must_move_for_it() {
    let processor = Processor::intel(IntelConfiguration::new(4, 2, 0));
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let mut counters = processor.take(&mock, &memory, &table);
    let unit = &processor.unit;
    let stays = counters.open(unit, &[raw(2)]).unwrap();
    let rotates = counters.open(unit, &[raw(3).rotating()]).unwrap();
    let narrow = counters.open(unit, &[raw(4).on(general(0)).rotating()]).unwrap();
    for event in [stays, rotates, narrow] {
        counters.enable(event, 0).unwrap();
    }
    assert_eq!(counters.counter_of(stays), CounterId::general(0));
    counters.rotate(1).unwrap();
    assert_eq!(counters.counter_of(narrow), CounterId::general(0));
    assert_eq!(counters.counter_of(stays), CounterId::general(1));
    assert_eq!(counters.counter_of(rotates), None);
    counters.rotate(2).unwrap();
    assert!(counters.counter_of(rotates).is_some() && counters.counter_of(stays).is_some());
}

/// At random, every event that can have a counter beside those that do not rotate has one from time to time.
#[test]
fn each_event_has_its_turn_whatever_its_counters() {
    let mut random = Random(0xABCD_EF01_2345_6789);
    for _ in 0..200 {
        let processor = Processor::intel(IntelConfiguration::new(2, 4, 0));
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let own = counters.counters().usable;
        let mut events = vec![];
        let mut staying: Vec<CounterSet> = vec![];
        for n in 0..9 {
            let set = CounterSet::from_bits(1 + random.below(15));
            let rotates = random.below(3) > 0;
            let event = raw(2 + n % 6).on(set);
            let event = if rotates { event.rotating() } else { event };
            let id = counters.open(&processor.unit, &[event]).unwrap();
            match counters.enable(id, 0) {
                Ok(()) if rotates => events.push((id, set)),
                Ok(()) => staying.push(set),
                Err(error) => assert_eq!(error.reason, CounterError::NoFreeCounter),
            }
        }
        let mut had = vec![0; events.len()];
        for tick in 1..40 {
            counters.rotate(tick).unwrap();
            for (turns, (id, _)) in had.iter_mut().zip(&events) {
                *turns += u32::from(counters.counter_of(*id).is_some());
            }
        }
        for (turns, (id, set)) in had.iter().zip(&events) {
            let mut with = staying.clone();
            with.push(*set);
            let can = assignable(&with, own);
            assert_eq!(*turns > 0, can, "{id:?} on {set:?} beside {staying:?}: {turns}");
        }
    }
}

/// A source moves no further than general counters, and gives way to an event that needs its counter.
#[test]
fn a_source_gives_way_to_an_event_and_goes_on() {
    for version in [2, 4, 5, 6] {
        let processor = Processor::intel(IntelConfiguration::new(version, 2, 2));
        let emon = Emon::detect(&processor.snapshot).unwrap();
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let both = Events::new(&emon, &table);
        let reports = RefCell::new(vec![]);
        let handler = |mock: &Mock<'_>| {
            service_reports(&both, mock, &memory, |report| reports.borrow_mut().push(report))
                .unwrap();
        };
        mock.on_interrupt(&handler);
        let source = KProfileSource::TOTAL_CYCLES;
        emon.set_interval(source, 0x1000).unwrap();
        let snapshot = &processor.snapshot;
        let mut session = Session::take(both, snapshot, CounterSet::ALL, &mock, &memory).unwrap();
        session.start(source).unwrap();
        happen(&mock, 1, 0x800);
        let counters = session.counters_mut();
        let event = raw(2).on(general(0)).every(0x1000);
        let id = counters.open(&processor.unit, &[event]).unwrap();
        counters.enable(id, 0).unwrap();
        assert_eq!(counters.counter_of(id), CounterId::general(0));
        assert_eq!(session.read(source), Ok(0x800));
        happen(&mock, 1, 0x7FF);
        assert_eq!(reports.take(), []);
        happen(&mock, 1, 1);
        happen(&mock, 2, 0x1000);
        let found = reports.take();
        assert!(
            matches!(
                found[..],
                [Report::Source(first), Report::Event(EventOverflow { event, period: 0x1000, .. })]
                    if first.source == source && first.events == 0x1000 && event == id
            ),
            "{found:?}"
        );
        session.shut_down().unwrap();
        assert_eq!(running(&mock), CounterSet::NONE);
    }
}

/// Rotation takes the counter of an event that interrupts: the rest of its period goes on at its next turn.
#[test]
fn a_period_goes_on_over_turns() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let reports = RefCell::new(vec![]);
        let handler = |mock: &Mock<'_>| {
            let source = Events::new(&processor.unit, &table as &EventTable);
            let push = |overflow: EventOverflow| reports.borrow_mut().push(overflow.event);
            service(&source, mock, &memory, |sample| push(*sample)).unwrap();
        };
        mock.on_interrupt(&handler);
        let mut general = (processor.unit.counters() & CounterSet::GENERAL).iter();
        let one = general.next().unwrap().only();
        let mut counters = processor.take_only(one, &mock, &memory, &table);
        let events = [2, 3].map(|kind| {
            let event = raw(kind).every(0x1000).rotating();
            let id = counters.open(&processor.unit, &[event]).unwrap();
            counters.enable(id, 0).unwrap();
            id
        });
        let mut expected = vec![];
        let mut since = [0, 0];
        for tick in 1..20 {
            for place in [0, 1] {
                happen(&mock, 2 + place, 0x600);
                if counters.counter_of(events[place]).is_some() {
                    since[place] += 0x600;
                    if since[place] >= 0x1000 {
                        since[place] -= 0x1000;
                        expected.push(events[place]);
                    }
                }
            }
            counters.rotate(tick).unwrap();
        }
        assert_eq!(reports.take(), expected, "{processor:?}");
        assert!(expected.len() > 4);
    }
}

/// An event that does not rotate, and a source, take the counter of one that does.
#[test]
fn rotating_events_give_way() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let unit = &processor.unit;
        // One more than there are counters: it waits.
        let mut rotating = vec![];
        while rotating.last().is_none_or(|id| counters.counter_of(*id).is_some()) {
            let id = counters.open(unit, &[raw(2).rotating()]).unwrap();
            counters.enable(id, 5).unwrap();
            rotating.push(id);
        }
        let on_counters = |counters: &Opened<'_, '_>| {
            rotating.iter().filter(|id| counters.counter_of(**id).is_some()).count()
        };
        let before = on_counters(&counters);
        let pinned = counters.open(unit, &[raw(2)]).unwrap();
        counters.enable(pinned, 15).unwrap();
        assert!(counters.counter_of(pinned).is_some());
        assert_eq!(on_counters(&counters), before - 1, "{processor:?}");
        // The one that gave way waits from then on; the last one waited from the beginning.
        let waiting = rotating.iter().filter(|id| counters.counter_of(**id).is_none());
        let times = waiting.map(|id| counters.read(*id, 25).unwrap());
        let times: Vec<_> = times.map(|count| (count.enabled, count.running)).collect();
        assert_eq!(times.iter().filter(|times| **times == (20, 10)).count(), 1, "{times:?}");
        assert_eq!(times.iter().filter(|times| **times == (20, 0)).count(), 1, "{times:?}");
        counters.rotate(30).unwrap();
        assert!(counters.counter_of(pinned).is_some(), "it keeps its counter");
        counters.shut_down().unwrap();
    }
}
