//! Windows, reprogramming and switches of threads with faults and interrupts at each access, beside a branch trace.

use core::cell::Cell;

use pmu_core::precise::SampleParts;
use pmu_intel::precise::PreciseThreshold;
use pmu_virt::Privilege;
use pmu_virt::branches::{FedBranch, FedBranchKind};
use pmu_virt::mock::Fault;

use crate::branch_trace::Beside;
use crate::scene::*;
use crate::support::*;

fn call() -> FedBranch {
    FedBranch::new(0x40_0000, 0x41_0000, FedBranchKind::RelativeCall, Privilege::User)
}

/// A disturbance of a window.
#[derive(Clone, Copy, Debug)]
enum Disturbance {
    Interrupt(u32),
    Fault(Fault),
}

/// Records and a trace share the area, and are suspended together.
#[test]
fn a_disturbed_window_of_records_and_a_trace_loses_neither() {
    for processor in ["format 3", "format 4"].into_iter().flat_map(named) {
        for access in 1.. {
            let disturbances = [
                Disturbance::Interrupt(access),
                Disturbance::Fault(Fault::At(access)),
                Disturbance::Fault(Fault::From(access)),
            ];
            let ran = disturbances.map(|by| window(processor, by));
            if ran.into_iter().all(|accesses| accesses < access) {
                assert!(access > 5);
                break;
            }
        }
    }
}

/// Returns the number of accesses of a window of records and a trace.
fn window(processor: Processor, by: Disturbance) -> u32 {
    let what = format!("{}, {by:?}", name(&processor));
    let beside = Beside::new(processor);
    let (scene, mock) = (beside.scene, beside.scene.mock);
    scene.memory.set_threshold(PreciseThreshold::NearlyFull);
    let mut session = beside.take(beside.both());
    let event = session.open(&scene.counters, &[precise(0)]).unwrap();
    session.enable(event, 0).unwrap();
    beside.trace.trace(&mut session, true, false).unwrap();
    scene.happen(0, 2 * PERIOD);
    assert!(mock.trace_branch(&call()));
    let before = mock.accesses().total();
    match by {
        Disturbance::Interrupt(access) => mock.interrupt_at(access),
        Disturbance::Fault(fault) => mock.inject(fault),
    }
    let mut run = || {
        let window = session.lend(0, |sample| scene.note(&sample))?;
        window.end(0).map_err(pmu_core::error::CounterError::from)
    };
    let ended = run();
    let accesses = mock.accesses().total() - before;
    mock.inject(Fault::None);
    mock.interrupt_at(0);
    if ended.is_err() {
        let _ = run();
        session.reprogram(|sample| scene.note(&sample)).expect(&what);
        if session.counter_of(event).is_none() {
            session.enable(event, 0).expect(&what);
        }
    }
    assert!(mock.trace_branch(&call()), "{what}");
    scene.happen(0, 2 * PERIOD);
    session.report_samples(|sample| scene.note(&sample)).unwrap();
    session.shut_down().unwrap();
    let (reported, traced) = (scene.reported() as u64, beside.branches.get());
    assert_eq!((reported + traced, traced), (mock.written_records(), 2), "{what}");
    assert!(reported >= 4, "{what}: {reported}");
    assert_eq!(scene.memory.dropped(), Default::default(), "{what}");
    nothing_is_enabled(mock, &what);
    accesses
}

/// The window is dropped, and the next one ends what it began.
#[test]
fn after_a_dropped_window_the_events_are_lent_until_the_next_window_ends() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        scene.memory.set_threshold(PreciseThreshold::NearlyFull);
        let mut session = scene.take();
        scene.start(&mut session, &precise(0));
        scene.happen(0, 2 * PERIOD + PERIOD / 2);
        drop(session.lend(0, |sample| scene.note(&sample)).unwrap());
        assert_eq!(scene.reported(), 2, "{what}");
        scene.happen(0, 3 * PERIOD);
        session.report_samples(|_| panic!("{what}")).unwrap();
        assert!(session.reprogram(|_| panic!("{what}")).is_err(), "{what}");
        let window = session.lend(0, |sample| scene.note(&sample)).expect(&what);
        window.end(0).expect(&what);
        // The rest of the period was in the window that was dropped.
        scene.happen(0, PERIOD);
        scene.ends_after(session, 3, &what);
    }
}

/// Registers that lost their contents, and those that did not.
#[test]
fn a_reprogramming_that_fails_at_any_access_can_be_repeated() {
    for processor in processors() {
        for loses in [false, true] {
            for access in 1.. {
                let what = format!("{}, {loses}, {access}", name(&processor));
                let scene = Scene::new(processor);
                scene.memory.set_threshold(PreciseThreshold::NearlyFull);
                let mut session = scene.take();
                let event = scene.start(&mut session, &precise(0));
                scene.happen(0, 2 * PERIOD);
                if loses {
                    scene.drain(&mut session);
                    scene.lose_registers();
                }
                scene.mock.inject(Fault::From(access));
                let failed = session.reprogram(|sample| scene.note(&sample));
                scene.mock.inject(Fault::None);
                if failed.is_err() {
                    session.reprogram(|sample| scene.note(&sample)).expect(&what);
                    if session.counter_of(event).is_none() {
                        session.enable(event, 0).expect(&what);
                        // It goes on with what was left of its period.
                        let before = scene.mock.written_records();
                        while scene.mock.written_records() == before {
                            scene.happen(0, 1);
                        }
                    } else {
                        scene.happen(0, PERIOD);
                    }
                } else {
                    scene.happen(0, PERIOD);
                }
                scene.happen(0, PERIOD);
                // An index that does not answer hides the owners of the records.
                let dropped = scene.memory.dropped().unattributed;
                if scene.unit.needs_physical_address() && dropped != 0 {
                    scene.drain(&mut session);
                    assert_eq!(scene.reported() as u32 + dropped, 4, "{what}");
                    scene.ends(session, &what);
                } else {
                    scene.ends_after(session, 4, &what);
                }
                if failed.is_ok() {
                    assert!(access > 5);
                    break;
                }
            }
        }
    }
}

/// Each thread's event has its own tag, and its own instructions.
#[test]
fn a_switch_that_fails_at_any_access_shows_no_thread_another_ones_record() {
    for processor in processors() {
        for access in 1.. {
            let what = format!("{}, {access}", name(&processor));
            let scene = Scene::new(processor);
            scene.memory.set_threshold(PreciseThreshold::NearlyFull);
            let mut session = scene.take();
            let [mut first, mut second] = [1, 2].map(|tag| thread(scene, &precise(0).tagged(tag)));
            let note = |sample: pmu_core::Sample<'_, _>| scene.note(&sample);
            session.switch_in(&scene.counters, &mut first, 0).unwrap();
            scene.happen(0, 3 * PERIOD);
            scene.mock.inject(Fault::From(access));
            let out = session.switch_out(&mut first, 0, note);
            let into = session.switch_in(&scene.counters, &mut second, 0);
            scene.mock.inject(Fault::None);
            let failed = out.is_err() || into.is_err();
            if failed {
                session.reprogram(note).expect(&what);
                // The scheduler tries again.
                session.switch_out(&mut second, 0, note).expect(&what);
                session.switch_in(&scene.counters, &mut second, 0).expect(&what);
            }
            let of_first = scene.addresses(1);
            assert!(of_first.len() <= 3, "{what}: {of_first:x?}");
            scene.happen(0, 2 * PERIOD);
            session.switch_out(&mut second, 0, note).expect(&what);
            let of_first = scene.addresses(1);
            let expected: Vec<_> = (0..of_first.len() as u64).map(address).map(Some).collect();
            assert_eq!(of_first, expected, "{what}");
            assert_eq!(scene.addresses(2), [3, 4].map(address).map(Some), "{what}");
            let dropped = scene.memory.dropped();
            let missing = 3 - of_first.len() as u32;
            assert!(missing == 0 || failed && dropped.lost + dropped.unattributed > 0, "{what}");
            scene.ends(session, &what);
            if !failed {
                assert!(access > 5 && missing == 0);
                break;
            }
        }
    }
}

/// The trace uses the area of precise records that themselves have no area.
#[test]
fn after_a_trace_beside_architectural_records_no_area_is_left() {
    for processor in named("architectural") {
        let beside = Beside::new(processor);
        let scene = beside.scene;
        let mut session = beside.take(beside.both());
        let event = session.open(&scene.counters, &[precise(0)]).unwrap();
        session.enable(event, 0).unwrap();
        beside.trace.trace(&mut session, true, false).unwrap();
        assert!(scene.mock.trace_branch(&call()));
        session.shut_down().unwrap();
        assert_eq!(beside.branches.get(), 1);
        nothing_is_enabled(scene.mock, "beside architectural records");
    }
}

#[test]
fn with_an_interrupt_at_each_access_a_reprogramming_reports_each_record_once() {
    for processor in processors() {
        for access in 1.. {
            let what = format!("{}, {access}", name(&processor));
            let scene = Scene::new(processor);
            let mut session = scene.take();
            scene.start(&mut session, &precise(0));
            scene.happen(0, PERIOD);
            let before = scene.mock.accesses().total();
            scene.mock.interrupt_at(access);
            session.reprogram(|sample| scene.note(&sample)).unwrap();
            let done = scene.mock.accesses().total() - before < access;
            scene.mock.interrupt_at(0);
            scene.happen(0, PERIOD);
            scene.drain(&mut session);
            let expected: Vec<_> =
                (0..scene.mock.written_records()).map(address).map(Some).collect();
            assert_eq!(scene.addresses(0), expected, "{what}");
            assert_eq!(scene.memory.dropped(), Default::default(), "{what}");
            scene.ends(session, &what);
            if done {
                break;
            }
        }
    }
}

#[test]
fn events_of_different_parts_are_switched_with_their_threads() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        scene.memory.set_threshold(PreciseThreshold::NearlyFull);
        let mut session = scene.take();
        let parts = scene.unit.groups();
        assert!(parts.contains(SampleParts::REGISTERS), "{what}");
        let mut threads =
            [precise(0).recording(parts), precise(0)].map(|event| thread(scene, &event));
        let with_registers: &'static Cell<u32> = Box::leak(Box::default());
        *scene.react.borrow_mut() = Some(Box::new(|scene, _| {
            let has_registers = scene.records.borrow().last().unwrap().registers().is_some();
            with_registers.set(with_registers.get() + u32::from(has_registers));
        }));
        for thread in [0, 1, 0, 1] {
            session.switch_in(&scene.counters, &mut threads[thread], 0).unwrap();
            scene.happen(0, 2 * PERIOD);
            let note = |sample: pmu_core::Sample<'_, _>| scene.note(&sample);
            session.switch_out(&mut threads[thread], 0, note).unwrap();
        }
        // The records of older formats are all alike.
        let is_fixed = ["format 0", "format 1", "format 2", "format 3"].contains(&processor.name);
        assert_eq!(with_registers.get(), if is_fixed { 8 } else { 4 }, "{what}");
        scene.ends_after(session, 8, &what);
    }
}
