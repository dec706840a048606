//! Exclusive groups: alone on the session's counters, or not on them.

use pmu_core::error::{CounterError, EventsError};
use pmu_core::thread::ThreadEvent;
use pmu_core::{CounterSet, Event, EventId, EventStatus};
use pmu_tests::Reason;
use pmu_tests::opened::*;
use pmu_virt::mock::{Deviations, Fault};

fn is_on(counters: &Opened<'_, '_>, event: EventId) -> bool {
    counters.counter_of(event).is_some()
}

#[test]
fn an_exclusive_event_and_others_that_do_not_rotate_exclude_each_other() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let mut open = |event: Event| counters.open(&processor.unit, &[event]).unwrap();
        let [plain, other, alone] = [open(raw(2)), open(raw(3)), open(raw(4).exclusive())];
        let full = Err(CounterError::NoFreeCounter);
        counters.enable(plain, 0).unwrap();
        mock.clear();
        assert_eq!(counters.enable(alone, 0).reason(), full, "{processor:?}");
        assert_eq!(mock.accesses().total(), 0, "{processor:?}");
        assert_eq!(counters.event_status(alone), Ok(EventStatus::Off));
        counters.disable(plain, 0).unwrap();
        counters.enable(alone, 0).unwrap();
        assert_eq!(counters.enable(plain, 0).reason(), full, "{processor:?}");
        assert_eq!(counters.enable_if_free(plain, 0), full, "{processor:?}");
        happen(&mock, 4, 9);
        assert_eq!(total(&counters, alone), 9);
        counters.disable(alone, 0).unwrap();
        let if_free = counters.enable_if_free(alone, 0);
        assert_eq!(if_free, Err(CounterError::NoCounterForEvent), "{processor:?}");
        counters.enable_if_free(plain, 0).unwrap();
        counters.enable(other, 0).unwrap();
        assert_eq!(running(&mock).len(), 2, "{processor:?}");
        counters.shut_down().unwrap();
    }
}

/// Others that rotate give way to one that does not, and come back when it has stopped.
#[test]
fn events_that_rotate_give_way_to_an_exclusive_group() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let rotating = [2, 3].map(|kind| {
            let id = counters.open(&processor.unit, &[raw(kind).rotating()]).unwrap();
            counters.enable(id, 0).unwrap();
            id
        });
        // The first event decides; the others of the group are not in its way.
        let events = [raw(4).exclusive(), raw(5)];
        let group = counters.open(&processor.unit, &events).unwrap();
        counters.enable(group, 5).unwrap();
        let ids: Vec<_> = counters.group_events(group).collect();
        let status = |counters: &Opened<'_, '_>| {
            rotating.map(|id| counters.event_status(id) == Ok(EventStatus::Inactive))
        };
        assert_eq!(status(&counters), [true; 2], "{processor:?}");
        assert_eq!(running(&mock).len(), 2, "{processor:?}");
        (2..6).for_each(|kind| happen(&mock, kind, 7));
        counters.rotate(10).unwrap();
        counters.rotate(20).unwrap();
        assert_eq!(status(&counters), [true; 2], "{processor:?}");
        // A member that was disabled comes back beside its own group.
        counters.disable(ids[1], 20).unwrap();
        counters.enable(ids[1], 20).unwrap();
        assert_eq!([ids[0], ids[1]].map(|id| total(&counters, id)), [7, 7]);
        counters.disable(group, 30).unwrap();
        counters.rotate(30).unwrap();
        assert!(rotating.iter().all(|id| is_on(&counters, *id)), "{processor:?}");
        (2..6).for_each(|kind| happen(&mock, kind, 7));
        let counts = rotating.map(|id| counters.read(id, 40).unwrap());
        for count in counts {
            assert_eq!([count.value, count.enabled, count.running], [7, 40, 15], "{processor:?}");
        }
        counters.shut_down().unwrap();
    }
}

/// 64 rotations of one exclusive event and two others: never at the same time, and each has its part.
#[test]
fn an_exclusive_event_that_rotates_takes_turns_with_all_others() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let events = [raw(2), raw(3), raw(4).exclusive()].map(|event| {
            let id = counters.open(&processor.unit, &[event.rotating()]).unwrap();
            counters.enable(id, 1).unwrap();
            id
        });
        let mut turns = [0; 3];
        for now in 2..66 {
            counters.rotate(now).unwrap();
            let on = events.map(|id| is_on(&counters, id));
            assert!(on == [true, true, false] || on == [false, false, true], "{processor:?}");
            turns.iter_mut().zip(on).for_each(|(turns, on)| *turns += u32::from(on));
        }
        assert!(turns.iter().all(|turns| *turns >= 24), "{processor:?}: {turns:?}");
        counters.shut_down().unwrap();
    }
}

#[test]
fn a_threads_exclusive_event_beside_one_that_does_not_rotate_is_in_error_until_there_is_room() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let unit = &processor.unit;
        let plain = counters.open(unit, &[raw(2)]).unwrap();
        counters.enable(plain, 0).unwrap();
        let saved = pmu_core::thread::SavedEvent::new(unit, &raw(3).exclusive()).unwrap();
        let mut thread = [ThreadEvent::SwitchedOut(saved.to_be_enabled(true))];
        let refused = counters.switch_in(unit, &mut thread, 1).unwrap_err();
        assert_eq!((refused.events, refused.reason), (1, CounterError::NoFreeCounter));
        let ThreadEvent::Opened(alone) = thread[0] else { panic!("{thread:?}") };
        assert_eq!(counters.event_status(alone), Ok(EventStatus::Error), "{processor:?}");
        counters.disable(plain, 2).unwrap();
        counters.switch_out(&mut thread, 2, |o| panic!("{o:?}")).unwrap();
        counters.switch_in(unit, &mut thread, 2).unwrap();
        let ThreadEvent::Opened(alone) = thread[0] else { panic!("{thread:?}") };
        assert!(is_on(&counters, alone), "{processor:?}");
        // Events without a processor: the first decides, too.
        let mut events = [raw(4), raw(5).exclusive()]
            .map(|e| pmu_core::thread::SavedEvent::new(unit, &e).unwrap());
        pmu_core::thread::SavedEvent::make_group(&mut events).unwrap();
        let mut group = events.map(|event| ThreadEvent::SwitchedOut(event.to_be_enabled(true)));
        counters.disable(alone, 3).unwrap();
        counters.enable(plain, 3).unwrap();
        counters.switch_in(unit, &mut group, 3).unwrap();
        assert_eq!(running(&mock).len(), 3, "{processor:?}");
        counters.shut_down().unwrap();
    }
}

/// A group that would not fit beside others, and one that is too large even alone.
#[test]
fn an_exclusive_group_has_no_more_counters_than_there_are() {
    let processor = plain(2);
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let mut counters = processor.take(&mock, &memory, &table);
    let mut events = [raw(2); 5];
    events[0] = raw(2).exclusive();
    let refused = EventsError { events: 1 << 4, reason: CounterError::NoFreeCounter };
    assert_eq!(counters.open(&processor.unit, &events), Err(refused));
    let group = counters.open(&processor.unit, &events[..4]).unwrap();
    counters.enable(group, 0).unwrap();
    counters.shut_down().unwrap();
}

/// A register faults at each access: either the exclusive event runs or the others do.
#[test]
fn a_fault_at_each_access_leaves_an_exclusive_event_alone() {
    for processor in processors(Deviations::NONE) {
        for access in 1.. {
            let mut reached = false;
            for fault in [Fault::At(access), Fault::From(access)] {
                let context = format!("{processor:?}, {fault:?}");
                let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
                let mut counters = processor.take(&mock, &memory, &table);
                let others = [2, 3].map(|kind| {
                    let id = counters.open(&processor.unit, &[raw(kind).rotating()]).unwrap();
                    counters.enable(id, 0).unwrap();
                    id
                });
                let alone = raw(4).exclusive();
                let alone = counters.open(&processor.unit, &[alone]).unwrap();
                mock.clear();
                mock.inject(fault);
                let started = counters.enable(alone, 1);
                reached = mock.accesses().total() >= access;
                mock.inject(Fault::None);
                let beside = others.iter().any(|id| is_on(&counters, *id));
                assert!(!(is_on(&counters, alone) && beside), "{context}: {started:?}");
                if let Fault::At(_) = fault {
                    assert_eq!(started, Ok(()), "{context}");
                    assert!(is_on(&counters, alone) && running(&mock).len() == 1, "{context}");
                }
                counters.shut_down().unwrap();
                assert_eq!(running(&mock), CounterSet::NONE, "{context}");
            }
            if !reached {
                assert!(access > 4, "{processor:?}: {access}");
                break;
            }
        }
    }
}
