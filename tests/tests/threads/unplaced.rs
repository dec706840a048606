//! Events without a processor: made, changed while they are out, inherited, and added up.

use core::cell::RefCell;

use pmu_core::branches::BranchFilter;
use pmu_core::error::{CounterError, EventsError};
use pmu_core::memory::EventTable;
use pmu_core::precise::{NotPrecise, Precision, SampleParts};
use pmu_core::registers::EventSelect;
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::{CounterSet, Event, EventCount, Events, GenericEvent, service};
use pmu_tests::Reason;
use pmu_tests::opened::*;
use pmu_virt::configuration::IntelConfiguration;
use pmu_virt::mock::Deviations;

const PERIOD: u64 = 0x1000;

fn out(event: ThreadEvent) -> SavedEvent {
    match event {
        ThreadEvent::SwitchedOut(event) => event,
        other => panic!("{other:?}"),
    }
}

fn opened(event: ThreadEvent) -> pmu_core::EventId {
    match event {
        ThreadEvent::Opened(id) => id,
        other => panic!("{other:?}"),
    }
}

/// Every counter and every place is in use; the event is made all the same, and counts once there is room.
#[test]
fn an_event_is_made_where_no_place_is_free_and_counts_as_an_opened_one() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let unit = &processor.unit;
        let mut counters = processor.take(&mock, &memory, &table);
        let full: Vec<_> = (0..12).map(|_| counters.open(unit, &[raw(3)]).unwrap()).collect();
        mock.clear();
        let made = SavedEvent::new(unit, &raw(2).tagged(7)).unwrap();
        assert_eq!(mock.accesses().total(), 0);
        assert!(!made.is_enabled() && made.count() == EventCount::default());
        for event in full {
            counters.close(event, 0).unwrap();
        }
        let mut thread = [ThreadEvent::SwitchedOut(made)];
        counters.switch_in(unit, &mut thread, 0).unwrap();
        assert!(!counters.is_enabled(opened(thread[0])), "{processor:?}");
        // The same event opened, and switched out, is the same.
        let other = counters.open(unit, &[raw(2).tagged(7)]).unwrap();
        let mut both = [thread[0], ThreadEvent::Opened(other)];
        counters.switch_out(&mut both, 0, |o| panic!("{o:?}")).unwrap();
        assert_eq!([out(both[0]), out(both[1])], [made; 2], "{processor:?}");
        let mut thread = [ThreadEvent::SwitchedOut(made.to_be_enabled(true))];
        counters.switch_in(unit, &mut thread, 10).unwrap();
        happen(&mock, 2, 77);
        let count = counters.read(opened(thread[0]), 15).unwrap();
        assert_eq!(count, EventCount { value: 77, enabled: 5, running: 5 }, "{processor:?}");
        counters.shut_down().unwrap();
    }
}

#[test]
fn an_event_that_cannot_be_is_refused_as_open_event_refuses_it() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let unit = &processor.unit;
        let mut counters = processor.take(&mock, &memory, &table);
        let events = [
            raw(2),
            raw(2).every(1),
            raw(2).every(PERIOD - 1),
            raw(2).every(PERIOD),
            raw(2).every(i64::MAX as u64),
            raw(2).every(1 << 63),
            raw(2).on(CounterSet::fixed(1 << 7)),
            raw(2).in_guests(),
            raw(2).outside_guests(),
            Event::raw(EventSelect::from_bits(1 << 20)),
            Event::raw(EventSelect::from_bits(1 << 22)),
        ];
        let named = GenericEvent::ALL.map(Event::generic);
        for event in events.into_iter().chain(named) {
            let (made, open) = (SavedEvent::new(unit, &event), counters.open(unit, &[event]));
            assert_eq!(made.map(drop), open.map(drop).reason(), "{processor:?}: {event:?}");
            let Ok(open) = open else { continue };
            let mut thread = [ThreadEvent::Opened(open)];
            counters.switch_out(&mut thread, 0, |o| panic!("{o:?}")).unwrap();
            assert_eq!(made, Ok(out(thread[0])), "{processor:?}: {event:?}");
        }
        counters.shut_down().unwrap();
    }
}

#[test]
fn an_event_that_no_facility_can_sample_is_refused_without_a_session() {
    let parts = SampleParts::REGISTERS;
    let refused = CounterError::NotPrecise;
    let precise = |event: Event| event.precise(Precision::ConstantSkid);
    let sampled = raw(2).every(PERIOD);
    for processor in processors(Deviations::NONE) {
        let made = |event: Event| SavedEvent::new(&processor.unit, &event).map(drop);
        assert_eq!(made(precise(raw(2))), Err(refused(NotPrecise::NoPeriod)));
        assert_eq!(made(sampled.recording(parts)), Err(refused(NotPrecise::Parts(parts))));
        let loads = sampled.latency_at_least(64);
        assert_eq!(made(loads), Err(refused(NotPrecise::NotLatencyEvent)));
        let reloaded = precise(sampled).reloaded_by(0b1);
        assert_eq!(made(reloaded), Err(CounterError::NotReloadable));
        for event in [
            precise(sampled),
            precise(sampled.recording(parts)),
            precise(loads),
            sampled.reloaded_by(0b1),
            sampled.with_branches(BranchFilter::USER),
        ] {
            assert_eq!(made(event), Ok(()), "{event:?}");
        }
    }
}

/// The period, the count, and whether it is started are changed while the event is out.
#[test]
fn an_event_is_changed_while_it_is_out() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, told) = (Memory::new(), Table::new(), RefCell::new(vec![]));
        let source = Events::new(&processor.unit, &table);
        let handler = |mock: &Mock<'_>| {
            service(&source, mock, &memory, |o| told.borrow_mut().push(o.period)).unwrap();
        };
        let mock = processor.mock();
        mock.on_interrupt(&handler);
        let unit = &processor.unit;
        let mut counters = processor.take(&mock, &memory, &table);
        let event = SavedEvent::new(unit, &raw(2).every(PERIOD).with_total()).unwrap();
        let mut thread = [ThreadEvent::SwitchedOut(event.to_be_enabled(true))];
        counters.switch_in(unit, &mut thread, 0).unwrap();
        happen(&mock, 2, PERIOD - 1);
        counters.switch_out(&mut thread, 10, |o| panic!("{o:?}")).unwrap();
        let mut event = out(thread[0]);
        for refused in [0, PERIOD - 1, 1 << 63] {
            let outcome = event.set_period(&table, refused);
            assert_eq!(outcome, Err(CounterError::Period(refused)));
            assert_eq!(event, out(thread[0]), "unchanged");
        }
        // A whole period begins, though one event was left of the old one; the count is new, the times go on.
        event.set_period(&table, 2 * PERIOD).unwrap();
        let mut thread = [ThreadEvent::SwitchedOut(event.reset_count())];
        counters.switch_in(unit, &mut thread, 20).unwrap();
        happen(&mock, 2, 2 * PERIOD - 1);
        assert_eq!(told.take(), [], "{processor:?}");
        happen(&mock, 2, 1);
        assert_eq!(told.take(), [2 * PERIOD], "{processor:?}");
        let count = counters.read(opened(thread[0]), 25).unwrap();
        let expected = EventCount { value: 2 * PERIOD, enabled: 15, running: 15 };
        assert_eq!(count, expected, "{processor:?}");
        counters.switch_out(&mut thread, 30, |o| panic!("{o:?}")).unwrap();
        // A table's own minimum; and the event stays out of the way, stopped.
        table.set_min_period(16);
        let mut event = out(thread[0]).to_be_enabled(false);
        event.set_period(&table, 16).unwrap();
        assert_eq!(event.set_period(EventTable::none(), 16), Err(CounterError::Period(16)));
        let mut thread = [ThreadEvent::SwitchedOut(event)];
        counters.switch_in(unit, &mut thread, 40).unwrap();
        happen(&mock, 2, 100);
        counters.enable(opened(thread[0]), 40).unwrap();
        happen(&mock, 2, 16);
        assert_eq!(told.take(), [16], "{processor:?}");
        counters.shut_down().unwrap();
        let mut plain = SavedEvent::new(unit, &raw(2)).unwrap();
        assert_eq!(plain.set_period(&table, PERIOD), Err(CounterError::Period(PERIOD)));
    }
}

/// A thread and its children, each with the event; all counts and times in the parent at the end, on a counter or out.
#[test]
fn a_child_counts_anew_and_its_count_is_its_parents_at_exit() {
    for processor in processors(Deviations::NONE) {
        for parent_is_out in [false, true] {
            inherit(&processor, parent_is_out);
        }
    }
}

fn inherit(processor: &Processor, parent_is_out: bool) {
    let context = format!("{processor:?}, parent out: {parent_is_out}");
    let (memory, table, told) = (Memory::new(), Table::new(), RefCell::new(vec![]));
    let source = Events::new(&processor.unit, &table);
    let handler = |mock: &Mock<'_>| {
        service(&source, mock, &memory, |o| told.borrow_mut().push(o.tag)).unwrap();
    };
    let mock = processor.mock();
    mock.on_interrupt(&handler);
    let unit = &processor.unit;
    let mut counters = processor.take(&mock, &memory, &table);
    let event = raw(2).every(PERIOD).with_total().tagged(1);
    let made = SavedEvent::new(unit, &event).unwrap().to_be_enabled(true);
    let mut parent = [ThreadEvent::SwitchedOut(made)];
    counters.switch_in(unit, &mut parent, 0).unwrap();
    happen(&mock, 2, PERIOD + 0x100);
    assert_eq!(told.take(), [1], "{context}");
    let child = counters.child_event(opened(parent[0]), 2).unwrap();
    counters.switch_out(&mut parent, 10, |o| panic!("{o:?}")).unwrap();
    assert_eq!(child, out(parent[0]).child(2), "{context}: the same from an event that is out");
    assert!(child.is_enabled() && child.count() == EventCount::default());
    let mut child = [ThreadEvent::SwitchedOut(child)];
    counters.switch_in(unit, &mut child, 100).unwrap();
    // A whole period: not what is left of the parent's.
    happen(&mock, 2, PERIOD - 1);
    assert_eq!(told.take(), [], "{context}");
    happen(&mock, 2, 3);
    assert_eq!(told.take(), [2], "{context}");
    counters.switch_out(&mut child, 107, |o| panic!("{o:?}")).unwrap();
    let exited = out(child[0]).count();
    assert_eq!(exited, EventCount { value: PERIOD + 2, enabled: 7, running: 7 }, "{context}");
    if parent_is_out {
        let mut event = out(parent[0]);
        event.add_count(exited);
        parent = [ThreadEvent::SwitchedOut(event)];
    }
    counters.switch_in(unit, &mut parent, 200).unwrap();
    happen(&mock, 2, 0x10);
    if !parent_is_out {
        counters.add_count(opened(parent[0]), exited).unwrap();
    }
    // The parent's own period is as it was.
    happen(&mock, 2, PERIOD - 0x111);
    assert_eq!(told.take(), [], "{context}");
    happen(&mock, 2, 1);
    assert_eq!(told.take(), [1], "{context}");
    let count = counters.read(opened(parent[0]), 205).unwrap();
    let expected = EventCount { value: 3 * PERIOD + 2, enabled: 22, running: 22 };
    assert_eq!(count, expected, "{context}");
    counters.switch_out(&mut parent, 210, |o| panic!("{o:?}")).unwrap();
    assert_eq!(out(parent[0]).count().value, 3 * PERIOD + 2, "{context}");
    let reporting = counters.open(unit, &[raw(3).every(PERIOD)]).unwrap();
    let no_total = Err(CounterError::NoTotal(reporting));
    assert_eq!(counters.add_count(reporting, exited), no_total);
    counters.close(reporting, 0).unwrap();
    assert_eq!(counters.add_count(reporting, exited), Err(CounterError::NoSuchEvent(reporting)));
    counters.shut_down().unwrap();
}

/// A child that always had a counter does not take its parent's turns away.
#[test]
fn a_childs_times_leave_its_parents_share_as_it_was() {
    for parent_is_out in [false, true] {
        let processor = Processor::intel(IntelConfiguration::new(4, 1, 0));
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let unit = &processor.unit;
        let mut counters = processor.take(&mock, &memory, &table);
        let event = SavedEvent::new(unit, &raw(2).rotating()).unwrap().to_be_enabled(true);
        let mut two = [ThreadEvent::SwitchedOut(event); 2];
        counters.switch_in(unit, &mut two, 0).unwrap();
        let mut now = 0;
        let mut running = |counters: &mut Opened<'_, '_>, two: &[ThreadEvent; 2]| {
            let mut ran = 0;
            for _ in 0..100 {
                now += 10;
                ran += u64::from(counters.counter_of(opened(two[0])).is_some());
                counters.rotate(now).unwrap();
            }
            ran
        };
        assert_eq!(running(&mut counters, &two), 50);
        let child = EventCount { value: 1, enabled: 1_000_000, running: 1_000_000 };
        if parent_is_out {
            counters.switch_out(&mut two, 1000, |o| panic!("{o:?}")).unwrap();
            let mut event = out(two[0]);
            event.add_count(child);
            two[0] = ThreadEvent::SwitchedOut(event);
            counters.switch_in(unit, &mut two, 1000).unwrap();
        } else {
            counters.add_count(opened(two[0]), child).unwrap();
        }
        assert_eq!(running(&mut counters, &two), 50, "out: {parent_is_out}");
        counters.shut_down().unwrap();
    }
}

/// A group made without a processor, and the group of its children, beside each other.
#[test]
fn a_group_is_made_and_inherited_without_a_processor() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let unit = &processor.unit;
        let mut counters = processor.take(&mock, &memory, &table);
        let leader = SavedEvent::new(unit, &raw(2)).unwrap().to_be_enabled(true);
        let mut parents = [leader, SavedEvent::new(unit, &raw(3).rotating()).unwrap()];
        SavedEvent::make_group(&mut parents).unwrap();
        let former = parents;
        // Its members leave it for another one, which rotates and is to be started as its first event.
        SavedEvent::make_group(&mut parents).unwrap();
        assert_ne!(former, parents);
        let plain = SavedEvent::new(unit, &raw(3)).unwrap().to_be_enabled(true);
        assert_eq!(parents[1].child(0), plain, "{processor:?}");
        let mut children = parents.map(|parent| parent.child(9));
        SavedEvent::make_group(&mut children).unwrap();
        let mut thread = [parents, children].concat();
        let mut thread: Vec<_> = thread.drain(..).map(ThreadEvent::SwitchedOut).collect();
        counters.switch_in(unit, &mut thread, 0).unwrap();
        let [group, of_children] = [0, 2].map(|place| opened(thread[place]));
        for (group, events) in [(group, &thread[..2]), (of_children, &thread[2..])] {
            let ids: Vec<_> = events.iter().copied().map(opened).collect();
            assert_eq!(counters.group_events(group).collect::<Vec<_>>(), ids, "{processor:?}");
            assert!(ids.iter().all(|id| counters.counter_of(*id).is_some()), "{processor:?}");
        }
        happen(&mock, 2, 5);
        counters.disable(group, 3).unwrap();
        happen(&mock, 3, 6);
        let mut counts = [EventCount::default(); 2];
        assert_eq!(counters.read_group(of_children, 4, &mut counts), Ok(2));
        assert_eq!(counts.map(|count| (count.value, count.running)), [(5, 4), (6, 4)]);
        assert_eq!(counters.read_group(group, 4, &mut counts), Ok(2));
        assert_eq!(counts.map(|count| (count.value, count.running)), [(5, 3), (0, 3)]);
        counters.shut_down().unwrap();
        assert_eq!(
            SavedEvent::make_group(&mut []),
            Err(EventsError { events: 0, reason: CounterError::NoEvents })
        );
        let many = &mut [leader; pmu_core::registers::MAX_COUNTERS + 1];
        let refused = SavedEvent::make_group(many).unwrap_err();
        assert_eq!(refused.reason, CounterError::NoFreeCounter);
        assert_eq!(many[0], leader, "nothing was changed");
    }
}

/// More members than the processor has counters: known where the thread comes to it.
#[test]
fn a_group_without_room_is_an_error_of_the_processor_it_comes_to() {
    let processor = Processor::intel(IntelConfiguration::new(4, 1, 0));
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let mut counters = processor.take(&mock, &memory, &table);
    let event = SavedEvent::new(&processor.unit, &raw(2)).unwrap().to_be_enabled(true);
    let mut two = [event; 2];
    SavedEvent::make_group(&mut two).unwrap();
    let mut thread = two.map(ThreadEvent::SwitchedOut);
    let outcome = counters.switch_in(&processor.unit, &mut thread, 0);
    assert_eq!(outcome, Err(EventsError { events: 0b11, reason: CounterError::NoFreeCounter }));
    assert_eq!(running(&mock), CounterSet::NONE);
}
