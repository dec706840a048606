//! Registers that lost their contents, or have those of another owner: programmed again, whole.

use pmu_core::error::CounterError;
use pmu_core::precise::SampleParts;
use pmu_intel::precise::PreciseThreshold;
use pmu_virt::mock::{Fault, PmiFault};

use crate::frontend::{frontend, has_register};
use crate::latency::loads;
use crate::scene::*;
use crate::support::*;

/// `MSR_PEBS_LD_LAT_THRESHOLD`, `IA32_PEBS_ENABLE`, and the base and the index of architectural PEBS.
const LATENCY: u32 = 0x3F6;
const ENABLE: u32 = 0x3F1;
const BASE: u32 = 0x3F4;
const INDEX: u32 = 0x3F5;

#[test]
fn records_after_a_suspend_have_the_parts_of_before() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        let parts = scene.unit.groups();
        assert!(parts.contains(SampleParts::REGISTERS), "{what}");
        scene.start(&mut session, &precise(0).recording(parts));
        scene.lose_registers();
        session.reprogram(|_| ()).unwrap();
        scene.mock.inject_pmi(PmiFault::Lost);
        scene.happen(0, PERIOD);
        scene.drain(&mut session);
        let records = scene.records.borrow();
        assert_eq!(records.len(), 1, "{what}");
        assert!(records[0].registers().is_some(), "{what}");
        let has_vectors = parts.contains(SampleParts::VECTORS);
        assert_eq!(records[0].vectors().is_some(), has_vectors, "{what}");
    }
}

/// At each access at which records are enabled, the processor has the right address.
#[test]
fn records_never_go_to_address_0_after_registers_were_lost() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let is_architectural = scene.unit.needs_physical_address();
        let (address, control) = if is_architectural { (BASE, INDEX) } else { (0x600, ENABLE) };
        let mut session = scene.take();
        let event = scene.start(&mut session, &precise(0));
        let right = scene.read(address);
        assert_ne!(right, 0, "{what}");
        let at = what.clone();
        scene.mock.on_access(Box::leak(Box::new(move |_: &Mock<'static>| {
            if scene.read(control) != 0 {
                assert_eq!(scene.read(address), right, "{at}");
            }
        })));
        scene.lose_registers();
        session.reprogram(|_| ()).unwrap();
        assert_eq!(scene.read(address), right, "{what}");
        let window = session.lend(0, |_| ()).unwrap();
        scene.lose_registers();
        window.end(0).unwrap();
        assert_eq!(scene.read(address), right, "{what}");
        session.suspend(0, |_| ()).unwrap();
        scene.lose_registers();
        session.resume(0, |_| ()).unwrap();
        assert_eq!(scene.read(address), right, "{what}");
        session.disable(event, 0).unwrap();
        scene.lose_registers();
        session.reprogram(|_| ()).unwrap();
        scene.start(&mut session, &precise(0));
        assert_eq!(scene.read(address), right, "{what}");
        scene.mock.on_access(&|_| ());
        scene.happen(0, PERIOD);
        scene.ends_after(session, 1, &what);
    }
}

/// The threshold's register, and the auxiliary event of Sapphire Rapids.
#[test]
fn a_suspend_loses_neither_the_latency_nor_the_auxiliary_event() {
    for processor in ["format 3", "format 4", "architectural"].into_iter().flat_map(named) {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        scene.start_together(&mut session, &loads(&processor, 50));
        scene.lose_registers();
        assert_eq!(scene.read(LATENCY), 0, "{what}");
        session.reprogram(|_| ()).unwrap();
        assert_eq!(scene.read(LATENCY), 50, "{what}");
        if processor.name == "format 4" {
            assert_eq!(scene.read(0x186) & 0xFFFF_FFFF, 0x53_8203, "{what}");
        }
    }
}

#[test]
fn a_session_whose_events_are_stopped_clears_what_firmware_left_enabled() {
    for processor in processors().into_iter().filter(|p| p.name.starts_with("format")) {
        let scene = Scene::new(processor);
        let mut session = scene.take();
        let event = scene.start(&mut session, &precise(0));
        session.disable(event, 0).unwrap();
        scene.lose_registers();
        scene.write(ENABLE, 1);
        session.reprogram(|_| ()).unwrap();
        assert_eq!(scene.read(ENABLE), 0, "{}", processor.name);
    }
}

/// Another owner's index says nothing about this buffer, which still has records that were reported.
#[test]
fn after_another_owners_buffer_nothing_is_reported_by_its_index() {
    for processor in named("architectural").chain(named("fragments")) {
        let (scene, what) = (Scene::new(processor), name(&processor));
        scene.memory.set_threshold(PreciseThreshold::NearlyFull);
        let mut session = scene.take();
        scene.start(&mut session, &precise(0));
        scene.happen(0, 3 * PERIOD);
        let index = scene.read(INDEX);
        scene.drain(&mut session);
        assert_eq!(scene.reported(), 3, "{what}");
        scene.lose_registers();
        scene.write(BASE, 8 * PHYSICAL);
        scene.write(INDEX, index);
        session.reprogram(|sample| scene.note(&sample)).unwrap();
        scene.drain(&mut session);
        let dropped = scene.memory.dropped();
        assert_eq!((scene.reported(), dropped), (3, Default::default()), "{what}");
        scene.happen(0, PERIOD);
        scene.ends_after(session, 4, &what);
    }
}

/// A register for one value of all events is free again, although the failed start could not be undone.
#[test]
fn after_a_start_that_was_not_undone_another_latency_or_condition_starts() {
    for processor in processors().into_iter().filter(has_register) {
        let loads = |cycles| loads(&processor, cycles);
        let frontend = |condition| vec![frontend(condition)];
        for [first, second] in [[loads(30), loads(31)], [frontend(0x11), frontend(0x40_0406)]] {
            for access in 1.. {
                let (scene, what) = (Scene::new(processor), name(&processor));
                let what = format!("{what}, {access}");
                let mut session = scene.take();
                let groups = [&first, &second]
                    .map(|events| session.open(&scene.counters, events).expect(&what));
                scene.mock.inject(Fault::From(access));
                let started = session.enable(groups[0], 0);
                scene.mock.inject(Fault::None);
                if started.is_ok() {
                    assert!(access > 3);
                    break;
                }
                session.reprogram(|_| ()).expect(&what);
                assert_eq!(scene.enabled(), 0, "{what}");
                session.enable(groups[1], 0).expect(&what);
                scene.ends(session, &what);
            }
        }
    }
}

/// The rest of the period is lost with the counter.
#[test]
fn a_threads_event_whose_registers_were_lost_begins_a_whole_period() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        let mut thread = thread(scene, &precise(0));
        let note = |sample: pmu_core::Sample<'_, _>| scene.note(&sample);
        session.switch_in(&scene.counters, &mut thread, 0).unwrap();
        scene.happen(0, PERIOD / 2);
        session.switch_out(&mut thread, 0, note).unwrap();
        session.switch_in(&scene.counters, &mut thread, 0).unwrap();
        scene.lose_registers();
        session.reprogram(|_| ()).unwrap();
        scene.happen(0, PERIOD - 1);
        assert_eq!(scene.mock.written_records(), 0, "{what}");
        scene.happen(0, 1);
        assert_eq!(scene.mock.written_records(), 1, "{what}");
        session.switch_out(&mut thread, 0, note).unwrap();
        scene.all_reported(&what);
    }
}

/// An interrupt at each access of a start cannot restart the counters.
#[test]
fn a_precise_event_that_starts_as_a_restart_fails_counts_or_is_said_not_to() {
    let mut started_so = 0;
    for access in 1..30 {
        for processor in processors() {
            let what = format!("{}, access {access}", name(&processor));
            let scene = Scene::new(processor);
            let mut session = scene.take();
            let event = session.open(&scene.counters, &[precise(0).with_total()]).unwrap();
            let fails: &'static _ = Box::leak(Box::new(move |mock: &Mock<'static>| {
                mock.inject(Fault::Register(0x38F));
                let _ = pmu_core::service(&scene.source(), mock, &scene.counter_memory, |_| ());
                mock.inject(Fault::None);
            }));
            scene.mock.on_interrupt(fails);
            scene.mock.interrupt_at(access);
            let started = session.enable(event, 0);
            scene.mock.interrupt_at(0);
            if started.is_err() {
                continue;
            }
            scene.mock.inject_pmi(PmiFault::Lost);
            scene.happen(0, 7);
            let count = session.read(event, 0).map(|count| count.value);
            if count != Err(CounterError::CounterLost(event)) {
                started_so += 1;
                assert_eq!(count, Ok(7), "{what}");
            }
        }
    }
    assert!(started_so > 0);
}
