//! Threads' events: taken from a processor and given to another, beside sources that continue.

use core::cell::{Cell, RefCell};

use pmu_core::error::{CounterError, EventsError};
use pmu_core::interrupt::EventOverflow;
use pmu_core::profile::{KProfileSource, Session};
use pmu_core::registers::CounterId;
use pmu_core::thread::ThreadEvent;
use pmu_core::{CounterSet, EventId, EventSource, Events, service};
use pmu_intel::Emon;
use pmu_tests::Reason;
use pmu_tests::opened::*;
use pmu_tests::reports::{Report, service_reports};
use pmu_virt::configuration::{IntelConfiguration, IntelFeature};
use pmu_virt::mock::{Deviations, Fault};

const PERIOD: u64 = 0x1000;

fn opened_event(event: ThreadEvent) -> EventId {
    match event {
        ThreadEvent::Opened(id) => id,
        other => panic!("{other:?}"),
    }
}

/// A thread wanders between two processors, on the second of which other events have the counters that it had
/// on the first. What it counts, and its reports, are the naive model's.
#[test]
fn a_threads_events_follow_it_to_other_counters_and_processors() {
    for processor in processors(Deviations::NONE) {
        for seed in 1..30 {
            wander(&processor, seed);
        }
    }
}

fn wander(processor: &Processor, seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let (memories, tables) = ([Memory::new(), Memory::new()], [Table::new(), Table::new()]);
    let told = [const { Cell::new(0u64) }; 8];
    let identities = Cell::new([None::<(EventId, usize)>; 3]);
    let report = |overflow: EventOverflow| {
        for (id, kind) in identities.get().into_iter().flatten() {
            if id == overflow.event {
                assert_eq!(overflow.period, PERIOD);
                told[kind].set(told[kind].get() + 1);
            }
        }
    };
    let handler = |n: usize| {
        let (memory, table) = (&memories[n], &tables[n]);
        move |mock: &Mock<'_>| {
            let source = Events::new(&processor.unit, table);
            service(&source, mock, memory, |sample| report(*sample)).unwrap();
        }
    };
    let (first, second) = (handler(0), handler(1));
    let mocks = [processor.mock(), processor.mock()];
    mocks[0].on_interrupt(&first);
    mocks[1].on_interrupt(&second);
    let mut on = [
        processor.take(&mocks[0], &memories[0], &tables[0]),
        processor.take(&mocks[1], &memories[1], &tables[1]),
    ];
    let unit = &processor.unit;
    let other = on[1].open(unit, &[raw(5)]).unwrap();
    on[1].enable(other, 0).unwrap();
    // A sampling event, one with a total, and one that is only counted.
    let mut thread = [raw(2).every(PERIOD), raw(3).every(PERIOD).with_total(), raw(4)]
        .map(|event| ThreadEvent::Opened(on[0].open(unit, &[event]).unwrap()));
    for event in thread {
        on[0].enable(opened_event(event), 0).unwrap();
    }
    let set = |thread: &[ThreadEvent; 3]| {
        let mut kinds = [2, 3, 4].into_iter();
        identities.set(thread.map(|event| Some((opened_event(event), kinds.next()?))));
    };
    set(&thread);
    let (mut here, mut passed, mut time) = (0, [0u64; 3], 0);
    let mut running_time = 0;
    for step in 0..40 {
        let context = format!("{processor:?}, seed {seed}, step {step}");
        for (place, passed) in passed.iter_mut().enumerate() {
            let count = random.below(0x900);
            happen(&mocks[here], 2 + place, count);
            happen(&mocks[1 - here], 2 + place, count);
            *passed += count;
        }
        time += 10;
        running_time += 10;
        on[here].switch_out(&mut thread, time, |o| panic!("{context}: {o:?}")).unwrap();
        time += 3;
        assert_eq!(running(&mocks[here]).len(), here, "{context}");
        here = random.below(2) as usize;
        on[here].switch_in(unit, &mut thread, time).unwrap();
        set(&thread);
        for (place, kind) in [(0, 2), (1, 3)] {
            assert_eq!(told[kind].get(), passed[place] / PERIOD, "{context}: {kind}");
        }
        for place in [1, 2] {
            let count = on[here].read(opened_event(thread[place]), time).unwrap();
            assert_eq!(count.value, passed[place], "{context}: {place}");
            assert_eq!((count.enabled, count.running), (running_time, running_time), "{context}");
        }
    }
    assert_eq!(on[1].read(other, 0).map(|count| count.value), Ok(0));
    for counters in &mut on {
        counters.shut_down().unwrap();
    }
    assert!(mocks.iter().all(|mock| running(mock).is_empty()));
}

/// An overflow comes up between the thread's last instruction and the switch, with interrupts off.
#[test]
fn an_overflow_that_is_pending_at_a_switch_is_reported_once() {
    for processor in processors(Deviations::NONE) {
        for beyond in [0, 1, 0x10, 5 * PERIOD + 3] {
            let (memory, table) = (Memory::new(), Table::new());
            let reports = RefCell::new(vec![]);
            let claims = RefCell::new(vec![]);
            let source = Events::new(&processor.unit, &table);
            let handler = |mock: &Mock<'_>| {
                let push = |o: EventOverflow| reports.borrow_mut().push(o.event);
                let serviced = service(&source, mock, &memory, |sample| push(*sample)).unwrap();
                claims.borrow_mut().push(serviced.claim);
            };
            let mock = processor.mock();
            mock.on_interrupt(&handler);
            let mut counters = processor.take(&mock, &memory, &table);
            let unit = &processor.unit;
            let id = counters.open(unit, &[raw(2).every(PERIOD).with_total()]).unwrap();
            counters.enable(id, 0).unwrap();
            let mut feed = happened(2, PERIOD + beyond);
            assert!(mock.pass(&mut feed).pmi);
            // Events after the overflow, unless the processor froze its counters.
            let frozen = processor.freezing;
            mock.pass(&mut feed);
            let counted = PERIOD + if frozen { 0 } else { beyond };
            let mut thread = [ThreadEvent::Opened(id)];
            let context = format!("{processor:?}, {beyond}");
            counters
                .switch_out(&mut thread, 0, |o| {
                    assert_eq!((o.event, o.period), (id, PERIOD), "{context}");
                    reports.borrow_mut().push(o.event);
                })
                .unwrap();
            assert_eq!(*reports.borrow(), [id], "{context}");
            // The interrupt comes after all: it is spurious, and is claimed.
            mock.deliver();
            assert_eq!(*reports.borrow(), [id], "{context}");
            assert_eq!(claims.borrow().len(), 1);
            assert_ne!(claims.borrow()[0], pmu_core::Claim::NotOurs, "{context}");
            let ThreadEvent::SwitchedOut(stopped) = thread[0] else { panic!("{thread:?}") };
            assert_eq!(stopped.count().value, counted, "{context}");
            counters.switch_in(unit, &mut thread, 0).unwrap();
            // The next period is a whole one.
            happen(&mock, 2, PERIOD - 1);
            assert_eq!(reports.borrow().len(), 1, "{context}");
            happen(&mock, 2, 1);
            assert_eq!(reports.borrow().len(), 2, "{context}");
            counters.shut_down().unwrap();
        }
    }
}

/// Sources go on while threads come and go, and the reverse: a thread's sources are saved beside events of the
/// whole processor that go on.
#[test]
fn sources_and_threads_events_leave_each_other_alone() {
    for (version, general) in [(1, 4), (2, 4), (4, 4), (5, 6), (6, 8)] {
        let fixed = if version > 1 { 3 } else { 0 };
        let processor = Processor::intel(IntelConfiguration::new(version, general, fixed));
        let emon = Emon::detect(&processor.snapshot).unwrap();
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let both = Events::new(&emon, &table);
        let (sources, events) = (Cell::new(0), Cell::new(0));
        let handler = |mock: &Mock<'_>| {
            service_reports(&both, mock, &memory, |report| match report {
                Report::Source(overflow) => {
                    assert_eq!(overflow.source, KProfileSource::TOTAL_CYCLES);
                    sources.set(sources.get() + 1);
                }
                Report::Event(_) => events.set(events.get() + 1),
            })
            .unwrap();
        };
        mock.on_interrupt(&handler);
        emon.set_interval(KProfileSource::TOTAL_CYCLES, PERIOD).unwrap();
        let mut session =
            Session::take(both, &processor.snapshot, CounterSet::ALL, &mock, &memory).unwrap();
        session.start(KProfileSource::TOTAL_CYCLES).unwrap();
        let unit = &processor.unit;
        let id = session.counters_mut().open(unit, &[raw(2).every(PERIOD)]).unwrap();
        let whole = session.counters_mut().open(unit, &[raw(3)]).unwrap();
        session.counters_mut().enable(whole, 0).unwrap();
        let mut thread = [ThreadEvent::Opened(id)];
        session.counters_mut().enable(id, 0).unwrap();
        for turn in 0..10 {
            (1..4).for_each(|kind| happen(&mock, kind, 0x400));
            let counters = session.counters_mut();
            counters.switch_out(&mut thread, 0, |o| panic!("{o:?}")).unwrap();
            (1..4).for_each(|kind| happen(&mock, kind, 0x400));
            session.counters_mut().switch_in(unit, &mut thread, 0).unwrap();
            assert_eq!((sources.get(), events.get()), ((turn + 1) / 2, (turn + 1) / 4));
        }
        let read = session.counters_mut().read(whole, 0).unwrap().value;
        assert_eq!(read, 20 * 0x400);
        // The thread's sources are saved: the events go on.
        let mut area =
            pmu_core::thread::SavedCounters::<[pmu_core::thread::SavedCounter; 24]>::new();
        session.save(&mut area, |o| panic!("{o:?}")).unwrap();
        assert_eq!(area.len(), 1);
        let before = (sources.get(), events.get());
        (1..4).for_each(|kind| happen(&mock, kind, 2 * PERIOD));
        assert_eq!((sources.get(), events.get()), (before.0, before.1 + 2));
        let read = session.counters_mut().read(whole, 0).unwrap().value;
        assert_eq!(read, 20 * 0x400 + 2 * PERIOD);
        session.restore(&area).unwrap();
        happen(&mock, 1, PERIOD);
        assert_eq!(sources.get(), before.0 + 1);
        session.shut_down().unwrap();
        assert_eq!(running(&mock), CounterSet::NONE);
    }
}

/// A period beyond the reach of the other processor's counters: in full-width registers here, in chunks there.
#[test]
fn a_period_goes_on_on_a_counter_of_shorter_reach() {
    let wide = Processor::intel(IntelConfiguration::new(4, 4, 0));
    let narrow = Processor::intel(
        IntelConfiguration::new(4, 4, 0)
            .with(|intel| intel.set(IntelFeature::FullWidthWrites, false)),
    );
    let (memories, tables) = ([Memory::new(), Memory::new()], [Table::new(), Table::new()]);
    let told = RefCell::new(vec![]);
    let mock = wide.mock();
    let (unit, memory, table) = (narrow.unit, &memories[1], &tables[1]);
    let handler = |mock: &Mock<'_>| {
        let source = Events::new(&unit, table);
        service(&source, mock, memory, |o| told.borrow_mut().push(o.period)).unwrap();
    };
    let other = narrow.mock();
    other.on_interrupt(&handler);
    let mut here = wide.take(&mock, &memories[0], &tables[0]);
    let mut there = narrow.take(&other, memory, table);
    let period = 1 << 40;
    let id = here.open(&wide.unit, &[raw(2).every(period).with_total()]).unwrap();
    here.enable(id, 0).unwrap();
    happen(&mock, 2, period / 2);
    let mut thread = [ThreadEvent::Opened(id)];
    here.switch_out(&mut thread, 0, |o| panic!("{o:?}")).unwrap();
    there.switch_in(&narrow.unit, &mut thread, 0).unwrap();
    happen(&other, 2, period / 2 - 1);
    assert_eq!(told.take(), []);
    happen(&other, 2, 1);
    assert_eq!(told.take(), [period]);
    let id = opened_event(thread[0]);
    assert_eq!(there.read(id, 0).unwrap().value, period);
    assert_eq!(there.counter_of(id), CounterId::general(0));
}

/// An event that finds no place stays with the thread, and one that finds no counter is opened, stopped.
#[test]
fn a_thread_that_finds_no_room_keeps_its_events() {
    let processor = Processor::intel(IntelConfiguration::new(4, 1, 0));
    let (memories, tables) = ([Memory::new(), Memory::new()], [Table::new(), Table::new()]);
    let mocks = [processor.mock(), processor.mock()];
    let mut here = processor.take(&mocks[0], &memories[0], &tables[0]);
    let mut there = processor.take(&mocks[1], &memories[1], &tables[1]);
    let unit = &processor.unit;
    let mut thread =
        [raw(2), raw(3).rotating()].map(|e| ThreadEvent::Opened(here.open(unit, &[e]).unwrap()));
    let [first, second] = thread.map(opened_event);
    here.enable(first, 0).unwrap();
    here.enable(second, 0).unwrap();
    happen(&mocks[0], 2, 9);
    here.switch_out(&mut thread, 0, |o| panic!("{o:?}")).unwrap();
    let filler: Vec<_> = (0..11).map(|_| there.open(unit, &[raw(4)]).unwrap()).collect();
    there.enable(filler[0], 0).unwrap();
    // One place, and no counter.
    let outcome = there.switch_in(unit, &mut thread, 0);
    let full = CounterError::InsufficientMemory { needed: 13, lent: 12 };
    assert_eq!(outcome, Err(EventsError { events: 0b11, reason: full }));
    let id = opened_event(thread[0]);
    assert!(!there.is_enabled(id));
    assert!(matches!(thread[1], ThreadEvent::SwitchedOut(_)));
    assert_eq!(there.read(id, 0).unwrap().value, 9);
    there.close(filler[5], 0).unwrap();
    there.switch_in(unit, &mut thread, 0).unwrap();
    let waits = opened_event(thread[1]);
    assert!(there.is_enabled(waits) && there.counter_of(waits).is_none());
    there.close(filler[0], 0).unwrap();
    there.rotate(0).unwrap();
    assert!(there.counter_of(waits).is_some());
}

/// More rotating events than counters, switched out at the end of each slice: each has its share of the time.
#[test]
fn a_threads_rotating_events_take_turns_over_its_slices() {
    let processor = Processor::intel(IntelConfiguration::new(4, 4, 0));
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let mut counters = processor.take(&mock, &memory, &table);
    let unit = &processor.unit;
    let mut thread = [0; 8].map(|_| {
        let id = counters.open(unit, &[raw(2).rotating()]).unwrap();
        counters.enable(id, 0).unwrap();
        ThreadEvent::Opened(id)
    });
    let mut now = 0;
    counters.switch_out(&mut thread, now, |o| panic!("{o:?}")).unwrap();
    for _ in 0..100 {
        counters.switch_in(unit, &mut thread, now).unwrap();
        now += 10;
        happen(&mock, 2, 10);
        counters.switch_out(&mut thread, now, |o| panic!("{o:?}")).unwrap();
    }
    for event in thread {
        let ThreadEvent::SwitchedOut(event) = event else { panic!("{event:?}") };
        let count = event.count();
        assert_eq!((count.enabled, count.running, count.value), (1000, 500, 500));
    }
}

/// An event that was stopped stays so over a switch; its overflows carry the tag that it was opened with.
#[test]
fn a_switch_starts_what_it_stopped_and_an_overflow_tells_the_tag() {
    let processor = Processor::intel(IntelConfiguration::new(4, 4, 0));
    let (memory, table, tags) = (Memory::new(), Table::new(), RefCell::new(vec![]));
    let handler = |mock: &Mock<'_>| {
        let source = Events::new(&processor.unit, &table);
        service(&source, mock, &memory, |o| tags.borrow_mut().push(o.tag)).unwrap();
    };
    let mock = processor.mock();
    mock.on_interrupt(&handler);
    let mut counters = processor.take(&mock, &memory, &table);
    let unit = &processor.unit;
    let event = |tag| raw(2).every(0x1000).tagged(tag);
    let mut thread =
        [7, 8].map(|tag| ThreadEvent::Opened(counters.open(unit, &[event(tag)]).unwrap()));
    counters.enable(opened_event(thread[1]), 0).unwrap();
    for _ in 0..2 {
        counters.switch_out(&mut thread, 0, |o| panic!("{o:?}")).unwrap();
        counters.switch_in(unit, &mut thread, 0).unwrap();
    }
    happen(&mock, 2, 0x1000);
    assert_eq!(tags.take(), [8]);
    assert!(!counters.is_enabled(opened_event(thread[0])));
}

#[test]
fn a_switch_names_the_events_that_failed_and_one_that_found_no_counter_starts_elsewhere() {
    let processor = Processor::intel(IntelConfiguration::new(4, 4, 0));
    let (memories, tables) = ([Memory::new(), Memory::new()], [Table::new(), Table::new()]);
    let mocks = [processor.mock(), processor.mock()];
    let mut here = processor.take(&mocks[0], &memories[0], &tables[0]);
    let mut there = processor.take(&mocks[1], &memories[1], &tables[1]);
    let unit = &processor.unit;
    let mut thread = [2, 3, 4].map(|kind| {
        let id = here.open(unit, &[raw(kind)]).unwrap();
        here.enable(id, 0).unwrap();
        ThreadEvent::Opened(id)
    });
    (2..5).for_each(|kind| happen(&mocks[0], kind, 9));
    here.switch_out(&mut thread, 10, |o| panic!("{o:?}")).unwrap();
    // Three of the four counters there are others'.
    for _ in 0..3 {
        let other = there.open(unit, &[raw(5)]).unwrap();
        there.enable(other, 10).unwrap();
    }
    let error = there.switch_in(unit, &mut thread, 10).unwrap_err();
    assert_eq!(error, EventsError { events: 0b110, reason: CounterError::NoFreeCounter });
    assert_eq!([0, 1, 2, 3].map(|place| error.concerns(place)), [false, true, true, false]);
    let started = thread.map(opened_event).map(|id| there.is_enabled(id));
    assert_eq!(started, [true, false, false]);
    there.rotate(15).unwrap();
    there.switch_out(&mut thread, 20, |o| panic!("{o:?}")).unwrap();
    for event in thread {
        assert!(
            matches!(event, ThreadEvent::SwitchedOut(event) if event.is_enabled()),
            "{event:?}"
        );
    }
    here.switch_in(unit, &mut thread, 30).unwrap();
    (2..5).for_each(|kind| happen(&mocks[0], kind, 9));
    let counts = thread.map(opened_event).map(|id| here.read(id, 40).unwrap());
    assert_eq!(counts.map(|count| count.value), [18; 3]);
    assert_eq!(counts.map(|count| (count.enabled, count.running)), [(30, 30), (20, 20), (20, 20)]);
    // The second one's counter does not stop.
    let on = here.counter_of(opened_event(thread[1])).unwrap();
    let select = unit.counter(on).unwrap().control().register().get();
    mocks[0].inject(Fault::Register(select));
    let error = here.switch_out(&mut thread, 50, |o| panic!("{o:?}")).unwrap_err();
    mocks[0].inject(Fault::None);
    let by_place =
        matches!(error.reason, CounterError::StateUnknown(fault) if fault.register == select);
    assert!(by_place && error.events == 0b010, "{error:?}");
    let values = thread.map(|event| match event {
        ThreadEvent::SwitchedOut(event) => (event.count().value, event.is_enabled()),
        other => panic!("{other:?}"),
    });
    assert_eq!([values[0], values[2]], [(18, true); 2]);
    assert!(values[1].1, "it starts elsewhere");
    here.shut_down().unwrap();
    there.shut_down().unwrap();
}

#[test]
fn an_event_that_was_refused_a_counter_twice_starts_elsewhere_all_the_same() {
    let processor = Processor::intel(IntelConfiguration::new(4, 1, 0));
    let (memories, tables) = ([Memory::new(), Memory::new()], [Table::new(), Table::new()]);
    let mocks = [processor.mock(), processor.mock()];
    let [mut here, mut there] = [0, 1].map(|n| processor.take(&mocks[n], &memories[n], &tables[n]));
    let unit = &processor.unit;
    let id = here.open(unit, &[raw(2)]).unwrap();
    here.enable(id, 0).unwrap();
    let mut thread = [ThreadEvent::Opened(id)];
    here.switch_out(&mut thread, 10, |o| panic!("{o:?}")).unwrap();
    let other = there.open(unit, &[raw(3)]).unwrap();
    there.enable(other, 10).unwrap();
    let reason = CounterError::NoFreeCounter;
    let refused = there.switch_in(unit, &mut thread, 10);
    assert_eq!(refused, Err(EventsError { events: 1, reason }));
    assert_eq!(there.enable(opened_event(thread[0]), 15).reason(), Err(reason));
    there.switch_out(&mut thread, 20, |o| panic!("{o:?}")).unwrap();
    here.switch_in(unit, &mut thread, 30).unwrap();
    assert!(here.is_enabled(opened_event(thread[0])));
}
