//! Counters that overflow at the same event, of which the first one's interrupt freezes the others. A counter that has
//! overflowed is armed: SDM vol. 3B, "Processor Event Based Sampling (PEBS)". The processor writes the counter's record
//! at the next event that the counter counts, and not while the counters are frozen.

use pmu_core::{CounterSet, Event};
use pmu_intel::precise::PreciseThreshold;
use pmu_tests::opened::{fed_events, happened, raw};
use pmu_virt::Feed;

use crate::scene::{Scene, name, precise};
use crate::support::*;

/// A period that plain events can have, too.
const PERIOD: u64 = 10_000;

/// Returns a processor of each format, with the number of its counters that write records.
fn each() -> impl Iterator<Item = (Processor, usize)> {
    processors().into_iter().map(|processor| {
        // Format 0 is Core's, of which counter 0 alone writes records.
        let one = processor.name == "format 0";
        (processor, if one { 1 } else { 2 })
    })
}

/// Returns as many of both events.
fn both(count: u64) -> Feed {
    let (events, mut feed) = (fed_events(), happened(0, count));
    let (event, unit_mask) = pmu_tests::opened::KINDS[2];
    let second = events.find(pmu_virt::EventKey::general(event.into(), unit_mask)).unwrap();
    feed.add(second, pmu_virt::Privilege::User, count).unwrap();
    feed
}

/// Returns an event that every format records, on one general counter.
fn on(counter: u64, tag: u64) -> Event {
    precise(0).on(CounterSet::from_bits(1 << counter)).every(PERIOD).tagged(tag)
}

/// Returns a plain event on counter 1, with the tag 9.
fn plain() -> Event {
    raw(2).on(CounterSet::from_bits(0b10)).user_only().every(PERIOD).tagged(9)
}

#[test]
fn no_record_is_lost_when_two_are_due_at_the_same_time() {
    for (processor, recorded) in each().filter(|(_, recorded)| *recorded > 1) {
        for threshold in [PreciseThreshold::EachRecord, PreciseThreshold::NearlyFull] {
            let what = format!("{}, {threshold:?}", name(&processor));
            let scene = Scene::new(processor);
            scene.memory.set_threshold(threshold);
            let mut session = scene.take();
            for counter in 0..recorded as u64 {
                scene.start(&mut session, &on(counter, counter + 1));
            }
            scene.happen(0, PERIOD);
            // The interrupt of the first record is handled, and the second one is due.
            scene.happen(0, 1);
            assert_eq!(scene.mock.written_records(), 2, "{what}");
            // The second period begins at the record, by which it is one event later at most.
            for round in 2..=5 {
                scene.happen(0, PERIOD);
                assert_eq!(scene.mock.written_records(), 2 * round, "{what}");
            }
            scene.drain(&mut session);
            assert_eq!([1, 2].map(|tag| scene.samples(tag)), [5; 2], "{what}");
            scene.ends_after(session, 10, &what);
        }
    }
}

/// The interrupt of the counter without records freezes all counters.
#[test]
fn a_precise_event_goes_on_after_a_plain_event_that_overflowed_at_the_same_time() {
    for (processor, _) in each() {
        for plain_first in [false, true] {
            let what = format!("{}, {plain_first}", name(&processor));
            let scene = Scene::new(processor);
            let mut session = scene.take();
            let events = if plain_first { [plain(), on(0, 1)] } else { [on(0, 1), plain()] };
            for event in events {
                scene.start(&mut session, &event);
            }
            scene.mock.advance(&mut both(PERIOD));
            assert_eq!(scene.samples(9), 1, "{what}");
            scene.mock.advance(&mut both(1));
            assert_eq!((scene.mock.written_records(), scene.samples(9)), (1, 1), "{what}");
            for round in 2..=5 {
                scene.mock.advance(&mut both(PERIOD));
                assert_eq!(scene.mock.written_records(), round as u64, "{what}");
                assert_eq!(scene.samples(9), round, "{what}");
            }
            assert_eq!(scene.unknown.get(), 0, "{what}");
            scene.ends_after(session, 5, &what);
        }
    }
}

/// The event that writes the record may be of another feed, and is of the counter's own event.
#[test]
fn a_due_record_waits_for_an_event_of_its_counter() {
    for (processor, _) in each().filter(|(processor, _)| processor.freezes) {
        let what = processor.name;
        let scene = Scene::new(processor);
        let mut session = scene.take();
        scene.start(&mut session, &plain());
        scene.start(&mut session, &on(0, 1));
        scene.mock.advance(&mut both(PERIOD));
        let due = || scene.mock.with_precise_records(|records| records.due());
        assert_eq!((scene.mock.written_records(), due()), (0, Some(1)), "{what}");
        scene.happen(2, PERIOD);
        assert_eq!((scene.mock.written_records(), due()), (0, Some(1)), "{what}");
        assert_eq!(scene.samples(9), 2, "{what}");
        scene.happen(0, 1);
        assert_eq!((scene.mock.written_records(), due()), (1, Some(0)), "{what}");
        // Armed, but disabled before the next event: no record.
        scene.happen(0, PERIOD - 1);
        scene.happen(2, PERIOD - 1);
        scene.mock.advance(&mut both(1));
        assert_eq!((scene.mock.written_records(), due()), (1, Some(1)), "{what}");
        scene.ends_after(session, 1, what);
    }
}

/// The period that is over is reported, and the new one begins behind its record.
#[test]
fn a_period_that_is_applied_while_a_record_is_due_begins_behind_it() {
    for (processor, _) in each().filter(|(processor, _)| processor.freezes) {
        let what = processor.name;
        let scene = Scene::new(processor);
        let mut session = scene.take();
        scene.start(&mut session, &plain());
        let event = scene.start(&mut session, &on(0, 1).with_total());
        scene.mock.advance(&mut both(PERIOD));
        let due = scene.mock.with_precise_records(|records| records.due());
        assert_eq!((scene.mock.written_records(), due), (0, Some(1)), "{what}");
        session.apply_period(event, 60, 0, |_| panic!("{what}")).unwrap();
        scene.happen(0, 1);
        let periods = || {
            let seen = scene.seen.borrow();
            seen.iter().filter(|seen| seen.tag == 1).map(|seen| seen.period).collect::<Vec<_>>()
        };
        assert_eq!(periods(), [PERIOD], "{what}");
        scene.happen(0, 59);
        assert_eq!(periods(), [PERIOD], "{what}");
        scene.happen(0, 1);
        assert_eq!(periods(), [PERIOD, 60], "{what}");
        // The record is written with an occurrence more.
        assert_eq!(session.read(event, 0).unwrap().value, PERIOD + 1 + 60, "{what}");
        scene.ends_after(session, 2, what);
    }
}
