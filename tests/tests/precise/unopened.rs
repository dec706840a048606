//! Precise events that cannot be started are not opened, and groups of them are closed with their counts: the next
//! event has their places, and none of their records.

use pmu_core::EventCount;
use pmu_tests::opened::raw;
use pmu_virt::mock::Fault;

use crate::scene::*;
use crate::support::processors;

/// A start whose registers fail for a while, or until another event is started: it may have the same identity.
#[test]
fn the_event_after_a_start_that_failed_has_no_records_of_it() {
    for processor in processors().into_iter().filter(tells_apart) {
        for lasts in [false, true] {
            for access in 1..80 {
                let what = format!("{}, {lasts}, {access}", name(&processor));
                let scene = Scene::new(processor);
                let mut session = scene.take();
                let outcome = if lasts {
                    scene.mock.clear();
                    scene.mock.inject(Fault::From(access));
                    let outcome = session.start(&scene.counters, &[precise(0)], 0);
                    let is_reached = scene.mock.accesses().total() >= access;
                    scene.mock.inject(Fault::None);
                    is_reached.then_some(outcome)
                } else {
                    let start = || session.start(&scene.counters, &[precise(0)], 0);
                    scene.fails_twice_at(access, start)
                };
                let Some(outcome) = outcome else {
                    assert!(access > 3, "{what}");
                    break;
                };
                if outcome.is_ok() {
                    continue;
                }
                assert_eq!(session.events().count(), 0, "{what}");
                scene.happen(0, PERIOD + 1);
                let plain = raw(3).user_only().every(PERIOD).tagged(3);
                let plain = session.start(&scene.counters, &[plain], 0);
                let plain = plain.unwrap_or_else(|error| panic!("{what}: {outcome:?}, {error:?}"));
                scene.happen(0, 3 * PERIOD);
                scene.happen(3, PERIOD);
                assert_eq!(scene.samples(0), 0, "{what}");
                assert_eq!((scene.samples(3), scene.reported()), (1, 0), "{what}");
                session.close(plain, 0).unwrap();
                session.reprogram(|_| ()).unwrap();
                session.start(&scene.counters, &[precise(3)], 0).expect(&what);
                scene.happen(3, PERIOD + 1);
                session.report_samples(|sample| scene.note(&sample)).expect(&what);
                assert_eq!((scene.samples(3), scene.samples(0)), (2, 0), "{what}");
            }
        }
    }
}

/// The records that wait are dropped, and those of the next group are its own.
#[test]
fn a_group_whose_records_wait_is_closed_with_its_counts() {
    for processor in processors() {
        let what = name(&processor);
        let scene = Scene::new(processor);
        let mut session = scene.take();
        let events = [precise(0).with_total(), precise(4).with_total()];
        let Ok(group) = session.start(&scene.counters, &events, 0) else { continue };
        scene.happen(0, PERIOD / 2);
        scene.happen(4, PERIOD + 7);
        let mut counts = [EventCount::default(); 2];
        session.close_group(group, 10, &mut counts).unwrap();
        assert_eq!(counts.map(|count| count.value), [PERIOD / 2, PERIOD + 7], "{what}");
        let before = scene.seen.borrow().len();
        session.start(&scene.counters, &[precise(3).with_total()], 0).unwrap();
        session.report_samples(|sample| scene.note(&sample)).unwrap();
        assert_eq!(scene.seen.borrow().len(), before, "{what}");
    }
}
