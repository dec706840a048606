//! A precise event does all that a plain event does.

use pmu_core::error::CounterError;
use pmu_core::memory::EventTable;
use pmu_core::precise::NotPrecise;
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::{CounterSession, CounterSet, EventId, Events};
use pmu_intel::precise::{Pebs, PreciseThreshold};
use pmu_tests::Reason;
use pmu_tests::opened::raw;
use pmu_virt::mock::PmiFault;

use crate::scene::*;
use crate::support::{address, processors};

#[test]
fn each_overflow_is_one_sample_with_its_instruction() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        let event = scene.start(&mut session, &precise(0).with_total());
        scene.happen(0, PERIOD - 1);
        assert_eq!(*scene.seen.borrow(), [], "{what}");
        scene.happen(0, 1);
        scene.happen(0, 2 * PERIOD + 7);
        let seen = |number| Seen { event, tag: 0, period: PERIOD, address: Some(address(number)) };
        assert_eq!(*scene.seen.borrow(), [0, 1, 2].map(seen), "{what}");
        assert_eq!(session.read(event, 0).unwrap().value, 3 * PERIOD + 7, "{what}");
        session.disable(event, 0).unwrap();
        scene.happen(0, PERIOD);
        session.enable(event, 0).unwrap();
        scene.happen(0, PERIOD - 8);
        assert_eq!(scene.seen.borrow().len(), 3, "{what}");
        scene.happen(0, 1);
        assert_eq!(scene.seen.borrow().len(), 4, "{what}: what was left of its period");

        scene.all_reported(&what);
        scene.ends(session, &what);
    }
}

#[test]
fn many_records_wait_and_are_counted() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        scene.memory.set_threshold(PreciseThreshold::NearlyFull);
        let mut session = scene.take();
        let event = scene.start(&mut session, &precise(0).with_total());
        scene.happen(0, 5 * PERIOD + 3);
        assert_eq!(scene.seen.borrow().len(), 0, "{what}");
        assert_eq!(session.read(event, 0).unwrap().value, 5 * PERIOD + 3, "{what}");
        // The event leaves, and another one comes to its counter: the records are its own nevertheless.
        let counter = session.counter_of(event);
        session.disable(event, 0).unwrap();
        assert_eq!(session.read(event, 0).unwrap().value, 5 * PERIOD + 3, "{what}");
        let other = scene.start(&mut session, &precise(0).tagged(9));
        assert_eq!(session.counter_of(other), counter, "{what}");
        scene.happen(0, PERIOD);
        assert_eq!((scene.addresses(0).len(), scene.addresses(9).len()), (5, 1), "{what}");
        scene.happen(0, 2 * PERIOD);
        session.report_samples(|sample| scene.note(&sample)).unwrap();
        assert_eq!((scene.addresses(0).len(), scene.addresses(9).len()), (5, 3), "{what}");
        scene.all_reported(&what);
        scene.ends(session, &what);
    }
}

#[test]
fn precise_events_and_plain_ones_are_of_one_group_and_rotate() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        let events = [raw(2).user_only(), precise(0).with_total()];
        let group: EventId = session.open(&scene.counters, &events).expect(&what);
        session.enable(group, 0).expect(&what);
        scene.happen(0, PERIOD);
        scene.happen(2, 11);
        let mut counts = [pmu_core::EventCount::default(); 2];
        assert_eq!(session.read_group(group, 0, &mut counts), Ok(2), "{what}");
        assert_eq!(counts.map(|count| count.value), [11, PERIOD], "{what}");
        session.close(group, 0).expect(&what);
        // More events than counters: each has its turn, and nothing of a period is lost.
        let events: Vec<_> = (0..10)
            .map(|number| {
                let kind = if number % 2 == 0 { 2 } else { 0 };
                let event = if kind == 0 { precise(0) } else { raw(2).user_only().every(PERIOD) };
                scene.start(&mut session, &event.tagged(number).with_total().rotating())
            })
            .collect();
        for turn in 0..60 {
            scene.happen(0, 30);
            scene.happen(2, 30);
            session.rotate(turn).unwrap();
        }
        for (number, event) in events.iter().enumerate() {
            let count = session.read(*event, 60).unwrap();
            let samples = scene.addresses(number as u64).len() as u64;
            let precise = number % 2 != 0;
            assert!(
                !precise || samples == count.value / PERIOD,
                "{what}, {number}: {samples} of {count:?}"
            );
            assert!(count.value >= 30, "{what}, {number}: {count:?}");
        }
        scene.all_reported(&what);
        scene.ends(session, &what);
    }
}

#[test]
fn a_threads_event_goes_with_it_and_its_waiting_records_are_reported_first() {
    for processor in processors() {
        for threshold in [PreciseThreshold::EachRecord, PreciseThreshold::NearlyFull] {
            let (scene, what) = (Scene::new(processor), name(&processor));
            scene.memory.set_threshold(threshold);
            let mut session = scene.take();
            let id = scene.start(&mut session, &precise(0).with_total());
            let mut thread = [ThreadEvent::Opened(id)];
            for slice in 1..=20 {
                // Shorter than the period.
                scene.happen(0, 30);
                session.switch_out(&mut thread, slice, |sample| scene.note(&sample)).unwrap();
                scene.happen(0, 1000);
                session.switch_in(&scene.counters, &mut thread, slice).unwrap();
                assert_eq!(scene.addresses(0).len() as u64, slice * 30 / PERIOD, "{what}, {slice}");
            }
            let ThreadEvent::Opened(id) = thread[0] else { panic!("{thread:?}") };
            assert_eq!(session.read(id, 0).unwrap().value, 600, "{what}");
            scene.all_reported(&what);
            scene.ends(session, &what);
        }
    }
}

#[test]
fn the_period_changes_in_the_handler_and_the_event_is_silenced_and_resumed() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        let event = scene.start(&mut session, &precise(0).with_total());
        *scene.react.borrow_mut() = Some(Box::new(|scene, seen| {
            let periods = [70, 50, 200];
            match periods.get(scene.seen.borrow().len() - 1) {
                Some(period) => scene.table.set_period(seen.event, *period).unwrap(),
                None => scene.table.stop_reporting(seen.event).unwrap(),
            }
        }));
        scene.happen(0, 100 + 70 + 50);
        scene.happen(0, 200 - 1);
        let periods = || scene.seen.borrow().iter().map(|seen| seen.period).collect::<Vec<_>>();
        assert_eq!(periods(), [100, 70, 50], "{what}");
        scene.happen(0, 1 + 100_000);
        assert_eq!(periods(), [100, 70, 50, 200], "{what}: silent");
        assert_eq!(session.read(event, 0).unwrap().value, 100_420, "{what}");
        session.disable(event, 0).unwrap();
        scene.table.set_period(event, 30).unwrap();
        session.enable(event, 0).unwrap();
        scene.happen(0, 30);
        assert_eq!(periods(), [100, 70, 50, 200, 30], "{what}");
        *scene.react.borrow_mut() = None;
        // From a task: at once, or with the next sample.
        session.disable(event, 0).unwrap();
        scene.table.set_period(event, 60).unwrap();
        session.enable(event, 0).unwrap();
        scene.happen(0, 10);
        session.apply_period(event, 40, 0, |_| ()).unwrap();
        scene.happen(0, 39);
        assert_eq!(periods().len(), 5, "{what}");
        scene.happen(0, 1);
        scene.table.set_period(event, 25).unwrap();
        scene.happen(0, 40 + 25);
        assert_eq!(periods()[5..], [40, 40, 25], "{what}");
        scene.ends(session, &what);
    }
}

#[test]
fn windows_and_a_suspend_keep_what_is_left_of_a_period() {
    for processor in processors() {
        for threshold in [PreciseThreshold::EachRecord, PreciseThreshold::NearlyFull] {
            let (scene, what) = (Scene::new(processor), name(&processor));
            scene.memory.set_threshold(threshold);
            let mut session = scene.take();
            let event = scene.start(&mut session, &precise(0).with_total());
            for round in 1..=20 {
                scene.happen(0, 30);
                if round % 5 == 0 {
                    session.suspend(round, |sample| scene.note(&sample)).unwrap();
                    session.resume(round, |_| ()).unwrap();
                } else {
                    let window = session.lend(round, |sample| scene.note(&sample)).unwrap();
                    scene.happen(0, 1000);
                    window.end(round).unwrap();
                }
                assert_eq!(scene.addresses(0).len() as u64, round * 30 / PERIOD, "{what}, {round}");
            }
            assert_eq!(session.read(event, 0).unwrap().value, 600, "{what}");
            scene.all_reported(&what);
            scene.ends(session, &what);
        }
    }
}

#[test]
fn what_cannot_be_precise_is_refused_as_it_is_opened() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        let mut refused = |event| match session.open(&scene.counters, &[event]).reason() {
            Err(CounterError::NotPrecise(reason)) => reason,
            other => panic!("{what}: {other:?}"),
        };
        let precise = precise(0);
        assert_eq!(refused(precise.every(0)), NotPrecise::NoPeriod);
        scene.ends(session, &what);
    }
}

#[test]
fn an_exclusive_event_is_alone_and_a_child_counts_as_its_parent() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        let first = scene.start(&mut session, &precise(0).exclusive().tagged(1).with_total());
        let other = session.open(&scene.counters, &[precise(0).tagged(2)]).unwrap();
        let refused = session.enable(other, 0);
        assert_eq!(refused.reason(), Err(CounterError::NoFreeCounter), "{what}");
        scene.happen(0, PERIOD);
        let child = session.child_event(first, 3).unwrap().to_be_enabled(true);
        session.disable(first, 0).unwrap();
        let mut thread = [ThreadEvent::SwitchedOut(child)];
        session.switch_in(&scene.counters, &mut thread, 0).unwrap();
        scene.happen(0, 2 * PERIOD);
        session.switch_out(&mut thread, 0, |sample| scene.note(&sample)).unwrap();
        let samples = [1, 2, 3].map(|tag| scene.addresses(tag).len());
        assert_eq!(samples, [1, 0, 2], "{what}");
        let ThreadEvent::SwitchedOut(child) = thread[0] else { panic!("{what}") };
        assert_eq!(child.count().value, 2 * PERIOD, "{what}");
        scene.all_reported(&what);
        scene.ends(session, &what);
    }
}

/// A hybrid pair of which one core has no records, and one whose records have another format.
#[test]
fn a_threads_event_goes_from_core_to_core_and_is_counted_where_it_can_be_precise() {
    for (here, there) in processors().into_iter().zip(processors().into_iter().skip(2)) {
        let what = format!("{} and {}", here.name, there.name);
        let (here, there) = (Scene::new(here), Scene::new(there));
        let (mut session, mut other) = (here.take(), there.take());
        let without = Scene::new(here.processor);
        let source = Events::new(&without.counters, &without.table as &EventTable);
        let mut blind = CounterSession::take(
            source.with(None::<Pebs<'static>>),
            &without.counters,
            CounterSet::ALL,
            without.mock,
            &without.counter_memory,
        )
        .unwrap();
        let id = here.start(&mut session, &precise(0).with_total());
        let asked = SavedEvent::new(&here.counters, &precise(0).every(100_000)).unwrap();
        let mut thread = [ThreadEvent::Opened(id)];
        for slice in 1..=8 {
            here.happen(0, 30);
            session.switch_out(&mut thread, slice, |sample| here.note(&sample)).unwrap();
            let ThreadEvent::SwitchedOut(saved) = thread[0] else { panic!("{what}") };
            assert_eq!(saved.select(), asked.select(), "{what}");
            blind.switch_in(&without.counters, &mut thread, slice).unwrap();
            without.happen(0, 1000);
            blind.switch_out(&mut thread, slice, |_| panic!("{what}")).unwrap();
            other.switch_in(&there.counters, &mut thread, slice).unwrap();
            there.happen(0, 40);
            other.switch_out(&mut thread, slice, |sample| there.note(&sample)).unwrap();
            session.switch_in(&here.counters, &mut thread, slice).unwrap();
        }
        let ThreadEvent::Opened(id) = thread[0] else { panic!("{what}") };
        assert_eq!(session.read(id, 9).unwrap().value, 8 * 70, "{what}");
        let samples = here.addresses(0).len() + there.addresses(0).len();
        assert_eq!(samples as u64, 8 * 70 / PERIOD, "{what}");
        here.ends(session, &what);
        there.ends(other, &what);
        blind.shut_down().unwrap();
    }
}

/// The interrupt of the second event's record is lost.
#[test]
fn events_that_leave_one_counter_after_another_keep_their_records() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        scene.memory.set_threshold(PreciseThreshold::NearlyFull);
        let mut session = scene.take();
        for (tag, periods) in [(1, 2), (2, 1)] {
            let event = scene.start(&mut session, &precise(0).tagged(tag));
            scene.mock.inject_pmi(PmiFault::Lost);
            scene.happen(0, periods * PERIOD);
            session.disable(event, 0).unwrap();
        }
        session.report_samples(|sample| scene.note(&sample)).unwrap();
        let tags: Vec<_> = scene.seen.borrow().iter().map(|seen| seen.tag).collect();
        assert_eq!(tags, [1, 1, 2], "{what}");
        scene.ends(session, &what);
    }
}
