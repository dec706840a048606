//! Groups that take turns, and groups of threads: whole on a processor's counters, or not at all.

use pmu_core::error::{CounterError, EventsError};
use pmu_core::thread::ThreadEvent;
use pmu_core::{CounterSet, EventCount, EventId};
use pmu_tests::groups::*;
use pmu_tests::opened::*;
use pmu_virt::configuration::IntelConfiguration;
use pmu_virt::mock::Deviations;

/// Returns the number of a group's events that have counters.
fn on_counters(counters: &Opened<'_, '_>, group: EventId) -> usize {
    counters.group_events(group).filter(|event| counters.counter_of(*event).is_some()).count()
}

/// Three groups of two events on three counters: each is on counters for a third of the time, and scaled counts are
/// right where events happen evenly.
#[test]
fn groups_that_are_more_than_the_counters_take_turns() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let general = processor.unit.counters() & CounterSet::GENERAL;
        let three: CounterSet = general.iter().take(3).collect();
        let mut counters = processor.take_only(three, &mock, &memory, &table);
        let groups = [2, 4, 6].map(|kind| {
            let events = [raw(kind).rotating(), raw(kind + 1)];
            counters.open(&processor.unit, &events).unwrap()
        });
        for group in groups {
            counters.enable(group, 0).unwrap();
        }
        for tick in 0..12 {
            let on: Vec<usize> =
                groups.iter().map(|group| on_counters(&counters, *group)).collect();
            assert_eq!(on.iter().filter(|on| **on == 2).count(), 1, "{processor:?}: {on:?}");
            assert_eq!(on.iter().sum::<usize>(), 2, "{processor:?}: {on:?}");
            (2..8).for_each(|kind| happen(&mock, kind, 600));
            counters.rotate(100 * (tick + 1)).unwrap();
        }
        for group in groups {
            let mut counts = [EventCount::default(); 3];
            assert_eq!(counters.read_group(group, 1200, &mut counts), Ok(2));
            for count in &counts[..2] {
                assert_eq!((count.value, count.enabled, count.running), (2400, 1200, 400));
                assert_eq!(count.scaled(), Some(7200));
            }
        }
        counters.shut_down().unwrap();
        assert_eq!(running(&mock), CounterSet::NONE);
    }
}

/// At random, every group that can be counted beside what does not rotate has a turn, and is never counted in part.
#[test]
fn each_group_has_its_turn_whatever_its_counters() {
    let mut random = Random(0xFEDC_BA98_7654_3211);
    let (mut with_turns, mut without) = (0, 0);
    for _ in 0..150 {
        let processor = Processor::intel(IntelConfiguration::new(4, 5, 2));
        let (memory, table, mock) = (Memory::new(), LargeTable::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let own = counters.counters().usable;
        let (mut groups, mut staying) = (vec![], vec![]);
        for n in 0..7 {
            let sets: Vec<CounterSet> =
                (0..1 + random.below(3)).map(|_| some_counters(&mut random, own)).collect();
            let rotates = random.below(3) > 0;
            let events: Vec<_> = sets.iter().map(|set| raw(2 + n % 6).on(*set)).collect();
            let events: Vec<_> = events
                .into_iter()
                .map(|event| if rotates { event.rotating() } else { event })
                .collect();
            let Ok(group) = counters.open(&processor.unit, &events) else { continue };
            match counters.enable(group, 0) {
                Ok(()) if rotates => groups.push((group, sets)),
                Ok(()) => staying.extend(sets),
                Err(error) => {
                    assert_eq!(error.reason, CounterError::NoFreeCounter);
                    counters.close(group, 0).unwrap();
                }
            }
        }
        let mut turns = vec![0; groups.len()];
        for tick in 1..40 {
            counters.rotate(tick).unwrap();
            for (turns, (group, sets)) in turns.iter_mut().zip(&groups) {
                let on = on_counters(&counters, *group);
                assert!(on == 0 || on == sets.len(), "{on} of {sets:?}");
                *turns += usize::from(on != 0);
            }
        }
        for (turns, (group, sets)) in turns.iter().zip(&groups) {
            let with = [staying.clone(), sets.clone()].concat();
            assert_eq!(*turns > 0, have_counters(&with), "{sets:?} beside {staying:?}");
            let mut counts = [EventCount::default(); 3];
            let read = counters.read_group(*group, 40, &mut counts).unwrap();
            assert!(counts[..read].iter().all(|of| of.running == counts[0].running), "{counts:?}");
            assert!(counts[..read].iter().all(|of| of.enabled == 40), "{counts:?}");
            if *turns > 0 { with_turns += 1 } else { without += 1 }
        }
    }
    assert!(with_turns > 200 && without > 10, "{with_turns}, {without}");
}

/// An event that does not rotate takes the counter of a group: the whole group waits, and a group that is not in its
/// way goes on.
#[test]
fn a_group_gives_way_as_a_whole() {
    let processor = Processor::intel(IntelConfiguration::new(2, 5, 0));
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let mut counters = processor.take(&mock, &memory, &table);
    let unit = &processor.unit;
    let open = |counters: &mut Opened<'_, '_>, on: [u64; 2]| {
        let events = on.map(|bits| raw(2).on(CounterSet::from_bits(bits)).rotating());
        let group = counters.open(unit, &events).unwrap();
        counters.enable(group, 0).unwrap();
        group
    };
    // It keeps its first event off the counter that it would have had first.
    let passing = counters.open(unit, &[raw(4)]).unwrap();
    counters.enable(passing, 0).unwrap();
    let elsewhere = open(&mut counters, [0b00011, 0b00100]);
    let in_the_way = open(&mut counters, [0b01000, 0b10000]);
    counters.close(passing, 0).unwrap();
    happen(&mock, 2, 5);
    let last = CounterSet::from_bits(0b10000);
    let event = counters.open(unit, &[raw(3).on(last)]).unwrap();
    counters.enable(event, 10).unwrap();
    assert_eq!([elsewhere, in_the_way].map(|group| on_counters(&counters, group)), [2, 0]);
    let place = |number: usize| counters.group_events(elsewhere).nth(number).unwrap();
    let places = [0, 1].map(|number| counters.counter_of(place(number)).unwrap().number());
    assert_eq!(places, [1, 2], "it did not move");
    let mut counts = [EventCount::default(); 2];
    counters.read_group(in_the_way, 25, &mut counts).unwrap();
    assert_eq!(counts.map(|count| (count.value, count.enabled, count.running)), [(5, 25, 10); 2]);
}

fn opened_events(thread: &[ThreadEvent]) -> Vec<EventId> {
    let id = |event: &ThreadEvent| match event {
        ThreadEvent::Opened(id) => Some(*id),
        _ => None,
    };
    thread.iter().filter_map(id).collect()
}

#[test]
fn a_threads_group_follows_it_as_a_whole() {
    for processor in processors(Deviations::NONE) {
        let unit = &processor.unit;
        let (memories, tables) = ([Memory::new(), Memory::new()], [Table::new(), Table::new()]);
        let mocks = [processor.mock(), processor.mock()];
        let mut here = processor.take(&mocks[0], &memories[0], &tables[0]);
        let mut there = processor.take(&mocks[1], &memories[1], &tables[1]);
        // Its identities there are other ones.
        let other = there.open(unit, &[raw(5)]).unwrap();
        there.enable(other, 0).unwrap();
        let group = here.open(unit, &[raw(2), raw(3), raw(4)]).unwrap();
        here.enable(group, 0).unwrap();
        let mut thread: Vec<_> = here.group_events(group).map(ThreadEvent::Opened).collect();
        (2..5).for_each(|kind| happen(&mocks[0], kind, 100));
        here.switch_out(&mut thread, 10, |o| panic!("{o:?}")).unwrap();
        let gone = EventsError { events: 0, reason: CounterError::NoSuchEvent(group) };
        assert_eq!(here.disable(group, 10), Err(gone), "{processor:?}");
        assert_eq!(running(&mocks[0]), CounterSet::NONE);

        there.switch_in(unit, &mut thread, 20).unwrap();
        (2..5).for_each(|kind| happen(&mocks[1], kind, 11));
        let mut counts = [EventCount::default(); 3];
        let group = opened_events(&thread)[0];
        assert_eq!(there.read_group(group, 25, &mut counts), Ok(3));
        let expected = EventCount { value: 111, enabled: 15, running: 15 };
        assert_eq!(counts, [expected; 3], "{processor:?}");

        // A part of it is not counted.
        there.switch_out(&mut thread, 30, |o| panic!("{o:?}")).unwrap();
        let mut part = [thread[0], thread[2]];
        let outcome = there.switch_in(unit, &mut part, 30);
        let first = opened_events(&part)[0];
        let error = EventsError { events: 0b11, reason: CounterError::GroupElsewhere(first) };
        assert_eq!(outcome, Err(error), "{processor:?}");
        assert_eq!(running(&mocks[1]).len(), 1, "{processor:?}");
        assert!(opened_events(&part).iter().all(|event| !there.is_enabled(*event)));
        let part_only = EventsError { events: 0, reason: CounterError::GroupElsewhere(first) };
        assert_eq!(there.enable(first, 30), Err(part_only));

        // With the rest, it is.
        let mut rest = [thread[1]];
        assert_eq!(
            there.switch_in(unit, &mut rest, 30).err(),
            None,
            "the last of its events starts all of them"
        );
        assert_eq!(on_counters(&there, first), 3, "{processor:?}");
        there.shut_down().unwrap();
        here.shut_down().unwrap();
    }
}
