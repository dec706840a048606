//! Processors that deviate: what they wrote wrongly is dropped and counted, and the rest is reported.

use pmu_intel::precise::PreciseThreshold;
use pmu_virt::mock::{Deviation, Deviations};

use crate::scene::*;
use crate::support::*;

fn deviating(deviation: Deviation) -> impl Iterator<Item = Processor> {
    let deviations = Deviations::of(&[deviation]);
    processors().into_iter().map(move |processor| Processor { deviations, ..processor })
}

#[test]
fn a_counters_own_bit_beside_the_buffers_is_no_overflow() {
    for processor in deviating(Deviation::PreciseStatusBeside) {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        scene.start(&mut session, &precise(0));
        for number in 1..=10 {
            scene.happen(0, PERIOD);
            assert_eq!(scene.seen.borrow().len(), number, "{what}");
        }
        assert_eq!(scene.unclaimed.get(), 0, "{what}");
        scene.ends_after(session, 10, &what);
    }
}

#[test]
fn a_scribbled_index_drops_its_buffer_and_the_next_record_is_reported() {
    for processor in deviating(Deviation::ScribbledIndex) {
        if ["architectural", "fragments"].contains(&processor.name) {
            continue; // The index is a register.
        }
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        scene.start(&mut session, &precise(0));
        for _ in 0..12 {
            scene.happen(0, PERIOD);
        }
        // Each fourth record: an index above the maximum, one below the base, and one that is not at a record.
        let written = 0..scene.mock.written_records();
        let expected: Vec<_> =
            written.filter(|number| number % 4 != 3).map(|number| Some(address(number))).collect();
        assert_eq!(scene.addresses(0), expected, "{what}");
        let dropped = scene.memory.dropped();
        assert_eq!(dropped.lost + dropped.malformed, 3, "{what}: {dropped:?}");
        assert!(dropped.lost >= 2, "{what}: {dropped:?}");
        assert_eq!(scene.unclaimed.get(), 0, "{what}");
    }
}

#[test]
fn an_area_that_is_taken_for_shorter_interrupts_earlier() {
    for processor in deviating(Deviation::ShortDebugStore) {
        let (scene, what) = (Scene::new(processor), name(&processor));
        scene.memory.set_threshold(PreciseThreshold::NearlyFull);
        let mut session = scene.take();
        scene.start(&mut session, &precise(0));
        scene.happen(0, 2000 * PERIOD);
        scene.drain(&mut session);
        scene.all_reported(&what);
        assert!(scene.mock.interrupts() > 1, "{what}");
    }
}

#[test]
fn a_record_of_several_counters_belongs_to_all_of_them_or_to_none() {
    for processor in deviating(Deviation::CollidedRecords) {
        if processor.name == "format 0" {
            continue; // One counter writes records.
        }
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        scene.start(&mut session, &precise(0));
        scene.start(&mut session, &precise(0).tagged(9));
        scene.happen(0, 5 * PERIOD);
        let (samples, dropped) = ([0, 9].map(|tag| scene.samples(tag)), scene.memory.dropped());
        if ["format 1", "format 2"].contains(&processor.name) {
            assert_eq!((samples, dropped.unattributed), ([0; 2], 5), "{what}");
        } else {
            assert_eq!((samples, dropped.unattributed), ([5; 2], 0), "{what}");
        }
        assert_eq!(scene.unclaimed.get(), 0, "{what}");
    }
}

#[test]
fn after_a_suspend_the_events_are_recorded_again() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        scene.start(&mut session, &precise(0));
        scene.happen(0, PERIOD);
        scene.lose_registers();
        session.reprogram(|sample| scene.note(&sample)).unwrap();
        for _ in 0..3 {
            scene.happen(0, PERIOD);
        }
        scene.ends_after(session, 4, &what);
    }
}
