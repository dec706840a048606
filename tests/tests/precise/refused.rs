//! Operations that are refused, or fail, and leave everything else as it was.

use pmu_core::{CounterError, CounterSet, Event, EventSelect};
use pmu_intel::precise::{
    AccessKind, PreciseError, PreciseEvent, PreciseEventError, PreciseReport, PreciseThreshold,
    Precision, ThreadRecords,
};
use pmu_tests::opened::{happened, raw};
use pmu_virt::mock::{Fault, PmiFault};

use crate::latency::loads;
use crate::support::*;

#[test]
fn an_event_that_the_handler_loads_is_refused_where_the_buffer_fills_before_an_interrupt() {
    for processor in processors() {
        processor.run(|kernel, mock| {
            let (mut session, mut recorder) = kernel.take(mock);
            recorder.set_threshold(PreciseThreshold::NearlyFull);
            let event = instructions().loaded_by_handler();
            let before = mock.accesses();
            let refused = recorder.start(&mut session, &event, |_| ());
            let reason = PreciseEventError::NeedsEachRecord;
            assert_eq!(refused, Err(PreciseError::Event(reason)), "{}", processor.name);
            assert_eq!(mock.accesses(), before, "{}", processor.name);
            recorder.set_threshold(PreciseThreshold::EachRecord);
            recorder.start(&mut session, &event, |_| ()).unwrap();
        });
    }
}

#[test]
fn a_thread_is_not_switched_out_by_another_processors_recorder() {
    for processor in processors() {
        processor.run(|here, mock| {
            processor.run(|there, mock_there| {
                let what = format!("{}, {}", processor.name, processor.freezes);
                let (mut session, mut recorder) = here.take(mock);
                let (mut session_there, mut recorder_there) = there.take(mock_there);
                let mut thread = ThreadRecords::new(instructions());
                recorder.switch_in(&mut session, &mut thread, |_| ()).unwrap();
                let own = thread.counter();
                // The other recorder's own event is on the same counter.
                recorder_there.start(&mut session_there, &instructions(), |_| ()).unwrap();
                let refused = recorder_there.switch_out(&mut session_there, &mut thread, |_| ());
                assert_eq!(refused, Err(PreciseError::NotStarted), "{what}");
                assert_eq!(thread.counter(), own, "{what}");
                for (mock, kernel) in [(mock, here), (mock_there, there)] {
                    mock.advance(&mut happened(0, PERIOD));
                    kernel.all_reported(mock, &what);
                    assert_eq!(kernel.reported.borrow().len(), 1, "{what}");
                }
            });
        });
    }
}

/// An access fails with its retry: the start is undone, and the event that ran before goes on.
#[test]
fn a_start_that_fails_leaves_the_other_event_recording() {
    for processor in
        processors().into_iter().filter(|p| !["format 0", "format 1"].contains(&p.name))
    {
        for access in 1.. {
            let mut done = false;
            processor.run(|kernel, mock| {
                let what = format!("{}, {}, {access}", processor.name, processor.freezes);
                let (mut session, mut recorder) = kernel.take(mock);
                let report = |report: &PreciseReport<'_>| kernel.report(report);
                let first = recorder.start(&mut session, &instructions(), report).unwrap();
                let ends = mock.accesses().total() + access + 1;
                mock.inject(Fault::From(access));
                mock.on_access(Box::leak(Box::new(move |mock: &Mock<'_>| {
                    if mock.accesses().total() == ends {
                        mock.inject(Fault::None);
                    }
                })));
                done = recorder.start(&mut session, &other(3), report).is_ok();
                mock.inject(Fault::None);
                mock.on_access(&|_| ());
                if !done {
                    assert_eq!(recorder.counters(), first.only(), "{what}");
                    mock.advance(&mut happened(3, 3 * PERIOD));
                    mock.advance(&mut happened(0, PERIOD));
                    kernel.ends(mock, session, recorder, 1, &what);
                }
            });
            if done {
                assert!(access > 5);
                break;
            }
        }
    }
}

/// Sapphire Rapids' latency event needs a second counter. If there is only one, that one stays free.
#[test]
fn a_latency_event_without_room_for_its_auxiliary_event_leaves_the_counter_free() {
    let processor = processors().into_iter().find(|p| p.name == "format 4").unwrap();
    processor.run(|kernel, mock| {
        let (mut session, mut recorder) = kernel.take(mock);
        let general = kernel.counters.counters() & CounterSet::GENERAL;
        let last = general.iter().last().unwrap();
        for counter in general.iter().filter(|counter| *counter != last) {
            let (of, _) = session.reserve(&kernel.counters, &raw(3), counter.only()).unwrap();
            assert_eq!(of, counter);
        }
        for _ in 0..2 {
            let refused = recorder.start(&mut session, &loads(30), |_| ());
            assert_eq!(refused, Err(PreciseError::Counters(CounterError::NoFreeCounter)));
        }
        let counter = recorder.start(&mut session, &other(3), |_| ()).unwrap();
        assert_eq!(counter, last);
    });
}

/// The stores of Intel's lists: MEM_TRANS_RETIRED.STORE_SAMPLE, and MEM_INST_RETIRED's stores: those that miss the
/// second-level TLB, are locked, are split between lines, and all.
#[test]
fn records_of_the_events_of_stores_are_of_stores() {
    let processor = processors().into_iter().find(|p| p.name == "format 3").unwrap();
    let stores = [0x02CD, 0x12D0, 0x22D0, 0x42D0, 0x82D0];
    let others = [0x11D0, 0x41D0, 0x81D0, 0x01D1, 0x00C0];
    for (select, kind) in stores
        .map(|select| (select, AccessKind::Stores))
        .into_iter()
        .chain(others.map(|select| (select, AccessKind::Unknown)))
    {
        processor.run(|kernel, mock| {
            let (mut session, mut recorder) = kernel.take(mock);
            let event = Event::raw(EventSelect::from_bits(select)).user_only().every(PERIOD);
            let event = PreciseEvent::new(event, Precision::ConstantSkid);
            recorder
                .start(&mut session, &event, |_| ())
                .unwrap_or_else(|error| panic!("{select:#x}: {error:?}"));
            mock.inject_pmi(PmiFault::Lost);
            // The counter overflows before the next access.
            mock.interrupt_at(1);
            let mut kinds = vec![];
            recorder.drain(&mut session, |report| kinds.push(report.access)).unwrap();
            assert_eq!(kinds, [kind], "{select:#x}");
        });
    }
}
