//! An event is enabled for which a rotating group has no room: the group leaves its counters, and loses nothing.

use core::cell::RefCell;

use pmu_core::facility::SoftwareEvents;
use pmu_core::{
    CounterSession, CounterSet, Event, EventCount, EventId, EventStatus, Events, SoftwareEvent,
    service,
};
use pmu_tests::opened::*;
use pmu_virt::mock::{Deviations, Fault};

/// Returns a processor's first three general counters.
fn three(processor: &Processor) -> [CounterSet; 3] {
    let general = processor.unit.counters() & CounterSet::GENERAL;
    core::array::from_fn(|number| general.iter().nth(number).unwrap().only())
}

/// A group of three that rotates, whose last event is disabled; and an event that has that one's counter.
fn scene(
    counters: &mut Opened<'_, '_>,
    processor: &Processor,
    first: impl Fn(Event) -> Event,
) -> (Vec<EventId>, EventId) {
    let [a, b, c] = three(processor);
    let events = [first(raw(2)).on(a).rotating(), raw(3).on(b), raw(4).on(c)];
    let group = counters.open(&processor.unit, &events).unwrap();
    let ids: Vec<_> = counters.group_events(group).collect();
    counters.disable(ids[2], 0).unwrap();
    counters.enable(group, 0).unwrap();
    let pinned = counters.start(&processor.unit, &[raw(5).on(c)], 0).unwrap();
    (ids, pinned)
}

/// As in a rotation, an overflow that is pending is reported at the event's next occurrence.
#[test]
fn an_overflow_that_is_pending_as_the_group_leaves_is_reported_later() {
    // Counters that freeze would stay frozen until the interrupt.
    for processor in processors(Deviations::NONE).into_iter().filter(|of| !of.freezing) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let seen = RefCell::new(vec![]);
        let mut counters = processor.take(&mock, &memory, &table);
        let (ids, pinned) = scene(&mut counters, &processor, |event| event.every(0x1000));
        happen(&mock, 2, 0x1000);
        counters.enable(ids[2], 10).unwrap();
        assert_eq!(counters.event_status(ids[0]), Ok(EventStatus::Inactive), "{processor:?}");
        counters.close(pinned, 20).unwrap();
        counters.rotate(20).unwrap();
        assert!(counters.counter_of(ids[0]).is_some(), "{processor:?}");
        happen(&mock, 2, 1);
        let source = Events::new(&processor.unit, &table);
        let _ = service(&source, &mock, &memory, |o| seen.borrow_mut().push(o.event));
        assert_eq!(seen.take(), [ids[0]], "{processor:?}");
        counters.shut_down().unwrap();
    }
}

/// The error says that the event stays disabled: its group takes turns as before, once the registers answer.
#[test]
fn a_group_that_cannot_leave_its_counters_is_not_disabled() {
    for processor in processors(Deviations::NONE) {
        for access in 1..40 {
            let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
            let mut counters = processor.take(&mock, &memory, &table);
            let (ids, pinned) = scene(&mut counters, &processor, |event| event);
            mock.clear();
            mock.inject(Fault::From(access));
            let enabled = counters.enable(ids[2], 10);
            let is_reached = mock.accesses().total() >= access;
            mock.inject(Fault::None);
            if !is_reached {
                break;
            }
            if enabled.is_err() {
                let on = [0, 1].map(|member| counters.event_status(ids[member]).unwrap());
                assert!(
                    !on.contains(&EventStatus::Off),
                    "{processor:?}, {access}: {enabled:?} {on:?}"
                );
            }
            counters.reprogram(|o| panic!("{o:?}")).unwrap();
            counters.restart_faulted(20).unwrap();
            counters.close(pinned, 20).unwrap();
            counters.rotate(30).unwrap();
            happen(&mock, 2, 5);
            let mut counts = [EventCount::default(); 3];
            counters.read_group(ids[0], 40, &mut counts).unwrap();
            assert_eq!(counts[0].value, 5, "{processor:?}, {access}: {enabled:?}");
            counters.shut_down().unwrap();
        }
    }
}

/// With a clock, which is the first of its group, or another one: it stands still while the group waits.
#[test]
fn a_clock_of_a_group_that_leaves_waits_with_it() {
    for (is_first, freed) in [(false, false), (true, false), (false, true), (true, true)] {
        let processor = plain(4);
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let source = Events::new(&processor.unit, &table).with(SoftwareEvents);
        let unit = &processor.unit;
        let mut counters =
            CounterSession::take(source, unit, CounterSet::ALL, &mock, &memory).unwrap();
        let [a, _, c] = three(&processor);
        let clock = Event::software(SoftwareEvent::TaskClock).rotating();
        let counted = raw(2).on(a).rotating();
        let [first, second] = if is_first { [clock, counted] } else { [counted, clock] };
        let group = counters.open(unit, &[first, second, raw(4).on(c)]).unwrap();
        let ids: Vec<_> = counters.group_events(group).collect();
        counters.disable(ids[2], 0).unwrap();
        counters.enable(group, 0).unwrap();
        let pinned = counters.start(unit, &[raw(5).on(c)], 0).unwrap();
        happen(&mock, 2, 10);
        counters.enable(ids[2], 10).unwrap();
        counters.enable(ids[2], 15).unwrap();
        counters.enable(group, 16).unwrap();
        happen(&mock, 2, 10);
        let states = [0, 1, 2].map(|member| counters.event_status(ids[member]).unwrap());
        assert_eq!(states, [EventStatus::Inactive; 3], "{is_first}, {freed}");
        if freed {
            counters.close(pinned, 20).unwrap();
        } else {
            counters.disable(ids[2], 20).unwrap();
        }
        counters.rotate(20).unwrap();
        happen(&mock, 2, 10);
        happen(&mock, 4, 3);
        let mut counts = [EventCount::default(); 3];
        assert_eq!(counters.close_group(group, 30, &mut counts), Ok(3));
        let of = |value, enabled, running| EventCount { value, enabled, running };
        let pair = [of(20, 30, 20); 2];
        let last = if freed { of(3, 20, 10) } else { of(0, 10, 0) };
        assert_eq!(counts, [pair[0], pair[1], last], "{is_first}, {freed}");
    }
}

/// A clock beside an event whose start fails, alone or as the first: nothing of it is left.
#[test]
fn a_clock_of_a_group_that_cannot_be_started_is_not_opened() {
    for is_first in [false, true] {
        for access in 0..30 {
            let processor = plain(4);
            let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
            let source = Events::new(&processor.unit, &table).with(SoftwareEvents);
            let unit = &processor.unit;
            let mut counters =
                CounterSession::take(source, unit, CounterSet::ALL, &mock, &memory).unwrap();
            let [a, ..] = three(&processor);
            if access == 0 {
                counters.start(unit, &[raw(3).on(a)], 0).unwrap();
            }
            let (clock, event) = (Event::software(SoftwareEvent::TaskClock), raw(2).on(a));
            let events = if is_first { [clock, event] } else { [event, clock] };
            mock.clear();
            mock.inject(if access == 0 { Fault::None } else { Fault::From(access) });
            let started = counters.start(unit, &events, 0);
            mock.inject(Fault::None);
            if started.is_ok() {
                assert!(access > 1);
                break;
            }
            assert_eq!(counters.events().count(), usize::from(access == 0));
            let _ = counters.reprogram(|_| ());
            let clock = counters.open(unit, &[clock]).unwrap();
            assert_eq!(counters.read(clock, 20).unwrap(), EventCount::default());
            counters.enable(clock, 30).unwrap();
            let count = EventCount { value: 5, enabled: 5, running: 5 };
            assert_eq!(counters.close(clock, 35), Ok(count));
            counters.shut_down().unwrap();
        }
    }
}
