//! Front-end events, whose condition is in a register of its own.

use pmu_core::Event;
use pmu_core::access::RegisterAddress;
use pmu_core::error::CounterError;
use pmu_core::precise::{NotPrecise, Precision};
use pmu_core::registers::EventSelect;
use pmu_tests::Reason;

use crate::scene::*;
use crate::support::*;

fn counted(select: u64, register: u32, value: u64) -> Event {
    // SAFETY: the mock's registers are numbers.
    let register = unsafe { RegisterAddress::new(register) };
    Event::raw(EventSelect::from_bits(select)).user_only().with_extra(register, value)
}

fn with_extra(select: u64, register: u32, value: u64) -> Event {
    counted(select, register, value).every(PERIOD).precise(Precision::ZeroSkidRequested)
}

/// FRONTEND_RETIRED, in Intel's lists: 0x11 is DSB_MISS, 0x400406 is LATENCY_GE_4.
pub(crate) fn frontend(condition: u64) -> Event {
    with_extra(0x01C6, 0x3F7, condition)
}

/// Processors with the register: from Skylake on.
pub(crate) fn has_register(processor: &Processor) -> bool {
    !["format 0", "format 1", "format 2"].contains(&processor.name)
}

const IN_USE: Result<(), CounterError> = Err(CounterError::ExtraRegisterInUse(0x3F7));

#[test]
fn a_front_end_event_has_its_condition_in_the_register_until_it_is_stopped() {
    for processor in processors().into_iter().filter(has_register) {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let condition = || scene.read(0x3F7);
        let mut session = scene.take();
        let first = scene.start(&mut session, &frontend(0x40_0406));
        assert_eq!(condition(), 0x40_0406, "{what}");
        let counter = session.counter_of(first).unwrap();
        assert_eq!(scene.enabled(), counter.only().bits(), "{what}");
        // One register: another condition waits, and the same one does not.
        let other = session.open(&scene.counters, &[frontend(0x11)]).unwrap();
        assert_eq!(session.enable(other, 0).reason(), IN_USE, "{what}");
        let second = scene.start(&mut session, &frontend(0x40_0406));
        session.disable(first, 0).unwrap();
        assert_eq!(session.enable(other, 0).reason(), IN_USE, "{what}");
        // A suspend loses the register.
        scene.lose_registers();
        session.reprogram(|_| ()).unwrap();
        assert_eq!(condition(), 0x40_0406, "{what}");
        session.disable(second, 0).unwrap();
        session.enable(other, 0).unwrap();
        assert_eq!(condition(), 0x11, "{what}");
        scene.ends(session, &what);
    }
}

/// The register has the condition of the event whose turn it is.
#[test]
fn events_of_two_conditions_take_turns() {
    for processor in processors().into_iter().filter(has_register) {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        let events = [0x11, 0x40_0406].map(|condition| {
            (condition, scene.start(&mut session, &frontend(condition).with_total().rotating()))
        });
        scene.take_turns(&mut session, 0x3F7, events, &what);
        scene.ends(session, &what);
    }
}

/// The processor has one register for the events that are counted and for those that are precise.
#[test]
fn a_counted_event_has_the_register_only_with_the_condition_that_a_precise_event_has() {
    for processor in processors().into_iter().filter(has_register) {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let condition = || scene.read(0x3F7);
        scene.write(0x3F7, 0x7);
        let mut session = scene.take();
        let [latency, miss] = [0x40_0406, 0x11]
            .map(|value| session.open(&scene.counters, &[counted(0x01C6, 0x3F7, value)]).unwrap());
        // The counted event comes first.
        session.enable(latency, 0).unwrap();
        let other = session.open(&scene.counters, &[frontend(0x11)]).unwrap();
        assert_eq!(session.enable(other, 0).reason(), IN_USE, "{what}");
        assert_eq!((condition(), scene.enabled()), (0x40_0406, 0), "{what}");
        let first = scene.start(&mut session, &frontend(0x40_0406));
        // The precise event comes first.
        session.disable(latency, 0).unwrap();
        assert_eq!(session.enable(miss, 0).reason(), IN_USE, "{what}");
        scene.lose_registers();
        session.reprogram(|_| ()).unwrap();
        assert_eq!(session.enable(miss, 0).reason(), IN_USE, "{what}");
        assert_eq!(condition(), 0x40_0406, "{what}");
        // Until the last of them is stopped.
        let second = scene.start(&mut session, &frontend(0x40_0406));
        session.disable(first, 0).unwrap();
        assert_eq!(session.enable(miss, 0).reason(), IN_USE, "{what}");
        session.disable(second, 0).unwrap();
        session.enable(miss, 0).unwrap();
        assert_eq!(condition(), 0x11, "{what}");
        scene.ends(session, &what);
        assert_eq!(condition(), 0x7, "{what}");
    }
}

/// An access fails with its retry. The condition is reserved if, and only if, an event has started.
#[test]
fn a_start_or_stop_that_fails_leaves_the_condition_to_the_events_that_run() {
    for processor in processors().into_iter().filter(has_register) {
        for stops in [false, true] {
            let mut faults = 0;
            for access in 1.. {
                let what = format!("{}, stops: {stops}, {access}", name(&processor));
                let scene = Scene::new(processor);
                let mut session = scene.take();
                let event = counted(0x01C6, 0x3F7, 0x40_0406);
                let other = session.open(&scene.counters, &[event]).unwrap();
                let event = session.open(&scene.counters, &[frontend(0x11)]).unwrap();
                if stops {
                    session.enable(event, 0).unwrap();
                }
                let outcome = scene.fails_twice_at(access, || match stops {
                    true => session.disable(event, 0),
                    false => session.enable(event, 0),
                });
                match session.is_enabled(event) {
                    false => session.enable(other, 0).expect(&what),
                    // It may have begun to stop, and needs the register no longer.
                    true if stops => drop(session.enable(other, 0)),
                    true => assert_eq!(session.enable(other, 0).reason(), IN_USE, "{what}"),
                }
                match session.close(event, 0) {
                    Ok(_) => {}
                    // Its counter faulted.
                    Err(_) => drop(session.reprogram(|_| ()).expect(&what)),
                }
                session.enable(other, 0).expect(&what);
                scene.ends(session, &what);
                if outcome.is_none() {
                    break;
                }
                faults += 1;
            }
            assert!(faults > 2, "{faults}");
        }
    }
}

#[test]
fn other_extra_registers_and_conditions_are_refused_and_change_nothing() {
    for processor in processors() {
        let scene = Scene::new(processor);
        let mut session = scene.take();
        let before = scene.mock.accesses();
        let on_older = (!has_register(&processor)).then(|| frontend(0x11));
        for event in on_older.into_iter().chain([
            with_extra(0x01B7, 0x1A6, 0x1_0001), // Off-core response.
            with_extra(0x00C0, 0x3F7, 0x11),     // Instructions have no condition.
            frontend(0x80_0011),                 // A reserved bit.
            frontend(0x1_0000_0011),
        ]) {
            let refused = session.open(&scene.counters, &[event]).reason();
            let allowed = [NotPrecise::Unsupported, NotPrecise::Event];
            let allowed = allowed.map(|reason| Err(CounterError::NotPrecise(reason)));
            assert!(allowed.contains(&refused), "{}: {refused:?}", processor.name);
        }
        assert_eq!(scene.mock.accesses(), before, "{}", processor.name);
    }
}
