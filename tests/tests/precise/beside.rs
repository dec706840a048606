//! Records beside what else a processor does: events of different records, a suspend, guests, and saved counters.

use pmu_core::{CounterSet, Event, EventSelect, guest_control};
use pmu_intel::precise::{PreciseThreshold, SampleParts};
use pmu_tests::opened::happened;

use crate::support::*;

/// Processors whose events can have records of different sizes.
fn adaptive() -> impl Iterator<Item = Processor> {
    processors().into_iter().filter(|p| ["format 4", "format 5", "format 6"].contains(&p.name))
}

#[test]
fn each_record_interrupts_also_one_without_groups_beside_one_with_groups() {
    for processor in adaptive() {
        for by_handler in [false, true] {
            processor.run(|kernel, mock| {
                let what = format!("{}, {by_handler}", processor.name);
                let (mut session, mut recorder) = kernel.take(mock);
                let rich = other(3).with(SampleParts::REGISTERS | SampleParts::VECTORS);
                recorder.start(&mut session, &rich, |_| ()).unwrap();
                let plain = instructions();
                let plain = if by_handler { plain.loaded_by_handler() } else { plain };
                recorder.start(&mut session, &plain, |_| ()).unwrap();
                for number in 1..=20 {
                    mock.advance(&mut happened(0, PERIOD));
                    assert_eq!(mock.interrupts(), number, "{what}");
                }
                kernel.all_reported(mock, &what);
                assert_eq!(kernel.reported.borrow().len(), 20, "{what}");
            });
        }
    }
}

#[test]
fn a_later_threshold_does_not_stall_an_event_that_the_handler_loads() {
    for processor in processors() {
        if ["format 0", "format 1"].contains(&processor.name) {
            continue; // One event.
        }
        processor.run(|kernel, mock| {
            let (mut session, mut recorder) = kernel.take(mock);
            let event = instructions().loaded_by_handler();
            recorder.start(&mut session, &event, |_| ()).unwrap();
            recorder.set_threshold(PreciseThreshold::NearlyFull);
            recorder.start(&mut session, &other(3), |_| ()).unwrap();
            for number in 1..=5 {
                mock.advance(&mut happened(0, PERIOD));
                assert_eq!(mock.interrupts(), number, "{}", processor.name);
            }
            kernel.all_reported(mock, processor.name);
        });
    }
}

#[test]
fn no_record_is_written_in_a_guest_and_no_event_of_guests_counts_the_host_after_a_start() {
    for processor in processors() {
        processor.run(|kernel, mock| {
            let (mut session, mut recorder) = kernel.take(mock);
            session.set_virtualization(true).unwrap();
            let event = Event::raw(EventSelect::from_bits(0xC4)).in_guests();
            let event = event.on(CounterSet::from_bits(0b10));
            let event = session.open_event(&kernel.counters, &event).unwrap();
            session.start_event(event, 0).unwrap();
            let of_guest = session.counter_of(event).unwrap();
            let counter = recorder.start(&mut session, &instructions(), |_| ()).unwrap();
            let control = guest_control(&kernel.source(), &kernel.counter_memory).unwrap();
            let bits = |counter: pmu_core::CounterId| counter.only().bits();
            let what = processor.name;
            assert_eq!(control.host & (bits(of_guest) | bits(counter)), bits(counter), "{what}");
            assert_eq!(control.guest & (bits(of_guest) | bits(counter)), bits(of_guest), "{what}");
        });
    }
}
