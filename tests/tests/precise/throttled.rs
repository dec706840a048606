//! Precise events whose records wait for one interrupt, and that are throttled.

use core::cell::RefCell;

use pmu_core::thread::Tick;
use pmu_core::{CounterSet, EventId, Sample, service};
use pmu_intel::precise::{Pebs, PreciseThreshold};
use pmu_tests::opened::raw;

use crate::scene::*;
use crate::support::*;

/// Lets the handler account for each sample, the first of an event in an interrupt as such.
fn account(scene: &'static Scene) {
    let handler = move |mock: &Mock<'static>| {
        let sampled = RefCell::new(Vec::<EventId>::new());
        let report = |sample: Sample<'_, Option<Pebs<'static>>>| {
            let is_first = !sampled.borrow().contains(&sample.event);
            sampled.borrow_mut().push(sample.event);
            scene.table.account_sample(sample.event, is_first, || 0);
            scene.note(&sample);
        };
        let _ = service(&scene.source(), mock, &scene.counter_memory, report).unwrap();
    };
    scene.mock.on_interrupt(Box::leak(Box::new(handler)));
}

/// The interrupt that throttles has all its records, as each one before.
#[test]
fn no_record_of_the_last_interrupt_is_lost() {
    for processor in processors() {
        let name = processor.name;
        let scene = Scene::new(processor);
        scene.memory.set_threshold(PreciseThreshold::NearlyFull);
        account(scene);
        let mut session = scene.take();
        let event = scene.start(&mut session, &precise(0));
        session.tick(Tick::new(250, 500), 0, |_| ()).unwrap(); // two interrupts per tick
        let mut periods = 0;
        while !scene.table.is_throttled(event) && periods < 2_000 {
            scene.happen(0, PERIOD);
            periods += 1;
        }
        assert!(scene.table.is_throttled(event), "{name}");
        let (written, reported) = (scene.mock.written_records(), scene.samples(0));
        assert_eq!(written as usize, reported, "{name}");
        assert!(reported > 20, "{name}: {reported}");
    }
}

/// Records from before it changed its counter throttle an event in the middle of a period.
#[test]
fn a_record_that_waited_throttles_until_the_tick_only() {
    for processor in processors() {
        let name = processor.name;
        if name == "format 0" {
            continue; // One counter has records.
        }
        let scene = Scene::new(processor);
        scene.memory.set_threshold(PreciseThreshold::NearlyFull);
        account(scene);
        let mut session = scene.take();
        let tick = Tick::new(250, 250); // one interrupt per tick
        session.tick(tick, 0, |_| ()).unwrap();
        let two = CounterSet::from_bits(0b11);
        let event = scene.start(&mut session, &precise(0).on(two).tagged(1));
        let was = session.counter_of(event).unwrap();
        scene.happen(0, 3 * PERIOD);
        scene.happen(0, 2);
        assert_eq!(scene.samples(1), 0, "{name}");
        session.disable(event, 0).unwrap();
        scene.start(&mut session, &raw(2).on(was.only()).user_only().every(PERIOD).tagged(9));
        session.enable(event, 0).unwrap();
        assert_ne!(session.counter_of(event), Some(was), "{name}");
        // An interrupt of the other event reports them, and then its own period ends.
        for _ in 0..4 {
            scene.happen(2, PERIOD + 2);
            scene.happen(0, PERIOD);
        }
        assert!(scene.samples(1) >= 3, "{name}");
        assert!(scene.table.is_throttled(event), "{name}");
        let before = scene.samples(1);
        for _ in 0..10 {
            session.tick(tick, 0, |_| ()).unwrap();
            for _ in 0..50 {
                scene.happen(0, PERIOD);
                scene.happen(2, PERIOD);
            }
        }
        // An interrupt of each tick has some.
        assert!(scene.samples(1) >= before + 10, "{name}: {}", scene.samples(1) - before);
    }
}
