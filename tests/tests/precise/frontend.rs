//! Front-end events, whose condition is in a register of its own.

use pmu_core::{
    CounterError, CounterSession, CounterSet, Event, EventEntry, EventSelect, EventTable,
    MsrAddress, OpenedEvents,
};
use pmu_intel::precise::{PreciseError, PreciseEvent, PreciseEventError, Precision};
use pmu_virt::Read;
use pmu_virt::mock::Fault;

use crate::latency::loads;
use crate::support::*;

fn counted(select: u64, register: u32, value: u64) -> Event {
    // SAFETY: the mock's registers are numbers.
    let register = unsafe { MsrAddress::new(register) };
    Event::raw(EventSelect::from_bits(select)).user_only().with_extra(register, value)
}

fn with_extra(select: u64, register: u32, value: u64) -> PreciseEvent {
    let event = counted(select, register, value).every(PERIOD);
    PreciseEvent::new(event, Precision::ZeroSkidRequested)
}

/// FRONTEND_RETIRED, in Intel's lists: 0x11 is DSB_MISS, 0x400406 is LATENCY_GE_4.
pub(crate) fn frontend(condition: u64) -> PreciseEvent {
    with_extra(0x01C6, 0x3F7, condition)
}

/// Processors with the register: from Skylake on.
pub(crate) fn has_register(processor: &Processor) -> bool {
    !["format 0", "format 1", "format 2"].contains(&processor.name)
}

#[test]
fn a_front_end_event_has_its_condition_in_the_register_until_it_is_stopped() {
    for processor in processors().into_iter().filter(has_register) {
        processor.run(|kernel, mock| {
            let what = format!("{}, {}", processor.name, processor.freezes);
            let condition = || {
                mock.with_precise_records(|records| {
                    mock.with_pmu(|pmu| pmu.read_beside(records, 0x3F7))
                })
            };
            let (mut session, mut recorder) = kernel.take(mock);
            let counter = recorder.start(&mut session, &frontend(0x40_0406), |_| ()).unwrap();
            assert_eq!(condition(), Some(Read::Value(0x40_0406)), "{what}");
            let bits = mock.with_precise_records(|records| records.enabled());
            assert_eq!(bits, Some(counter.only().bits()), "{what}");
            // One register: another condition waits, and the same one does not.
            let other = recorder.start(&mut session, &frontend(0x11), |_| ());
            assert_eq!(other, Err(PreciseError::FrontendInUse(0x40_0406)), "{what}");
            let second = recorder.start(&mut session, &frontend(0x40_0406), |_| ()).unwrap();
            recorder.stop(&mut session, counter, |_| ()).unwrap();
            let other = recorder.start(&mut session, &frontend(0x11), |_| ());
            assert_eq!(other, Err(PreciseError::FrontendInUse(0x40_0406)), "{what}");
            // A suspend loses the register.
            mock.lose_registers();
            mock.set_performance_entry(0x400);
            session.reprogram(|_| ()).unwrap();
            recorder.reprogram(&mut session, |_| ()).unwrap();
            assert_eq!(condition(), Some(Read::Value(0x40_0406)), "{what}");
            recorder.stop(&mut session, second, |_| ()).unwrap();
            recorder.start(&mut session, &frontend(0x11), |_| ()).unwrap();
            assert_eq!(condition(), Some(Read::Value(0x11)), "{what}");
            recorder.shut_down(&mut session, |_| ()).unwrap();
            session.shut_down().unwrap();
            nothing_is_enabled(mock, &what);
        });
    }
}

/// The processor has one register for the events that the session counts and for those that it records.
#[test]
fn an_event_of_the_session_has_the_register_only_with_the_condition_that_a_recorded_event_has() {
    for processor in processors().into_iter().filter(has_register) {
        processor.run(|kernel, mock| {
            let what = format!("{}, {}", processor.name, processor.freezes);
            let set = |value| {
                mock.with_precise_records(|records| {
                    mock.with_pmu(|pmu| pmu.write_beside(records, 0x3F7, value))
                })
            };
            let condition = || {
                mock.with_precise_records(|records| {
                    mock.with_pmu(|pmu| pmu.read_beside(records, 0x3F7))
                })
            };
            assert_eq!(set(0x7).map(|written| written.illegal), Some(0), "{what}");
            let (mut session, mut recorder) = kernel.take(mock);
            let in_use = CounterError::ExtraRegisterInUse(0x3F7);
            let [latency, miss] = [0x40_0406, 0x11].map(|value| {
                session.open_event(&kernel.counters, &counted(0x01C6, 0x3F7, value)).unwrap()
            });
            // The event of the session comes first.
            session.start_event(latency, 0).unwrap();
            let refused = recorder.start(&mut session, &frontend(0x11), |_| ());
            assert_eq!(refused, Err(PreciseError::Counters(in_use)), "{what}");
            assert_eq!(condition(), Some(Read::Value(0x40_0406)), "{what}");
            assert_eq!(recorder.counters(), CounterSet::NONE, "{what}");
            let counter = recorder.start(&mut session, &frontend(0x40_0406), |_| ()).unwrap();
            // The recorded event comes first.
            session.stop_event(latency, 0).unwrap();
            assert_eq!(session.start_event(miss, 0), Err(in_use), "{what}");
            mock.lose_registers();
            mock.set_performance_entry(0x400);
            session.reprogram(|_| ()).unwrap();
            assert_eq!(session.start_event(miss, 0), Err(in_use), "{what}");
            recorder.reprogram(&mut session, |_| ()).unwrap();
            assert_eq!(session.start_event(miss, 0), Err(in_use), "{what}");
            assert_eq!(condition(), Some(Read::Value(0x40_0406)), "{what}");
            // Until the last of them is stopped.
            let second = recorder.start(&mut session, &frontend(0x40_0406), |_| ()).unwrap();
            recorder.stop(&mut session, counter, |_| ()).unwrap();
            assert_eq!(session.start_event(miss, 0), Err(in_use), "{what}");
            recorder.stop(&mut session, second, |_| ()).unwrap();
            session.start_event(miss, 0).unwrap();
            assert_eq!(condition(), Some(Read::Value(0x11)), "{what}");
            recorder.shut_down(&mut session, |_| ()).unwrap();
            session.shut_down().unwrap();
            assert_eq!(condition(), Some(Read::Value(0x7)), "{what}");
            nothing_is_enabled(mock, &what);
        });
    }
}

/// An access fails with its retry. The condition is reserved if, and only if, an event has started.
#[test]
fn a_start_or_stop_that_fails_leaves_the_condition_to_the_events_that_run() {
    for processor in processors().into_iter().filter(has_register) {
        for stops in [false, true] {
            let mut faults = 0;
            for access in 1.. {
                let mut done = false;
                processor.run(|kernel, mock| {
                    let what = format!("{}, stops: {stops}, {access}", processor.name);
                    let (mut session, mut recorder) = kernel.take(mock);
                    let event = counted(0x01C6, 0x3F7, 0x40_0406);
                    let other = session.open_event(&kernel.counters, &event).unwrap();
                    let counter = stops
                        .then(|| recorder.start(&mut session, &frontend(0x11), |_| ()).unwrap());
                    let ends = mock.accesses().total() + access + 1;
                    mock.inject(Fault::From(access));
                    mock.on_access(Box::leak(Box::new(move |mock: &Mock<'_>| {
                        if mock.accesses().total() == ends {
                            mock.inject(Fault::None);
                        }
                    })));
                    done = match counter {
                        Some(counter) => recorder.stop(&mut session, counter, |_| ()).is_ok(),
                        None => recorder.start(&mut session, &frontend(0x11), |_| ()).is_ok(),
                    };
                    mock.inject(Fault::None);
                    mock.on_access(&|_| ());
                    let in_use = Err(CounterError::ExtraRegisterInUse(0x3F7));
                    match recorder.counters().is_empty() {
                        true => session.start_event(other, 0).expect(&what),
                        // It may have begun to stop, and needs the register no longer.
                        false if stops => drop(session.start_event(other, 0)),
                        false => assert_eq!(session.start_event(other, 0), in_use, "{what}"),
                    }
                    recorder.shut_down(&mut session, |_| ()).expect(&what);
                    session.start_event(other, 0).or_else(already_started).expect(&what);
                    session.shut_down().expect(&what);
                    nothing_is_enabled(mock, &what);
                });
                if done {
                    break;
                }
                faults += 1;
            }
            assert!(faults > 3, "{faults}");
        }
    }
}

fn already_started(error: CounterError) -> Result<(), CounterError> {
    if matches!(error, CounterError::AlreadyStarted(_)) { Ok(()) } else { Err(error) }
}

/// A session that opens no events keeps no values.
#[test]
fn a_session_without_a_table_has_conditions_and_latencies_again_after_a_suspend() {
    for processor in processors().into_iter().filter(has_register) {
        processor.run(|kernel, mock| {
            let what = format!("{}, {}", processor.name, processor.freezes);
            let read = |register| {
                mock.with_precise_records(|records| {
                    mock.with_pmu(|pmu| pmu.read_beside(records, register))
                })
            };
            static NONE: EventTable<[EventEntry; 0]> = EventTable::new();
            let (source, unit) = (OpenedEvents::new(&kernel.counters, &NONE), &kernel.counters);
            let memory = &kernel.counter_memory;
            let session = CounterSession::take(source, unit, CounterSet::ALL, mock, mock, memory);
            let (mut session, mut recorder) = (session.unwrap(), kernel.take_records(mock));
            recorder.start(&mut session, &frontend(0x11), |_| ()).unwrap();
            recorder.start(&mut session, &loads(50), |_| ()).unwrap();
            let values = || [0x3F7, 0x3F6].map(read);
            let expected = [0x11, 50].map(|value| Some(Read::Value(value)));
            assert_eq!(values(), expected, "{what}");
            mock.lose_registers();
            mock.set_performance_entry(0x400);
            session.reprogram(|_| ()).unwrap();
            assert_ne!(values(), expected, "{what}");
            recorder.reprogram(&mut session, |_| ()).unwrap();
            assert_eq!(values(), expected, "{what}");
            recorder.shut_down(&mut session, |_| ()).unwrap();
            session.shut_down().unwrap();
            nothing_is_enabled(mock, &what);
        });
    }
}

#[test]
fn other_extra_registers_and_conditions_are_refused_and_change_nothing() {
    for processor in processors() {
        processor.run(|kernel, mock| {
            let (mut session, mut recorder) = kernel.take(mock);
            let before = mock.accesses();
            let has_no_register = ["format 0", "format 1", "format 2"].contains(&processor.name);
            let on_older = has_no_register.then(|| frontend(0x11));
            for event in on_older.into_iter().chain([
                with_extra(0x01B7, 0x1A6, 0x1_0001), // Off-core response.
                with_extra(0x00C0, 0x3F7, 0x11),     // Instructions have no condition.
                frontend(0x80_0011),                 // A reserved bit.
                frontend(0x1_0000_0011),
            ]) {
                let refused = recorder.start(&mut session, &event, |_| ());
                let allowed = [PreciseEventError::Unsupported, PreciseEventError::NotPrecise];
                let allowed = allowed.map(|reason| Err(PreciseError::Event(reason)));
                assert!(allowed.contains(&refused), "{}: {refused:?}", processor.name);
            }
            assert_eq!(mock.accesses(), before, "{}", processor.name);
        });
    }
}
