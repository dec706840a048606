//! Operations that are refused, or fail, and leave everything else as it was.

use core::sync::atomic::AtomicU64;

use pmu_core::error::{CounterError, NoFacility};
use pmu_core::precise::{Precision, SampleParts};
use pmu_core::registers::EventSelect;
use pmu_core::thread::ThreadEvent;
use pmu_core::{CounterSet, Event};
use pmu_intel::precise::{Pebs, PreciseMemory};
use pmu_tests::Reason;
use pmu_tests::opened::raw;
use pmu_virt::mock::{Fault, PmiFault};

use crate::latency::loads;
use crate::scene::*;
use crate::support::*;

/// The thread's event has a place in the table of its own processor alone.
#[test]
fn a_thread_is_not_switched_out_by_another_processors_session() {
    for processor in processors() {
        let what = name(&processor);
        let [here, there] = [(); 2].map(|()| Scene::new(processor));
        let (mut session, mut session_there) = (here.take(), there.take());
        let mut thread = thread(here, &precise(0));
        session.switch_in(&here.counters, &mut thread, 0).unwrap();
        let ThreadEvent::Opened(own) = thread[0] else { panic!("{thread:?}") };
        let before = there.mock.accesses();
        let refused = session_there.switch_out(&mut thread, 0, |_| ());
        let reason = refused.map_err(|error| error.reason);
        assert_eq!(reason, Err(CounterError::NoSuchEvent(own)), "{what}");
        assert_eq!(there.mock.accesses().writes, before.writes, "{what}");
        there.start(&mut session_there, &precise(0));
        for scene in [here, there] {
            scene.happen(0, PERIOD);
            scene.all_reported(&what);
            assert_eq!(scene.reported(), 1, "{what}");
        }
    }
}

/// An access fails with its retry: the start is undone, and the event that ran before goes on, unless its counter
/// faulted, too.
#[test]
fn a_start_that_fails_leaves_the_other_event_recording() {
    for processor in processors().into_iter().filter(tells_apart) {
        for access in 1.. {
            let what = format!("{}, {access}", name(&processor));
            let scene = Scene::new(processor);
            let mut session = scene.take();
            let first = scene.start(&mut session, &precise(0));
            let other = session.open(&scene.counters, &[precise(3)]).unwrap();
            let outcome = scene.fails_twice_at(access, || session.enable(other, 0).reason());
            let Some(outcome) = outcome else {
                assert!(access > 3);
                break;
            };
            match outcome {
                Ok(()) => {}
                Err(CounterError::StateUnknown(_)) => {
                    session.reprogram(|sample| scene.note(&sample)).expect(&what);
                    if session.counter_of(first).is_none() {
                        session.enable(first, 0).expect(&what);
                    }
                }
                Err(CounterError::Unchanged(_)) => {}
                Err(other) => panic!("{what}: {other}"),
            }
            if outcome.is_err() {
                assert_eq!(session.counter_of(other), None, "{what}");
                scene.happen(3, 3 * PERIOD);
            }
            scene.happen(0, PERIOD);
            scene.ends_after(session, 1, &what);
        }
    }
}

/// Sapphire Rapids' latency event needs a second counter. If there is only one, that one stays free.
#[test]
fn a_latency_event_without_room_for_its_auxiliary_event_leaves_the_counter_free() {
    for processor in named("format 4") {
        let scene = Scene::new(processor);
        let mut session = scene.take();
        let general = scene.counters.counters() & CounterSet::GENERAL;
        let last = general.iter().last().unwrap();
        for counter in general.iter().filter(|counter| *counter != last) {
            let event = scene.start(&mut session, &raw(3).on(counter.only()));
            assert_eq!(session.counter_of(event), Some(counter));
        }
        let group = session.open(&scene.counters, &loads(&processor, 30)).unwrap();
        for _ in 0..2 {
            let refused = session.enable(group, 0).map_err(|error| error.reason);
            assert_eq!(refused, Err(CounterError::NoFreeCounter));
        }
        let event = scene.start(&mut session, &precise(3));
        assert_eq!(session.counter_of(event), Some(last));
    }
}

/// The stores of Intel's lists: MEM_TRANS_RETIRED.STORE_SAMPLE, and MEM_INST_RETIRED's stores: those that miss the
/// second-level TLB, are locked, are split between lines, and all.
#[test]
fn records_of_the_events_of_stores_are_of_stores() {
    let stores = [0x02CD, 0x12D0, 0x22D0, 0x42D0, 0x82D0];
    let others = [0x11D0, 0x41D0, 0x81D0, 0x01D1, 0x00C0];
    for (select, is_store) in
        stores.map(|select| (select, true)).into_iter().chain(others.map(|select| (select, false)))
    {
        let scene = Scene::new(named("format 3").next().unwrap());
        let mut session = scene.take();
        let event = Event::raw(EventSelect::from_bits(select)).user_only().every(PERIOD);
        let event = event.precise(Precision::ConstantSkid).recording(SampleParts::ACCESS);
        scene.start(&mut session, &event);
        scene.mock.inject_pmi(PmiFault::Lost);
        // The counter overflows before the next access.
        scene.mock.interrupt_at(1);
        scene.drain(&mut session);
        let instructions = scene.instructions.borrow();
        assert_eq!(instructions.len(), 1, "{select:#x}");
        let access = instructions[0].access.map(|access| (access.load, access.store));
        assert_eq!(access, is_store.then_some((false, true)), "{select:#x}");
    }
}

/// The register that tells where records are written. Without it they would be written elsewhere.
#[test]
fn no_record_is_written_while_the_register_of_its_place_does_not_answer() {
    for processor in processors() {
        let is_architectural = processor.counters.version == 6;
        for register in if is_architectural { [0x3F4, 0x3F5] } else { [0x600; 2] } {
            for lost in [false, true] {
                let what = format!("{}, {register:#x}, lost: {lost}", name(&processor));
                let scene = Scene::new(processor);
                let mut session = scene.take();
                let event = session.open(&scene.counters, &[precise(0)]).unwrap();
                if lost {
                    session.enable(event, 0).unwrap();
                    scene.lose_registers();
                }
                scene.mock.inject(Fault::Register(register));
                let failed = match lost {
                    true => session.reprogram(|sample| scene.note(&sample)).map(|_| ()),
                    false => session.enable(event, 0).reason(),
                };
                scene.mock.inject(Fault::None);
                assert!(failed.is_err(), "{what}");
                assert_eq!(scene.enabled(), 0, "{what}");
                scene.happen(0, 3 * PERIOD);
                let written = (scene.mock.written_records(), scene.mock.lost_records());
                assert_eq!(written, (0, 0), "{what}");
                session.reprogram(|sample| scene.note(&sample)).expect(&what);
                if session.counter_of(event).is_none() {
                    let _ = session.disable(event, 0);
                    session.enable(event, 0).expect(&what);
                }
                scene.happen(0, PERIOD);
                scene.ends_after(session, 1, &what);
            }
        }
    }
}

/// A Debug Store needs whole pages; architectural PEBS 2ⁿ of them, and the buffer's physical address.
#[test]
fn memory_that_a_processor_cannot_use_is_refused_with_the_reason() {
    let half: &'static PreciseMemory<[AtomicU64; 256]> = Box::leak(Box::default());
    let one: &'static PreciseMemory<[AtomicU64; 512]> = Box::leak(Box::default());
    let three: &'static PreciseMemory<[AtomicU64; 1536]> = Box::leak(Box::default());
    for processor in processors() {
        let scene = Scene::new(processor);
        let is_architectural = scene.unit.needs_physical_address();
        // SAFETY: no session has the facility.
        let refused = |memory: &'static PreciseMemory, physical| unsafe {
            Pebs::new(&scene.unit, memory, physical).err()
        };
        let no_address = is_architectural.then_some(NoFacility::NoPhysicalAddress);
        let what = name(&processor);
        for physical in [None, Some(PHYSICAL), Some(PHYSICAL + 16)] {
            assert_eq!(refused(half, physical), Some(NoFacility::BufferSize), "{what}");
            assert_eq!(refused(three, physical), no_address, "{what}");
            let is_right = physical == Some(PHYSICAL);
            assert_eq!(refused(one, physical), no_address.filter(|_| !is_right), "{what}");
        }
    }
}
