//! Counters that overflow at the same event, of which the first one's interrupt freezes the others. A counter that has
//! overflowed is armed: SDM vol. 3B, "Processor Event Based Sampling (PEBS)". The processor writes the counter's record
//! at the next event that the counter counts, and not while the counters are frozen.

use pmu_core::{CounterSet, Event};
use pmu_intel::precise::{PreciseEvent, PreciseReport, PreciseThreshold, Precision};
use pmu_tests::opened::{fed_events, happened, raw};
use pmu_virt::Feed;

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
fn on(counter: u64, tag: u64) -> PreciseEvent {
    let event: Event = raw(0).on(CounterSet::from_bits(1 << counter)).user_only();
    PreciseEvent::new(event.every(PERIOD).tagged(tag), Precision::ConstantSkid)
}

/// Returns how many records of this tag were reported.
fn of_tag(kernel: &Kernel, tag: u64) -> usize {
    kernel.tags.borrow().iter().filter(|found| **found == tag).count()
}

#[test]
fn no_record_is_lost_when_two_are_due_at_the_same_time() {
    for (processor, recorded) in each().filter(|(_, recorded)| *recorded > 1) {
        for threshold in [PreciseThreshold::EachRecord, PreciseThreshold::NearlyFull] {
            processor.run(|kernel, mock| {
                let what = format!("{}, {}, {threshold:?}", processor.name, processor.freezes);
                let (mut session, mut recorder) = kernel.take(mock);
                let report = |report: &PreciseReport<'_>| kernel.report(report);
                recorder.set_threshold(threshold);
                for counter in 0..recorded as u64 {
                    recorder.start(&mut session, &on(counter, counter + 1), report).unwrap();
                }
                mock.advance(&mut happened(0, PERIOD));
                // The interrupt of the first record is handled, and the second one is due.
                mock.advance(&mut happened(0, 1));
                assert_eq!(mock.written_records(), 2, "{what}");
                // The second period begins at the record, by which it is one event later at most.
                for round in 2..=5 {
                    mock.advance(&mut happened(0, PERIOD));
                    assert_eq!(mock.written_records(), 2 * round, "{what}");
                }
                recorder.drain(&mut session, report).unwrap();
                assert_eq!([1, 2].map(|tag| of_tag(kernel, tag)), [5; 2], "{what}");
                assert_eq!(mock.lost_records(), 0, "{what}");
                kernel.ends(mock, session, recorder, 10, &what);
            });
        }
    }
}

/// The interrupt of the counter without records freezes all counters.
#[test]
fn a_precise_event_goes_on_after_a_plain_event_that_overflowed_at_the_same_time() {
    for (processor, _) in each() {
        for plain_first in [false, true] {
            processor.run(|kernel, mock| {
                let what = format!("{}, {}, {plain_first}", processor.name, processor.freezes);
                let (mut session, mut recorder) = kernel.take(mock);
                let report = |report: &PreciseReport<'_>| kernel.report(report);
                let plain = raw(2).on(CounterSet::from_bits(0b10)).user_only().every(PERIOD);
                let plain = session.open_event(&kernel.counters, &plain).unwrap();
                if plain_first {
                    session.start_event(plain, 0).unwrap();
                }
                recorder.start(&mut session, &on(0, 1), report).unwrap();
                if !plain_first {
                    session.start_event(plain, 0).unwrap();
                }
                mock.advance(&mut both(PERIOD));
                assert_eq!(kernel.overflows.get(), 1, "{what}");
                mock.advance(&mut both(1));
                assert_eq!((mock.written_records(), kernel.overflows.get()), (1, 1), "{what}");
                for round in 2..=5 {
                    mock.advance(&mut both(PERIOD));
                    assert_eq!(mock.written_records(), u64::from(round), "{what}");
                    assert_eq!(kernel.overflows.get(), round, "{what}");
                }
                assert_eq!(kernel.unknown.get(), 0, "{what}");
                session.stop_event(plain, 0).unwrap();
                kernel.ends(mock, session, recorder, 5, &what);
            });
        }
    }
}

/// The event that writes the record may be of another feed, and is of the counter's own event.
#[test]
fn a_due_record_waits_for_an_event_of_its_counter() {
    for (processor, _) in each().filter(|(processor, _)| processor.freezes) {
        processor.run(|kernel, mock| {
            let what = processor.name;
            let (mut session, mut recorder) = kernel.take(mock);
            let report = |report: &PreciseReport<'_>| kernel.report(report);
            let plain = raw(2).on(CounterSet::from_bits(0b10)).user_only().every(PERIOD);
            let plain = session.open_event(&kernel.counters, &plain).unwrap();
            session.start_event(plain, 0).unwrap();
            recorder.start(&mut session, &on(0, 1), report).unwrap();
            mock.advance(&mut both(PERIOD));
            let due = || mock.with_precise_records(|records| records.due());
            assert_eq!((mock.written_records(), due()), (0, Some(1)), "{what}");
            mock.advance(&mut happened(2, PERIOD));
            assert_eq!((mock.written_records(), due()), (0, Some(1)), "{what}");
            assert_eq!(kernel.overflows.get(), 2, "{what}");
            mock.advance(&mut happened(0, 1));
            assert_eq!((mock.written_records(), due()), (1, Some(0)), "{what}");
            // Armed, but disabled before the next event: no record.
            mock.advance(&mut happened(0, PERIOD - 1));
            mock.advance(&mut happened(2, PERIOD - 1));
            mock.advance(&mut both(1));
            assert_eq!((mock.written_records(), due()), (1, Some(1)), "{what}");
            kernel.ends(mock, session, recorder, 1, what);
        });
    }
}
