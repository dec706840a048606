//! Records beside what else a processor does: events of different records, periods in parts, and guests.

use pmu_core::lending::guest_control;
use pmu_core::precise::SampleParts;
use pmu_core::registers::{CounterId, EventSelect};
use pmu_core::{CounterSet, Event};
use pmu_intel::precise::PreciseThreshold;

use crate::scene::*;
use crate::support::*;

/// Processors whose events can have records of different sizes.
fn adaptive() -> impl Iterator<Item = Processor> {
    processors().into_iter().filter(|p| ["format 4", "format 5", "format 6"].contains(&p.name))
}

#[test]
fn each_record_interrupts_also_one_without_parts_beside_one_with_parts() {
    for processor in adaptive() {
        for by_handler in [false, true] {
            let what = format!("{}, {by_handler}", name(&processor));
            let scene = Scene::new(processor);
            let mut session = scene.take();
            let rich = precise(3).recording(SampleParts::REGISTERS | SampleParts::VECTORS);
            scene.start(&mut session, &rich);
            scene.start(&mut session, &precise(0));
            if by_handler {
                *scene.react.borrow_mut() = Some(Box::new(|scene, seen| {
                    let next = if seen.period == PERIOD { PERIOD / 2 } else { PERIOD };
                    scene.table.set_period(seen.event, next).unwrap();
                }));
            }
            for number in 1..=20 {
                scene.happen(0, if by_handler && number % 2 == 0 { PERIOD / 2 } else { PERIOD });
                assert_eq!(scene.mock.interrupts(), number, "{what}");
            }
            scene.ends_after(session, 20, &what);
        }
    }
}

/// The processor loads no more than 31 bits: the handler is to continue the period after each of its parts.
#[test]
fn a_later_threshold_does_not_stall_an_event_whose_period_goes_in_parts() {
    const LONG: u64 = (5 << 32) + 1000;
    for processor in processors().into_iter().filter(tells_apart) {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        scene.start(&mut session, &precise(0).every(LONG).on(CounterSet::GENERAL));
        scene.memory.set_threshold(PreciseThreshold::NearlyFull);
        scene.start(&mut session, &precise(3));
        for number in 1..=5 {
            scene.happen(0, LONG - 1);
            assert_eq!(scene.reported(), number - 1, "{what}");
            scene.happen(0, 1);
            assert_eq!(scene.reported(), number, "{what}");
        }
        assert!(scene.seen.borrow().iter().all(|seen| seen.period == LONG), "{what}");
        scene.ends(session, &what);
    }
}

/// Fixed counters are loaded with all their bits, and by architectural records with 32 of them.
#[test]
fn a_long_period_on_any_counter_has_its_samples_where_it_ends() {
    for (processor, long) in
        processors().into_iter().flat_map(|of| [(of, 3 << 30), (of, (5 << 32) + 1000)])
    {
        for on in [CounterSet::FIXED, CounterSet::GENERAL] {
            let what = format!("{}, {on:?}, {long:#x}", name(&processor));
            let scene = Scene::new(processor);
            let mut session = scene.take();
            let event = precise(0).every(long).on(on).with_total();
            let Ok(event) = session.open(&scene.counters, &[event]) else {
                assert_eq!(on, CounterSet::FIXED, "{what}");
                continue;
            };
            session.enable(event, 0).unwrap();
            for number in 1..=3 {
                scene.happen(0, long - 1);
                assert_eq!(scene.reported(), number - 1, "{what}");
                scene.happen(0, 1);
                assert_eq!(scene.reported(), number, "{what}");
            }
            let count = session.read(event, 0).unwrap().value;
            assert_eq!(count, 3 * long, "{what}");
            scene.ends(session, &what);
        }
    }
}

#[test]
fn no_record_is_written_in_a_guest_and_no_event_of_guests_counts_the_host_after_a_start() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        session.set_virtualization(true).unwrap();
        let event = Event::raw(EventSelect::from_bits(0xC4)).in_guests();
        let event = scene.start(&mut session, &event.on(CounterSet::from_bits(0b10)));
        let of_guest = session.counter_of(event).unwrap();
        let event = scene.start(&mut session, &precise(0));
        let counter = session.counter_of(event).unwrap();
        let control = guest_control(&scene.source(), &scene.counter_memory).unwrap();
        let bits = |counter: CounterId| counter.only().bits();
        assert_eq!(control.host & (bits(of_guest) | bits(counter)), bits(counter), "{what}");
        assert_eq!(control.guest & (bits(of_guest) | bits(counter)), bits(of_guest), "{what}");
    }
}
