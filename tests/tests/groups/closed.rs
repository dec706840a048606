//! One event of a group is closed, and the others go on.
use pmu_core::error::{CounterError, EventsError};
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::{CounterSet, Event, EventCount, EventId};
use pmu_tests::Reason;
use pmu_tests::opened::*;
use pmu_virt::mock::{Deviations, Fault};

fn open(
    counters: &mut Opened<'_, '_>,
    processor: &Processor,
    events: &[Event],
) -> (EventId, Vec<EventId>) {
    let group = counters.open(&processor.unit, events).unwrap();
    (group, counters.group_events(group).collect())
}

/// Linux: only a leader can be exclusive; what is left of its group is not.
#[test]
fn those_left_of_an_exclusive_group_can_be_enabled_beside_each_other() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let (group, ids) = open(&mut counters, &processor, &[raw(2).exclusive(), raw(3), raw(4)]);
        counters.enable(group, 0).unwrap();
        counters.close_member(ids[0], 1).unwrap();
        let on = [ids[1], ids[2]].map(|id| counters.counter_of(id).is_some());
        assert_eq!(on, [true; 2]);
        counters.disable(ids[2], 2).unwrap();
        assert_eq!(counters.enable(ids[2], 3), Ok(()), "{processor:?}");
        let other = counters.open(&processor.unit, &[raw(5)]).unwrap();
        assert_eq!(counters.enable(other, 3), Ok(()), "{processor:?}");
    }
}

/// Also of a group that rotates.
#[test]
fn those_left_of_an_exclusive_group_keep_their_counters_while_others_rotate() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let (group, ids) =
            open(&mut counters, &processor, &[raw(2).exclusive().rotating(), raw(3), raw(4)]);
        counters.enable(group, 0).unwrap();
        counters.close_member(ids[0], 1).unwrap();
        let mut running = [0; 2];
        for now in 2..30 {
            counters.rotate(now).unwrap();
            for (r, id) in running.iter_mut().zip(&ids[1..]) {
                *r += usize::from(counters.counter_of(*id).is_some());
            }
        }
        assert_eq!(running, [28, 28], "{processor:?}");
    }
}

/// A failed access is retried. A register that fails for good loses the closed event's count, and no other count.
#[test]
fn a_fault_at_each_access_of_closing() {
    for processor in processors(Deviations::NONE) {
        for rotates in [false, true] {
            for which in 0..3 {
                for access in 1..40 {
                    for fault in [Fault::At(access), Fault::From(access)] {
                        let context =
                            format!("{processor:?}, which {which}, rotates {rotates} {fault:?}");
                        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
                        let mut counters = processor.take(&mock, &memory, &table);
                        let first = if rotates { raw(2).rotating() } else { raw(2) };
                        let (_, ids) = open(&mut counters, &processor, &[first, raw(3), raw(4)]);
                        counters.enable(ids[0], 0).unwrap();
                        (2..5).for_each(|kind| happen(&mock, kind, 10));
                        mock.clear();
                        mock.inject(fault);
                        let outcome = counters.close_member(ids[which], 10);
                        let reached = mock.accesses().total() >= access;
                        mock.inject(Fault::None);
                        if !reached {
                            continue;
                        }
                        if let Fault::At(_) = fault {
                            assert!(outcome.is_ok(), "{context} {outcome:?}");
                        }
                        let said: CounterSet =
                            ids.iter().filter_map(|id| counters.counter_of(*id)).collect();
                        assert!(said.without(running(&mock)).is_empty(), "{context}: {outcome:?}");
                        // It is closed whatever failed.
                        let status = counters.event_status(ids[which]);
                        assert!(status.is_err(), "{context}: {status:?}");
                        let left: Vec<_> = (0..3).filter(|n| *n != which).collect();
                        for n in left {
                            let _ = counters.rotate(25);
                            happen(&mock, n + 2, 5);
                            let after = counters.read(ids[n], 31);
                            if outcome.is_ok() {
                                assert_eq!(after.unwrap().value, 15, "{context}");
                            }
                        }
                        counters.shut_down().unwrap();
                        assert_eq!(running(&mock), CounterSet::NONE, "{context}");
                    }
                }
            }
        }
    }
}

/// A session cannot count a thread's group because of one event, which is closed then.
#[test]
fn without_the_event_that_cannot_be_counted_the_others_are() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let general = processor.unit.counters() & CounterSet::GENERAL;
        let two: CounterSet = general.iter().take(2).collect();
        // Elsewhere it was made for a counter that this session lacks.
        let third = general.iter().nth(2).unwrap().only();
        let saved = [raw(2).rotating(), raw(3).on(third)]
            .map(|event| SavedEvent::new(&processor.unit, &event).unwrap().to_be_enabled(true));
        let mut saved = saved;
        SavedEvent::make_group(&mut saved).unwrap();
        for which in [0, 1] {
            let mut counters = processor.take_only(two, &mock, &memory, &table);
            let mut thread = saved.map(ThreadEvent::SwitchedOut);
            let _ = counters.switch_in(&processor.unit, &mut thread, 0);
            let id = |n: usize| match thread[n] {
                ThreadEvent::Opened(id) => id,
                _ => panic!(),
            };
            assert_eq!(counters.counter_of(id(0)), None);
            counters.close_member(id(which), 100).unwrap();
            counters.rotate(110).unwrap();
            happen(&mock, 2, 5);
            if which == 1 {
                assert_eq!(
                    counters.read(id(0), 120),
                    Ok(EventCount { value: 5, enabled: 120, running: 10 }),
                    "{processor:?}"
                );
            } else {
                assert_eq!(
                    counters.read(id(1), 120),
                    Ok(EventCount { value: 0, enabled: 120, running: 0 }),
                    "{processor:?}"
                );
            }
            counters.switch_out(&mut thread, 130, |_| ()).unwrap_err();
            counters.shut_down().unwrap();
        }
    }
}

/// Closing it again is an error.
#[test]
fn a_closed_member_is_closed() {
    let processor = plain(4);
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let mut counters = processor.take(&mock, &memory, &table);
    let (_, ids) = open(&mut counters, &processor, &[raw(2), raw(3), raw(4)]);
    counters.close_member(ids[1], 0).unwrap();
    assert_eq!(counters.close_member(ids[1], 0), Err(CounterError::NoSuchEvent(ids[1])));
}

/// Before the counters are programmed again, the others keep what they counted.
#[test]
fn an_event_of_a_group_is_closed_during_a_suspend() {
    for processor in processors(Deviations::NONE) {
        for which in 0..3 {
            let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
            let mut counters = processor.take(&mock, &memory, &table);
            let (_, ids) = open(&mut counters, &processor, &[raw(2), raw(3), raw(4)]);
            counters.enable(ids[0], 0).unwrap();
            (2..5).for_each(|kind| happen(&mock, kind, 10));
            counters.suspend(10, |_| ()).unwrap();
            let closed = counters.close_member(ids[which], 10);
            counters.resume(10, |_| ()).unwrap();
            (2..5).for_each(|kind| happen(&mock, kind, 10));
            let said: CounterSet = ids.iter().filter_map(|id| counters.counter_of(*id)).collect();
            assert_eq!(running(&mock), said, "{processor:?} {which}: {said:?}");
            for n in (0..3).filter(|n| *n != which) {
                assert_eq!(
                    counters.read(ids[n], 20).map(|c| c.value),
                    Ok(20),
                    "{processor:?} {which}"
                );
            }
            assert_eq!(closed.map(|closed| closed.value), Ok(10), "{processor:?}");
        }
    }
}

/// The time for which a group could not be counted is not part of its share, whenever its events were read last.
#[test]
fn time_before_an_uncountable_member_was_closed_is_not_waited() {
    let processor = plain(4);
    let general = processor.unit.counters() & CounterSet::GENERAL;
    let one: CounterSet = general.iter().take(1).collect();
    let third = general.iter().nth(2).unwrap().only();
    let turns = [false, true].map(|reads| {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut saved = [raw(2).on(one).rotating(), raw(3).on(third)]
            .map(|event| SavedEvent::new(&processor.unit, &event).unwrap().to_be_enabled(true));
        SavedEvent::make_group(&mut saved).unwrap();
        let mut counters = processor.take_only(one, &mock, &memory, &table);
        let other = counters.open(&processor.unit, &[raw(4).on(one).rotating()]).unwrap();
        counters.enable(other, 999).unwrap();
        let mut thread = saved.map(ThreadEvent::SwitchedOut);
        let _ = counters.switch_in(&processor.unit, &mut thread, 0);
        let id = |n: usize| match thread[n] {
            ThreadEvent::Opened(id) => id,
            _ => panic!(),
        };
        if reads {
            counters.read(id(0), 1000).unwrap();
        }
        counters.close_member(id(1), 1000).unwrap();
        let mut turns = 0;
        for now in 1..=20_u64 {
            counters.rotate(1000 + now).unwrap();
            turns += u32::from(counters.counter_of(id(0)).is_some());
        }
        turns
    });
    assert_eq!(turns[0], turns[1], "not read before, and read before");
}

/// In the life of groups, those that are left count what `counter_of` says, and groups are on counters as a whole.
#[test]
fn groups_at_random() {
    for (seed, processor) in processors(Deviations::NONE).into_iter().enumerate() {
        for round in 0..30 {
            let mut random = Random(0x9E37_79B9 + 977 * round + seed as u64);
            let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
            let mut counters = processor.take(&mock, &memory, &table);
            let mut model: Vec<(EventId, usize, u64, bool)> = vec![]; // id, kind, count, rotates
            let mut now = 0;
            for step in 0..200 {
                now += 1;
                let what = format!("{processor:?} round {round} step {step}");
                let pick = |random: &mut Random, model: &Vec<(EventId, usize, u64, bool)>| {
                    (!model.is_empty()).then(|| random.below(model.len() as u64) as usize)
                };
                match random.below(9) {
                    0 if model.len() < 9 => {
                        let n = 1 + random.below(3) as usize;
                        let rotates = random.below(3) != 0;
                        let kinds: Vec<_> = (0..n).map(|_| 2 + random.below(6) as usize).collect();
                        let events: Vec<_> = kinds
                            .iter()
                            .map(|k| if rotates { raw(*k).rotating() } else { raw(*k) })
                            .collect();
                        if let Ok(group) = counters.open(&processor.unit, &events) {
                            for (id, kind) in counters.group_events(group).zip(kinds) {
                                model.push((id, kind, 0, rotates));
                            }
                        }
                    }
                    1 if model.len() < 11 => {
                        if let Some(at) = pick(&mut random, &model) {
                            let kind = 2 + random.below(6) as usize;
                            let rotates = model[at].3;
                            if let Ok(id) =
                                counters.open_member(&processor.unit, model[at].0, &raw(kind))
                            {
                                model.push((id, kind, 0, rotates));
                            }
                        }
                    }
                    2 | 3 => {
                        if let Some(at) = pick(&mut random, &model) {
                            let before: Vec<_> =
                                model.iter().map(|of| counters.counter_of(of.0)).collect();
                            let (id, _, count, _) = model[at];
                            let closed = counters.close_member(id, now).expect(&what);
                            assert_eq!(closed.value, count, "{what}");
                            for (n, of) in model.iter().enumerate().filter(|(n, _)| *n != at) {
                                assert_eq!(counters.counter_of(of.0), before[n], "{what}");
                            }
                            model.remove(at);
                        }
                    }
                    4 => {
                        if let Some(at) = pick(&mut random, &model) {
                            let _ = counters.enable(model[at].0, now);
                        }
                    }
                    5 => {
                        if let Some(at) = pick(&mut random, &model) {
                            counters.disable(model[at].0, now).expect(&what);
                        }
                    }
                    6 => counters.rotate(now).expect(&what),
                    _ => {
                        let kind = 2 + random.below(6) as usize;
                        let n = random.below(50);
                        for of in model.iter_mut().filter(|of| of.1 == kind) {
                            if counters.counter_of(of.0).is_some() {
                                of.2 += n;
                            }
                        }
                        happen(&mock, kind, n);
                    }
                }
                let said: CounterSet =
                    model.iter().filter_map(|of| counters.counter_of(of.0)).collect();
                assert_eq!(running(&mock), said, "{what}");
                for of in &model {
                    assert_eq!(counters.read(of.0, now).expect(&what).value, of.2, "{what}");
                    let group = counters.group_events(of.0);
                    let started: Vec<_> = group.filter(|id| counters.is_enabled(*id)).collect();
                    let on =
                        started.iter().filter(|id| counters.counter_of(**id).is_some()).count();
                    assert!(on == 0 || on == started.len(), "{what}");
                }
                assert_eq!(counters.events().count(), model.len(), "{what}");
            }
            counters.shut_down().unwrap();
        }
    }
}

/// A member that stays, or the closed event, interrupts between two accesses of the closing.
#[test]
fn an_interrupt_comes_while_an_event_of_its_group_is_closed() {
    use core::cell::RefCell;
    use pmu_core::{Claim, Events, service};
    use pmu_virt::mock::PmiFault;
    for processor in processors(Deviations::NONE) {
        for which in 0..3 {
            for sampled in 0..3 {
                for late in 0..12 {
                    let what =
                        format!("{processor:?} closes {which} sampled {sampled} late {late}");
                    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
                    let source = Events::new(&processor.unit, &table);
                    let seen = RefCell::new(vec![]);
                    let unclaimed = core::cell::Cell::new(0);
                    let handler = |mock: &Mock<'_>| {
                        let served =
                            service(&source, mock, &memory, |o| seen.borrow_mut().push(o.event))
                                .unwrap();
                        if served.claim == Claim::NotOurs {
                            unclaimed.set(unclaimed.get() + 1);
                        }
                    };
                    mock.on_interrupt(&handler);
                    let mut counters = processor.take(&mock, &memory, &table);
                    let events: [Event; 3] = core::array::from_fn(|n| {
                        if n == sampled {
                            raw(n + 2).every(0x1000).with_total()
                        } else {
                            raw(n + 2)
                        }
                    });
                    let (_, ids) = open(&mut counters, &processor, &events);
                    counters.enable(ids[0], 0).unwrap();
                    if late > 0 {
                        mock.inject_pmi(PmiFault::Late(late));
                    }
                    happen(&mock, sampled + 2, 0x1000);
                    let closed = counters.close_member(ids[which], 10).expect(&what);
                    mock.inject_pmi(PmiFault::None);
                    mock.deliver();
                    let frozen = processor.freezing;
                    if which == sampled {
                        assert_eq!(closed.value, 0x1000, "{what}");
                        assert!(seen.borrow().len() <= 1, "{what}");
                    } else {
                        assert_eq!(*seen.borrow(), [ids[sampled]], "{what}");
                        happen(&mock, sampled + 2, 0xFFF);
                        assert_eq!(seen.borrow().len(), 1, "{what}");
                        happen(&mock, sampled + 2, 1);
                        assert_eq!(seen.borrow().len(), 2, "{what}");
                        assert_eq!(
                            counters.read(ids[sampled], 20).unwrap().value,
                            0x2000,
                            "{what}"
                        );
                    }
                    let _ = frozen;
                    assert_eq!(unclaimed.get(), 0, "{what}");
                    for n in (0..3).filter(|n| *n != which && *n != sampled) {
                        let before = counters.read(ids[n], 20).unwrap().value;
                        happen(&mock, n + 2, 7);
                        assert_eq!(counters.read(ids[n], 21).unwrap().value, before + 7, "{what}");
                    }
                    counters.shut_down().unwrap();
                }
            }
        }
    }
}

/// A fault at each access of the end of a group, of which one event keeps no total.
#[test]
fn a_group_is_closed_with_its_last_counts_or_says_which_are_missing() {
    for processor in processors(Deviations::NONE) {
        for access in 0..40 {
            let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
            let mut counters = processor.take(&mock, &memory, &table);
            let events = [raw(2), raw(3), raw(4).every(0x1000)];
            let group = counters.start(&processor.unit, &events, 5).unwrap();
            let third = counters.group_events(group).nth(2).unwrap();
            (2..5).for_each(|kind| happen(&mock, kind, 10 * kind as u64));
            mock.clear();
            mock.inject(if access == 0 { Fault::None } else { Fault::From(access) });
            let mut counts = [EventCount::default(); 2];
            let closed = counters.close_group(group, 9, &mut counts);
            let is_reached = access != 0 && mock.accesses().total() >= access;
            mock.inject(Fault::None);
            if is_reached {
                // Nothing is told that was not read, and the second attempt closes them.
                assert!(closed.is_err(), "{processor:?}, {access}: {counts:?}");
                counters.close_group(group, 9, &mut []).unwrap();
            } else {
                assert_eq!(closed, Ok(2), "{processor:?}");
                let count = |value| EventCount { value, enabled: 4, running: 4 };
                assert_eq!(counts, [count(20), count(30)], "{processor:?}");
            }
            let gone = Err(CounterError::NoSuchEvent(group));
            assert_eq!(counters.close_group(group, 9, &mut counts).reason(), gone);
            // With room for all counts: that of the third is missing, and the group is closed nevertheless.
            if access == 0 {
                let group = counters.start(&processor.unit, &events, 5).unwrap();
                let closed = counters.close_group(group, 9, &mut [EventCount::default(); 3]);
                let missing = CounterError::NoTotal(EventId::of_index(third.index().unwrap()));
                assert_eq!(closed, Err(EventsError { events: 0b100, reason: missing }));
                assert_eq!(counters.events().count(), 0, "{processor:?}");
            }
            counters.shut_down().unwrap();
            assert_eq!(running(&mock), CounterSet::NONE, "{processor:?}");
            if access > 1 && !is_reached {
                break;
            }
        }
    }
}

/// None of the counters that the events may be on is free; or a register fails.
#[test]
fn events_that_cannot_be_enabled_are_not_opened() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let one = processor.unit.counters().iter().next().unwrap().only();
        let first = counters.start(&processor.unit, &[raw(2).on(one)], 0).unwrap();
        let refused = counters.start(&processor.unit, &[raw(3), raw(4).on(one)], 0);
        assert_eq!(
            refused,
            Err(EventsError { events: 0b10, reason: CounterError::NoFreeCounter }),
            "{processor:?}"
        );
        mock.inject(Fault::From(1));
        assert!(counters.start(&processor.unit, &[raw(3), raw(4)], 0).is_err(), "{processor:?}");
        mock.inject(Fault::None);
        assert_eq!(counters.events().count(), 1, "{processor:?}");
        counters.reprogram(|o| panic!("{o:?}")).unwrap();
        counters.restart_faulted(0).unwrap();
        happen(&mock, 2, 7);
        assert_eq!(counters.close(first, 0).unwrap().value, 7, "{processor:?}");
    }
}
