//! Operations of a task on open events: a period at once, the events of a processor, and the state of each.

use core::cell::RefCell;

use pmu_core::error::CounterError;
use pmu_core::interrupt::EventOverflow;
use pmu_core::thread::ThreadEvent;
use pmu_core::{Claim, EventCount, EventStatus, Events, service};
use pmu_tests::opened::*;
use pmu_virt::mock::{Deviation, Deviations, Fault};

const PERIOD: u64 = 0x1000;

/// With the interrupt served before, or still pending: each overflow is reported once, the count is exact, and the new
/// period is a whole one from here on; alone, and in a group whose other event runs on.
#[test]
fn a_period_applies_at_once_and_a_pending_overflow_is_reported_once() {
    let all = processors(Deviations::NONE).into_iter().chain(
        [Deviation::RaisesOnUnmask, Deviation::LatchesSecondInterrupt]
            .into_iter()
            .flat_map(|deviation| processors(Deviations::of(&[deviation]))),
    );
    for processor in all {
        for grouped in [false, true] {
            for before in [0, 1, PERIOD - 1, PERIOD, PERIOD + 0x30] {
                for period in [PERIOD, 3 * PERIOD] {
                    apply(&processor, grouped, before, period);
                }
            }
        }
    }
}

fn apply(processor: &Processor, grouped: bool, before: u64, period: u64) {
    let context = format!("{processor:?}, grouped: {grouped}, {before} before {period}");
    let (memory, table) = (Memory::new(), Table::new());
    let source = Events::new(&processor.unit, &table);
    let (told, claims) = (RefCell::new(vec![]), RefCell::new(vec![]));
    let push = |overflow: EventOverflow| told.borrow_mut().push(overflow.period);
    let handler = |mock: &Mock<'_>| {
        let serviced = service(&source, mock, &memory, |sample| push(*sample)).unwrap();
        claims.borrow_mut().push(serviced.claim);
    };
    let mock = processor.mock();
    mock.on_interrupt(&handler);
    let unit = &processor.unit;
    let mut counters = processor.take(&mock, &memory, &table);
    let event = raw(2).every(PERIOD).with_total();
    let (id, other) = if grouped {
        let group = counters.open(unit, &[raw(3), event]).unwrap();
        counters.enable(group, 0).unwrap();
        let mut events = counters.group_events(group);
        let first = events.next();
        (events.next().unwrap(), first)
    } else {
        let id = counters.open(unit, &[event]).unwrap();
        counters.enable(id, 0).unwrap();
        (id, None)
    };
    happen(&mock, 3, 9);
    // The interrupt does not come before the operation.
    let mut feed = happened(2, before);
    mock.pass(&mut feed);
    mock.pass(&mut feed);
    let counted = if processor.freezing { before.min(PERIOD) } else { before };
    counters.apply_period(id, period, 5, push).unwrap();
    let pending = before >= PERIOD;
    assert_eq!(told.take(), vec![PERIOD; usize::from(pending)], "{context}");
    if pending {
        mock.deliver();
        assert_eq!(told.take(), [], "{context}: spurious");
        assert!(claims.take().iter().all(|claim| *claim != Claim::NotOurs), "{context}");
    }
    happen(&mock, 2, period - 1);
    assert_eq!(told.take(), [], "{context}");
    happen(&mock, 2, 1);
    assert_eq!(told.take(), [period], "{context}");
    let count = counters.read(id, 7).unwrap();
    let expected = EventCount { value: counted + period, enabled: 7, running: 7 };
    assert_eq!(count, expected, "{context}");
    if let Some(other) = other {
        happen(&mock, 3, 1);
        let count = counters.read(other, 7).unwrap();
        assert_eq!(count, EventCount { value: 10, ..expected }, "{context}");
    }
    counters.shut_down().unwrap();
}

/// Of an event that is on no counter: stopped, and one that lost its counter with an overflow pending.
#[test]
fn a_period_of_an_event_on_no_counter_begins_with_its_next_start_and_keeps_a_pending_overflow() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, told) = (Memory::new(), Table::new(), RefCell::new(vec![]));
        let source = Events::new(&processor.unit, &table);
        let push = |overflow: EventOverflow| told.borrow_mut().push(overflow.period);
        let handler = |mock: &Mock<'_>| {
            service(&source, mock, &memory, |sample| push(*sample)).unwrap();
        };
        let mock = processor.mock();
        mock.on_interrupt(&handler);
        let unit = &processor.unit;
        let mut counters = processor.take(&mock, &memory, &table);
        let general = unit.counters().iter().find(|counter| !counter.is_fixed()).unwrap().only();
        let event = raw(2).every(PERIOD).rotating().on(general);
        let id = counters.open(unit, &[event]).unwrap();
        counters.enable(id, 0).unwrap();
        happen(&mock, 2, PERIOD - 1);
        counters.disable(id, 0).unwrap();
        counters.apply_period(id, 2 * PERIOD, 0, push).unwrap();
        counters.enable(id, 0).unwrap();
        happen(&mock, 2, 2 * PERIOD - 1);
        assert_eq!(told.take(), [], "{processor:?}");
        // The overflow is pending when another event takes the counter.
        mock.pass(&mut happened(2, 1));
        let pinned = counters.open(unit, &[raw(3).on(general)]).unwrap();
        counters.enable(pinned, 0).unwrap();
        mock.deliver();
        counters.apply_period(id, PERIOD, 0, push).unwrap();
        assert_eq!(told.take(), [], "{processor:?}");
        counters.close(pinned, 0).unwrap();
        counters.rotate(0).unwrap();
        happen(&mock, 2, 1);
        assert_eq!(told.take(), [2 * PERIOD], "{processor:?}: the pending one");
        happen(&mock, 2, PERIOD);
        assert_eq!(told.take(), [PERIOD], "{processor:?}");
        // A refused period changes nothing.
        mock.clear();
        let plain = counters.open(unit, &[raw(3)]).unwrap();
        let refused = [
            (plain, PERIOD, CounterError::NoPeriod(plain)),
            (id, 1, CounterError::Period(1)),
            (id, 1 << 63, CounterError::Period(1 << 63)),
        ];
        for (event, period, error) in refused {
            assert_eq!(counters.apply_period(event, period, 0, push), Err(error));
        }
        counters.close(plain, 0).unwrap();
        let gone = CounterError::NoSuchEvent(plain);
        assert_eq!(counters.apply_period(plain, PERIOD, 0, push), Err(gone));
        assert_eq!(mock.accesses().total(), 0, "{processor:?}");
        counters.shut_down().unwrap();
    }
}

/// A register faults at each access of the operation, once or for good: nothing is told twice, no group runs in part.
#[test]
fn a_period_at_whose_access_a_register_faults_leaves_the_group_whole_or_stopped() {
    for processor in processors(Deviations::NONE) {
        let mut access = 1;
        while fault(&processor, access, Fault::At(access)) {
            fault(&processor, access, Fault::From(access));
            access += 1;
        }
        assert!(access > 3, "{processor:?}: {access}");
    }
}

/// Returns whether the operation has so many accesses.
fn fault(processor: &Processor, access: u32, fault: Fault) -> bool {
    let context = format!("{processor:?}, {fault:?}");
    let (memory, table, told) = (Memory::new(), Table::new(), RefCell::new(vec![]));
    let push = |overflow: EventOverflow| told.borrow_mut().push(overflow.period);
    let mock = processor.mock();
    let mut counters = processor.take(&mock, &memory, &table);
    let events = [raw(3), raw(2).every(PERIOD).with_total()];
    let group = counters.open(&processor.unit, &events).unwrap();
    counters.enable(group, 0).unwrap();
    let ids: Vec<_> = counters.group_events(group).collect();
    happen(&mock, 2, 0x800);
    mock.clear();
    mock.inject(fault);
    let outcome = counters.apply_period(ids[1], PERIOD, 0, push);
    let reached = mock.accesses().total() >= access;
    mock.inject(Fault::None);
    let on = ids.iter().filter(|id| counters.counter_of(**id).is_some()).count();
    assert_eq!(told.take(), [], "{context}");
    match (outcome, fault) {
        (Ok(()), _) => {
            assert_eq!(on, 2, "{context}");
            happen(&mock, 2, 0x10);
            assert_eq!(total(&counters, ids[1]), 0x810, "{context}");
        }
        (Err(_), Fault::From(_)) => {
            assert!(on != 1, "{context}: {outcome:?}");
        }
        (Err(error), _) => panic!("{context}: {error}"),
    }
    counters.shut_down().unwrap();
    reached
}

#[test]
fn a_processors_events_are_listed_with_their_tags_and_states() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let unit = &processor.unit;
        let mut counters = processor.take(&mock, &memory, &table);
        assert_eq!(counters.events().count(), 0);
        let general = unit.counters().iter().find(|counter| !counter.is_fixed()).unwrap();
        let on = |event: pmu_core::Event, tag| event.on(general.only()).tagged(tag);
        let pinned = counters.open(unit, &[on(raw(2), 1)]).unwrap();
        let waits = counters.open(unit, &[on(raw(3).rotating(), 2)]).unwrap();
        let off = counters.open(unit, &[on(raw(4), 3)]).unwrap();
        counters.enable(pinned, 0).unwrap();
        counters.enable(waits, 0).unwrap();
        let listed: Vec<_> = counters.events().collect();
        assert_eq!(listed, [pinned, waits, off], "{processor:?}");
        let tags: Vec<_> = listed.iter().map(|id| counters.event_tag(*id).unwrap()).collect();
        assert_eq!(tags, [1, 2, 3]);
        let states: Vec<_> = listed.iter().map(|id| counters.event_status(*id).unwrap()).collect();
        let expected = [EventStatus::Active(general), EventStatus::Inactive, EventStatus::Off];
        assert_eq!(states, expected, "{processor:?}");
        counters.close(waits, 0).unwrap();
        assert_eq!(counters.events().collect::<Vec<_>>(), [pinned, off]);
        assert_eq!(counters.event_status(waits), Err(CounterError::NoSuchEvent(waits)));
        assert_eq!(counters.event_tag(waits), Err(CounterError::NoSuchEvent(waits)));
        // A thread's pinned event comes to a processor whose counter is taken: an error, until it is started again.
        let mut thread = [ThreadEvent::Opened(off)];
        counters.switch_out(&mut thread, 0, |o| panic!("{o:?}")).unwrap();
        let ThreadEvent::SwitchedOut(event) = thread[0] else { panic!("{thread:?}") };
        let mut thread = [ThreadEvent::SwitchedOut(event.to_be_enabled(true))];
        counters.switch_in(unit, &mut thread, 0).unwrap_err();
        let ThreadEvent::Opened(refused) = thread[0] else { panic!("{thread:?}") };
        assert_eq!(counters.event_status(refused), Ok(EventStatus::Error), "{processor:?}");
        counters.rotate(0).unwrap();
        assert_eq!(counters.event_status(refused), Ok(EventStatus::Error), "{processor:?}");
        counters.close(pinned, 0).unwrap();
        counters.enable(refused, 0).unwrap();
        assert_eq!(counters.event_status(refused), Ok(EventStatus::Active(general)));
        counters.shut_down().unwrap();
        assert_eq!(counters.events().count(), 0, "{processor:?}");
    }
}
