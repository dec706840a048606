//! Processors that deviate: what they wrote wrongly is dropped and counted, and the rest is reported.

use pmu_intel::precise::PreciseThreshold;
use pmu_tests::opened::happened;
use pmu_virt::mock::{Deviation, Deviations};

use crate::support::*;

fn deviating(deviation: Deviation) -> impl Iterator<Item = Processor> {
    let deviations = Deviations::of(&[deviation]);
    processors().into_iter().map(move |processor| Processor { deviations, ..processor })
}

#[test]
fn a_counters_own_bit_beside_the_buffers_is_no_overflow() {
    for processor in deviating(Deviation::PreciseStatusBeside) {
        processor.run(|kernel, mock| {
            let (mut session, mut recorder) = kernel.take(mock);
            recorder.start(&mut session, &instructions(), |_| ()).unwrap();
            for number in 1..=10 {
                mock.advance(&mut happened(0, PERIOD));
                assert_eq!(kernel.reported.borrow().len(), number, "{}", processor.name);
            }
            kernel.all_reported(mock, processor.name);
            assert_eq!((kernel.overflows.get(), kernel.unclaimed.get()), (0, 0));
            recorder.shut_down(&mut session, |_| ()).unwrap();
        });
    }
}

#[test]
fn a_scribbled_index_drops_its_buffer_and_the_next_record_is_reported() {
    for processor in deviating(Deviation::ScribbledIndex) {
        if ["architectural", "fragments"].contains(&processor.name) {
            continue; // The index is a register.
        }
        processor.run(|kernel, mock| {
            let what = processor.name;
            let (mut session, mut recorder) = kernel.take(mock);
            recorder.start(&mut session, &instructions(), |_| ()).unwrap();
            for _ in 0..12 {
                mock.advance(&mut happened(0, PERIOD));
            }
            // Each fourth record: an index above the maximum, one below the base, and one that is not at a record.
            let expected: Vec<u64> =
                (0..mock.written_records()).filter(|n| n % 4 != 3).map(address).collect();
            assert_eq!(*kernel.reported.borrow(), expected, "{what}");
            let dropped = kernel.memory.dropped();
            assert_eq!(dropped.lost + dropped.malformed, 3, "{what}: {dropped:?}");
            assert!(dropped.lost >= 2, "{what}: {dropped:?}");
            assert_eq!(kernel.unclaimed.get(), 0, "{what}");
        });
    }
}

#[test]
fn an_area_that_is_taken_for_shorter_interrupts_earlier() {
    for processor in deviating(Deviation::ShortDebugStore) {
        processor.run(|kernel, mock| {
            let (mut session, mut recorder) = kernel.take(mock);
            recorder.set_threshold(PreciseThreshold::NearlyFull);
            recorder.start(&mut session, &instructions(), |_| ()).unwrap();
            mock.advance(&mut happened(0, 2000 * PERIOD));
            recorder.drain(&mut session, |report| kernel.report(report)).unwrap();
            kernel.all_reported(mock, processor.name);
            assert!(mock.interrupts() > 1, "{}", processor.name);
        });
    }
}

#[test]
fn a_record_of_several_counters_belongs_to_all_of_them_or_to_none() {
    for processor in deviating(Deviation::CollidedRecords) {
        if processor.name == "format 0" {
            continue; // One counter writes records.
        }
        processor.run(|kernel, mock| {
            let what = processor.name;
            let (mut session, mut recorder) = kernel.take(mock);
            recorder.start(&mut session, &instructions(), |_| ()).unwrap();
            let same = pmu_intel::precise::PreciseEvent::new(
                pmu_tests::opened::raw(0).user_only().every(PERIOD).tagged(9),
                pmu_intel::precise::Precision::ConstantSkid,
            );
            recorder.start(&mut session, &same, |_| ()).unwrap();
            mock.advance(&mut happened(0, 5 * PERIOD));
            let (tags, dropped) = (kernel.tags.borrow(), kernel.memory.dropped());
            if ["format 1", "format 2"].contains(&what) {
                assert!(tags.is_empty() && dropped.unattributed == 5, "{what}: {dropped:?}");
            } else {
                assert_eq!((tags.len(), dropped.unattributed), (10, 0), "{what}: {tags:?}");
            }
            assert_eq!(kernel.unclaimed.get(), 0, "{what}");
        });
    }
}

#[test]
fn after_a_suspend_the_events_are_recorded_again() {
    for processor in processors() {
        processor.run(|kernel, mock| {
            let what = processor.name;
            let (mut session, mut recorder) = kernel.take(mock);
            recorder.start(&mut session, &instructions(), |_| ()).unwrap();
            mock.advance(&mut happened(0, PERIOD));
            mock.lose_registers();
            mock.set_performance_entry(0x400);
            session.reprogram(|_| ()).unwrap();
            recorder.reprogram(&mut session, |report| kernel.report(report)).unwrap();
            for _ in 0..3 {
                mock.advance(&mut happened(0, PERIOD));
            }
            kernel.all_reported(mock, what);
            assert_eq!(kernel.reported.borrow().len(), 4, "{what}");
            recorder.shut_down(&mut session, |_| ()).unwrap();
            session.shut_down().unwrap();
        });
    }
}
