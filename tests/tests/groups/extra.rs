//! Extra registers: shared, chosen, refused, written again, and restored; at every access that faults, too.

use pmu_core::access::AccessErrorKind;
use pmu_core::error::CounterError;
use pmu_core::thread::ThreadEvent;
use pmu_core::{CounterSet, EventId};
use pmu_tests::Reason;
use pmu_tests::groups::*;
use pmu_tests::opened::*;
use pmu_virt::VirtualPmu;
use pmu_virt::configuration::IntelConfiguration;
use pmu_virt::mock::Deviations;

fn demand(value: u64, registers: &[u32]) -> Demand {
    Demand { value, registers: registers.to_vec() }
}

/// Off-core response has two registers.
const BOTH: [u32; 2] = [EXTRA[0], EXTRA[1]];

#[test]
fn an_extra_register_is_written_once_shared_and_restored() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let extra = WithExtra::new(&mock);
        let mut counters = extra.take(&processor, CounterSet::ALL, &memory, &table);
        let mut open = |value| {
            let event = refined(2, &demand(value, &BOTH));
            counters.open(&processor.unit, &[event]).unwrap()
        };
        let [first, same, other] = [0x11, 0x11, 0x22].map(&mut open);
        assert_eq!(*extra.writes.borrow(), [], "opened, and not started");
        counters.enable(first, 0).unwrap();
        counters.enable(same, 0).unwrap();
        assert_eq!(*extra.writes.borrow(), [(EXTRA[0], 0x11)], "{processor:?}");
        // The other value, the other register; and the other event number, which the model feeds as kind 3.
        counters.enable(other, 0).unwrap();
        assert_eq!(*extra.writes.borrow(), [(EXTRA[0], 0x11), (EXTRA[1], 0x22)]);
        happen(&mock, 2, 5);
        happen(&mock, 3, 7);
        let values = [first, same, other].map(|event| counters.read(event, 0).unwrap().value);
        assert_eq!(values, [5, 5, 7], "{processor:?}");
        // Stopped and started: it still has its value.
        counters.disable(same, 0).unwrap();
        counters.enable(same, 0).unwrap();
        assert_eq!(extra.writes.borrow().len(), 2);
        counters.shut_down().unwrap();
        assert_eq!(extra.values(), BEFORE, "{processor:?}");
        assert_eq!(extra.writes.borrow().len(), 4, "{processor:?}");
    }
}

#[test]
fn a_third_value_is_refused_by_name_until_a_register_is_free() {
    let processor = Processor::intel(IntelConfiguration::new(4, 8, 3));
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let extra = WithExtra::new(&mock);
    let mut counters = extra.take(&processor, CounterSet::ALL, &memory, &table);
    let mut open = |value: u64, registers: &[u32]| {
        let event = refined(2, &demand(value, registers));
        counters.open(&processor.unit, &[event]).unwrap()
    };
    let [first, second] = [1, 2].map(|value| open(value, &BOTH));
    let third = open(3, &BOTH);
    // It needs the register that the first event has, and that one can have the other's once it is free.
    let narrow = open(4, &BOTH[..1]);
    counters.enable(first, 0).unwrap();
    counters.enable(second, 0).unwrap();
    extra.take_accesses();
    for event in [third, narrow] {
        let outcome = counters.enable(event, 0);
        assert_eq!(outcome.reason(), Err(CounterError::ExtraRegisterInUse(EXTRA[0])));
    }
    assert_eq!(counters.enable_if_free(third, 0), Err(CounterError::NoCounterForEvent));
    assert_eq!(extra.take_accesses(), 0);
    counters.disable(second, 0).unwrap();
    happen(&mock, 2, 10);
    counters.enable(narrow, 0).unwrap();
    assert_eq!(extra.values()[..2], [4, 1], "the first event has moved to the other register");
    happen(&mock, 2, 100);
    happen(&mock, 3, 1000);
    assert_eq!(counters.read(first, 0).unwrap().value, 1010, "it went on there");
    assert_eq!(counters.read(narrow, 0).unwrap().value, 100);
    counters.shut_down().unwrap();
    assert_eq!(extra.values(), BEFORE);
}

/// Two events that need different values of one register take turns, with the register.
#[test]
fn extra_registers_rotate_with_their_events() {
    let processor = Processor::intel(IntelConfiguration::new(4, 8, 3));
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let extra = WithExtra::new(&mock);
    let mut counters = extra.take(&processor, CounterSet::ALL, &memory, &table);
    let events = [(5, 2), (6, 4)].map(|(value, kind)| {
        let event = refined(kind, &demand(value, &EXTRA[2..3])).rotating();
        let id = counters.open(&processor.unit, &[event]).unwrap();
        counters.enable(id, 0).unwrap();
        id
    });
    for tick in 0..6 {
        let on = events.map(|event| counters.counter_of(event).is_some());
        let expected = if tick % 2 == 0 { [true, false] } else { [false, true] };
        assert_eq!((on, extra.values()[2]), (expected, 5 + tick % 2), "{tick}");
        (2..5).for_each(|kind| happen(&mock, kind, 10));
        counters.rotate(10 * (tick + 1)).unwrap();
    }
    for event in events {
        let count = counters.read(event, 60).unwrap();
        assert_eq!((count.value, count.enabled, count.running), (30, 60, 30));
    }
    counters.shut_down().unwrap();
    assert_eq!(extra.values(), BEFORE);
}

#[test]
fn extra_registers_are_written_again_after_suspend_and_go_along_with_a_thread() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let extra = WithExtra::new(&mock);
        let mut counters = extra.take(&processor, CounterSet::ALL, &memory, &table);
        let event = refined(2, &demand(7, &BOTH));
        let id = counters.open(&processor.unit, &[event]).unwrap();
        counters.enable(id, 0).unwrap();
        mock.lose_registers();
        extra.set([0; 4]);
        counters.reprogram(|o| panic!("{o:?}")).unwrap();
        assert_eq!(extra.values()[0], 7, "{processor:?}");
        // On the other processor another event has that register.
        let (memory2, table2, mock2) = (Memory::new(), Table::new(), processor.mock());
        let extra2 = WithExtra::new(&mock2);
        let mut there = extra2.take(&processor, CounterSet::ALL, &memory2, &table2);
        let other = refined(4, &demand(8, &BOTH[..1]));
        let other = there.open(&processor.unit, &[other]).unwrap();
        there.enable(other, 0).unwrap();
        let mut thread = [ThreadEvent::Opened(id)];
        counters.switch_out(&mut thread, 1, |o| panic!("{o:?}")).unwrap();
        there.switch_in(&processor.unit, &mut thread, 2).unwrap();
        assert_eq!(extra2.values()[..2], [8, 7], "{processor:?}");
        let ThreadEvent::Opened(id) = thread[0] else { panic!("{thread:?}") };
        happen(&mock2, 3, 9);
        assert_eq!(there.read(id, 3).unwrap().value, 9, "{processor:?}");
        counters.shut_down().unwrap();
        there.shut_down().unwrap();
        assert_eq!([extra.values(), extra2.values()], [[BEFORE[0], 0, 0, 0], BEFORE]);
    }
}

/// A start of another event moves none, also where two have the same value in different registers.
#[test]
fn events_that_run_keep_their_registers() {
    let processor = Processor::intel(IntelConfiguration::new(4, 8, 0));
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let extra = WithExtra::new(&mock);
    let mut counters = extra.take(&processor, CounterSet::ALL, &memory, &table);
    let mut start = |kind, demand: &Demand, on| {
        let event = refined(kind, demand).on(CounterSet::from_bits(on));
        let id = counters.open(&processor.unit, &[event]).unwrap();
        extra.costs.take();
        counters.enable(id, 0).unwrap();
        extra.costs.take()
    };
    let alone = [1, 3, 0];
    assert_eq!(start(2, &demand(1, &BOTH), 0b10), alone);
    assert_eq!(start(4, &demand(1, &BOTH[1..]), 0b01), alone);
    assert_eq!(start(5, &demand(3, &EXTRA[2..3]), 0b100), alone);
}

/// The session goes on after a shut-down that failed, with what is in the registers then; and the next session on the
/// same table restores its own predecessor's values.
#[test]
fn a_shut_down_that_failed_leaves_registers_known_and_a_later_one_restores_them() {
    let processor = Processor::intel(IntelConfiguration::new(4, 4, 0));
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let extra = WithExtra::new(&mock);
    for at in 1.. {
        let before = [1, 2, 3, 4].map(|n| n * 100 + u64::from(at));
        extra.set(before);
        let mut counters = extra.take(&processor, CounterSet::ALL, &memory, &table);
        let events = [0, 1].map(|n| {
            let event = refined(2, &demand(n + 1, &EXTRA[n as usize..=n as usize]));
            let id = counters.open(&processor.unit, &[event]).unwrap();
            counters.enable(id, 0).unwrap();
            id
        });
        extra.take_accesses();
        extra.fault.set(Some((at, true)));
        let outcome = counters.shut_down();
        extra.fault.set(None);
        if outcome.is_err() {
            for (number, event) in events.into_iter().enumerate() {
                if counters.enable(event, 1).is_ok() {
                    assert_eq!(extra.values()[number], number as u64 + 1, "access {at}");
                }
            }
            counters.shut_down().unwrap();
        }
        assert_eq!(extra.values(), before, "access {at}");
        if outcome.is_ok() {
            assert!(at > 5);
            break;
        }
    }
}

/// A register that is not there.
#[test]
fn an_absent_extra_register_is_an_error_and_nothing_was_started() {
    let processor = plain(4);
    let pmu = VirtualPmu::new(processor.configuration, fed_events()).unwrap();
    let (memory, table, mock) = (Memory::new(), Table::new(), Mock::new(pmu));
    let mut counters = processor.take(&mock, &memory, &table);
    let event = refined(2, &demand(1, &BOTH));
    let id = counters.open(&processor.unit, &[event]).unwrap();
    let outcome = counters.enable(id, 0).reason();
    assert!(
        matches!(outcome, Err(CounterError::Unchanged(fault))
            if fault.register == EXTRA[0] && fault.kind == AccessErrorKind::Fault),
        "{outcome:?}"
    );
    assert!(!counters.is_enabled(id));
    assert_eq!(running(&mock), CounterSet::NONE);
    counters.shut_down().unwrap();
}

/// A rotation from one group to another, with extra registers, and a start that moves an event and changes its
/// encoding: with one access that faults, and with all from one on.
#[test]
fn after_a_fault_at_any_access_groups_are_whole_and_registers_can_be_restored() {
    for processor in processors(Deviations::NONE) {
        for rotates in [false, true] {
            for stays in [false, true] {
                let mut at = 1;
                while fault(&processor, rotates, at, stays) {
                    at += 1;
                }
                assert!(at > 10, "{processor:?}: {at} accesses");
            }
        }
    }
}

/// Returns whether the operation had so many accesses.
fn fault(processor: &Processor, rotates: bool, at: u32, stays: bool) -> bool {
    let context = format!("{processor:?}, rotates: {rotates}, access {at}, stays: {stays}");
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let extra = WithExtra::new(&mock);
    let general = processor.unit.counters() & CounterSet::GENERAL;
    let four: CounterSet = general.iter().take(4).collect();
    let first = general.iter().next().unwrap().only();
    let mut counters = extra.take(processor, four, &memory, &table);
    let unit = &processor.unit;
    let turning = |event: pmu_core::Event| if rotates { event.rotating() } else { event };
    // One that runs on the first counter with the first register, and can have others.
    let moves = counters.open(unit, &[refined(2, &demand(1, &BOTH))]).unwrap();
    counters.enable(moves, 0).unwrap();
    let group = [raw(4).on(first), refined(5, &demand(2, &BOTH[..1]))].map(turning);
    let group = counters.open(unit, &group).unwrap();
    let other = counters.open(unit, &[raw(3).rotating(), raw(7), raw(7)]).unwrap();
    counters.enable(other, 0).unwrap();
    if rotates {
        counters.enable(group, 0).unwrap();
    }
    happen(&mock, 2, 100);
    extra.take_accesses();

    extra.fault.set(Some((at, stays)));
    let outcome = match rotates {
        true => counters.rotate(1),
        false => counters.enable(group, 1).map_err(|error| {
            assert_eq!(error.events, 0, "a register failed: {error}");
            error.reason
        }),
    };
    extra.fault.set(None);
    let reached = extra.take_accesses() >= at;
    let context = format!("{context}: {outcome:?}");
    let on = |counters: &Refined<'_, '_>, events: &[EventId]| {
        events.iter().filter(|event| counters.counter_of(**event).is_some()).count()
    };
    let of_group: Vec<_> = counters.group_events(group).collect();
    let of_other: Vec<_> = counters.group_events(other).collect();
    let faulted = matches!(outcome, Err(CounterError::StateUnknown(_)));
    if !faulted {
        assert!([0, 2].contains(&on(&counters, &of_group)), "{context}");
        assert!([0, 3].contains(&on(&counters, &of_other)), "{context}");
        assert!(counters.is_enabled(moves), "{context}");
        let said: CounterSet = [&of_group[..], &of_other, &[moves]]
            .concat()
            .iter()
            .filter_map(|event| counters.counter_of(*event))
            .collect();
        assert_eq!(running(&mock), said, "{context}");
        assert_eq!(outcome.is_ok(), on(&counters, &of_group) == 2, "{context}");
        // Once more, and it is done.
        match (outcome.is_ok(), rotates) {
            (true, _) => {}
            (false, true) => counters.rotate(2).unwrap(),
            (false, false) => counters.enable(group, 2).unwrap(),
        }
        assert_eq!(on(&counters, &of_group), 2, "{context}");
        happen(&mock, 2, 20);
        happen(&mock, 3, 3);
        // Its first register or its second one.
        let value = counters.read(moves, 3).unwrap().value;
        assert!(value == 103 || value == 120, "{context}: {value}");
    }
    // A faulted counter leaves its event waiting for another one.
    let others_wait = of_other.iter().all(|event| counters.is_enabled(*event));
    assert!(others_wait, "{context}");
    counters.shut_down().unwrap();
    assert_eq!(running(&mock), CounterSet::NONE, "{context}");
    assert_eq!(extra.values(), BEFORE, "{context}");
    assert!(stays || !faulted, "{context}");
    reached
}

/// After suspend, or where only the extra register lost its value.
#[test]
fn an_extra_register_that_cannot_be_written_again_stops_its_events_and_is_written_at_their_next_start()
 {
    for processor in processors(Deviations::NONE) {
        for all_lost in [true, false] {
            let context = format!("{processor:?}, {all_lost}");
            let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
            let extra = WithExtra::new(&mock);
            let mut counters = extra.take(&processor, CounterSet::ALL, &memory, &table);
            let unit = &processor.unit;
            let events =
                [refined(2, &demand(7, &EXTRA[..1])), refined(4, &demand(9, &EXTRA[2..3])), raw(5)];
            let ids = events.map(|event| counters.open(unit, &[event]).unwrap());
            ids.iter().for_each(|id| counters.enable(*id, 0).unwrap());
            if all_lost {
                mock.lose_registers();
            }
            extra.set([0; 4]);
            extra.broken.set(EXTRA[0]);
            let outcome = counters.reprogram(|o| panic!("{o:?}"));
            let fault = match outcome {
                Err(CounterError::StateUnknown(fault)) => fault,
                other => panic!("{context}: {other:?}"),
            };
            assert_eq!(fault.register, EXTRA[0], "{context}");
            let on = ids.map(|id| counters.counter_of(id).is_some());
            assert_eq!(on, [false, true, true], "{context}");
            assert_eq!(running(&mock).len(), 2, "{context}: its counter runs");
            let lost = Err(CounterError::CounterLost(ids[0]));
            assert_eq!(counters.read(ids[0], 1), lost, "{context}");
            assert_eq!(
                counters.enable(ids[0], 1).reason().map_err(fault_of),
                Err(EXTRA[0]),
                "{context}"
            );
            extra.broken.set(0);
            counters.enable(ids[0], 2).unwrap();
            assert_eq!(extra.values()[..3], [7, 0, 9], "{context}: not written");
            happen(&mock, 2, 5);
            assert_eq!(counters.read(ids[0], 3).unwrap().value, 5, "{context}");
            counters.shut_down().unwrap();
        }
    }
}

#[test]
fn a_group_whose_extra_register_cannot_be_written_again_does_not_run_in_part() {
    for processor in processors(Deviations::NONE) {
        let context = format!("{processor:?}");
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let extra = WithExtra::new(&mock);
        let mut counters = extra.take(&processor, CounterSet::ALL, &memory, &table);
        let events = [refined(2, &demand(7, &EXTRA[..1])), raw(5)];
        let group = counters.open(&processor.unit, &events).unwrap();
        counters.enable(group, 0).unwrap();
        let members: Vec<_> = counters.group_events(group).collect();
        extra.set([0; 4]);
        extra.broken.set(EXTRA[0]);
        let outcome = counters.reprogram(|o| panic!("{o:?}"));
        assert!(matches!(outcome, Err(CounterError::StateUnknown(_))), "{context}: {outcome:?}");
        let on = [members[0], members[1]].map(|id| counters.counter_of(id));
        assert_eq!(on, [None; 2], "{context}");
        assert!(members.iter().all(|id| !counters.is_enabled(*id)), "{context}");
        let lost = Err(CounterError::CounterLost(members[1]));
        assert_eq!(counters.read(members[1], 1), lost, "{context}");
        extra.broken.set(0);
        counters.enable(group, 2).unwrap();
        assert_eq!(extra.values()[0], 7, "{context}: not written");
        happen(&mock, 2, 5);
        happen(&mock, 5, 5);
        let counts = [members[0], members[1]].map(|id| counters.read(id, 3).unwrap().value);
        assert_eq!(counts, [5; 2], "{context}");
        counters.shut_down().unwrap();
    }
}

fn fault_of(error: CounterError) -> u32 {
    match error {
        CounterError::Unchanged(fault) => fault.register,
        other => panic!("{other:?}"),
    }
}
