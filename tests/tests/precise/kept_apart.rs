//! No record of another thread, of a guest or of another privilege level is shown.

use core::sync::atomic::Ordering::Relaxed;

use pmu_core::Event;
use pmu_core::error::CounterError;
use pmu_core::precise::Precision;
use pmu_core::registers::EventSelect;
use pmu_core::thread::ThreadEvent;
use pmu_intel::precise::PreciseThreshold;
use pmu_virt::Privilege;
use pmu_virt::mock::PmiFault;
use pmu_virt::precise::{FedRecord, FedRegisters};

use crate::frontend::frontend;
use crate::latency::loads;
use crate::scene::*;
use crate::support::*;

const KERNEL: u64 = 0xFFFF_FFFF_8000_0000;

/// Every third instruction is the kernel's; behind every third one, of user mode, the kernel continues; the third is
/// user mode's, and its data and branches are the kernel's.
fn mixed(number: u64) -> FedRecord<'static> {
    let (ip, next) = match number % 3 {
        0 => (KERNEL + number, KERNEL + number + 4),
        1 => (0x40_0000 + number, KERNEL + number),
        _ => (0x40_0000 + number, 0x40_0004 + number),
    };
    FedRecord {
        registers: FedRegisters { ip: next, ..FedRegisters::ZERO },
        data_address: KERNEL + 8,
        ..FedRecord::new(ip)
    }
}

#[test]
fn an_event_of_one_privilege_level_shows_no_address_of_the_other() {
    for processor in processors() {
        for user in [true, false] {
            let what = format!("{}, user: {user}", name(&processor));
            let scene = Scene::with(processor, mixed, Mock::strict);
            scene.memory.set_threshold(PreciseThreshold::NearlyFull);
            let mut session = scene.take();
            let event = Event::raw(EventSelect::from_bits(0xC0)).every(PERIOD);
            let event = if user { event.user_only() } else { event.kernel_only() };
            let event = event.precise(Precision::ConstantSkid).recording(scene.unit.groups());
            let event = scene.start(&mut session, &event.with_total());
            let privilege = if user { Privilege::User } else { Privilege::Kernel };
            scene.mock.advance(&mut pmu_tests::opened::happened_at(0, privilege, 9 * PERIOD));
            scene.drain(&mut session);
            let is_own = |address: u64| (address < KERNEL) == user;
            for record in &*scene.records.borrow() {
                let data = record.memory().and_then(|memory| memory.address);
                let addresses = [record.address(), record.next_address(), data];
                assert!(addresses.into_iter().flatten().all(is_own), "{what}");
            }
            // Without the instruction's own address, the next one's decides.
            let expected = match (user, scene.unit.format().has_own_address()) {
                (true, _) | (false, true) => 3,
                (false, false) => 6,
            };
            let shown = (scene.records.borrow().len(), scene.seen.borrow().len());
            assert_eq!(shown, (expected, expected), "{what}");
            assert_eq!(scene.memory.dropped().hidden as usize, 9 - expected, "{what}");
            // The events of the records that are hidden are counted nevertheless.
            assert_eq!(session.read(event, 0).unwrap().value, 9 * PERIOD, "{what}");
        }
    }
}

#[test]
fn a_switch_of_threads_reports_the_records_of_the_one_and_continues_its_period_later() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        scene.memory.set_threshold(PreciseThreshold::NearlyFull);
        let mut session = scene.take();
        let mut first = thread(scene, &precise(0).tagged(7));
        let mut second = thread(scene, &precise(0).tagged(8));
        let note = |sample: pmu_core::Sample<'_, _>| scene.note(&sample);
        for _ in 0..10 {
            // A period and a half each.
            session.switch_in(&scene.counters, &mut first, 0).unwrap();
            scene.happen(0, PERIOD * 3 / 2);
            session.switch_out(&mut first, 0, note).unwrap();
            let seen = scene.seen.borrow().len();
            session.switch_in(&scene.counters, &mut second, 0).unwrap();
            scene.happen(0, PERIOD);
            session.switch_out(&mut second, 0, note).unwrap();
            assert!(scene.seen.borrow()[seen..].iter().all(|seen| seen.tag == 8), "{what}");
        }
        assert_eq!([7, 8].map(|tag| scene.samples(tag)), [15, 10], "{what}");
        scene.all_reported(&what);
        // Events of no thread.
        scene.happen(0, 10 * PERIOD);
        assert_eq!(scene.mock.written_records(), 25, "{what}");
        scene.ends(session, &what);
    }
}

#[test]
fn while_counters_are_lent_no_counter_writes_records_and_afterwards_the_periods_continue() {
    for processor in processors() {
        for begun in [0, PERIOD / 2] {
            let what = format!("{}, {begun}", name(&processor));
            let scene = Scene::new(processor);
            let mock = scene.mock;
            scene.memory.set_threshold(PreciseThreshold::NearlyFull);
            let mut session = scene.take();
            scene.start(&mut session, &precise(0));
            scene.happen(0, 2 * PERIOD + begun);
            let window = session.lend(0, |sample| scene.note(&sample)).unwrap();
            // Before a guest runs, its predecessor's records are read out, and nothing writes any.
            scene.all_reported(&what);
            assert_eq!(scene.reported(), 2, "{what}");
            if scene.unit.needs_physical_address() {
                assert_eq!(scene.read(0x3F5) >> 32 & 1, 0, "{what}: records are on");
            } else {
                assert_eq!(scene.enabled(), 0, "{what}");
            }
            let contents = || -> Vec<u64> {
                words(scene.memory)[1].iter().map(|word| word.load(Relaxed)).collect()
            };
            let written = contents();
            // The borrower runs counters of its own.
            let _ = mock.with_pmu(|pmu| pmu.write(0x38F, 1));
            scene.happen(0, 10 * PERIOD);
            assert_eq!(contents(), written, "{what}");
            let _ = mock.with_pmu(|pmu| pmu.write(0x38F, 0));
            window.end(0).unwrap();
            scene.happen(0, PERIOD - begun - 1);
            assert_eq!(mock.written_records(), 2, "{what}");
            scene.happen(0, 1);
            assert_eq!(mock.written_records(), 3, "{what}");
            scene.ends_after(session, 3, &what);
        }
    }
}

#[test]
fn what_a_predecessor_left_is_ended_and_after_a_shut_down_nothing_is_left() {
    for processor in processors() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        scene.start(&mut session, &precise(0));
        assert_ne!(scene.enabled(), 0, "{what}");
        assert!(scene.memory.pebs_index().is_some());
        session.shut_down().unwrap();
        assert!(scene.memory.pebs_index().is_none());
        nothing_is_enabled(scene.mock, &what);
        // Another predecessor, such as firmware, has left records enabled.
        if !scene.unit.needs_physical_address() {
            scene.write(0x3F1, 1);
        }
        let mut session = scene.take();
        let event = scene.start(&mut session, &precise(0));
        let own = session.counter_of(event).unwrap().only().bits();
        assert_eq!(scene.enabled(), own, "{what}");
        scene.happen(0, PERIOD);
        scene.ends_after(session, 1, &what);
    }
}

/// A thread's interrupt may be lost, or late: its records are reported before the next thread runs.
#[test]
fn a_lost_interrupt_loses_no_record_at_a_switch() {
    for processor in processors() {
        for pmi in [PmiFault::Lost, PmiFault::Late(3)] {
            let what = format!("{}, {pmi:?}", name(&processor));
            let scene = Scene::new(processor);
            let mut session = scene.take();
            let mut thread = thread(scene, &precise(0));
            session.switch_in(&scene.counters, &mut thread, 0).unwrap();
            scene.mock.inject_pmi(pmi);
            scene.happen(0, PERIOD);
            session.switch_out(&mut thread, 0, |sample| scene.note(&sample)).unwrap();
            scene.all_reported(&what);
            assert_eq!(scene.reported(), 1, "{what}");
            scene.mock.inject_pmi(PmiFault::None);
            session.switch_in(&scene.counters, &mut thread, 0).unwrap();
            scene.happen(0, PERIOD);
            scene.all_reported(&what);
            assert_eq!((scene.unclaimed.get(), scene.faulted.get()), (0, 0), "{what}");
        }
    }
}

#[test]
fn a_threads_event_that_was_closed_stops_no_other_event() {
    for processor in processors().into_iter().filter(tells_apart) {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        let mut stale = thread(scene, &precise(0).tagged(1));
        let mut second = thread(scene, &precise(0).tagged(2));
        session.switch_in(&scene.counters, &mut stale, 0).unwrap();
        session.switch_in(&scene.counters, &mut second, 0).unwrap();
        let ThreadEvent::Opened(closed) = stale[0] else { panic!("{stale:?}") };
        let ThreadEvent::Opened(running) = second[0] else { panic!("{second:?}") };
        let counter = session.counter_of(running).unwrap();
        session.close(closed, 0).unwrap();
        let refused = session.switch_out(&mut stale, 0, |sample| scene.note(&sample));
        let reason = refused.map_err(|error| error.reason);
        assert_eq!(reason, Err(CounterError::NoSuchEvent(closed)), "{what}");
        assert_eq!(stale, [ThreadEvent::Unused], "{what}");
        assert_eq!(scene.enabled(), counter.only().bits(), "{what}");
        scene.happen(0, PERIOD);
        session.switch_out(&mut second, 0, |sample| scene.note(&sample)).unwrap();
        assert_eq!([1, 2].map(|tag| scene.samples(tag)), [0, 1], "{what}");
        scene.ends_after(session, 1, &what);
    }
}

/// Each thread's latency or condition is in the register while the thread runs. On a core without the register the
/// thread's event stands still.
#[test]
fn threads_of_two_conditions_have_their_own() {
    type Events = fn(&Processor) -> Vec<Event>;
    let kinds: [(u32, [Events; 2]); 2] = [
        (0x3F6, [|of| loads(of, 30), |of| loads(of, 50)]),
        (0x3F7, [|_| vec![frontend(0x11)], |_| vec![frontend(0x40_0406)]]),
    ];
    let values = [[30, 50], [0x11, 0x40_0406]];
    let mut tried = 0;
    for (processor, kind) in processors().into_iter().flat_map(|of| [(of, 0), (of, 1)]) {
        let (register, events) = kinds[kind];
        let (scene, what) = (Scene::new(processor), format!("{}, {kind}", name(&processor)));
        let without = Scene::new(processors()[0]);
        let (mut session, mut elsewhere) = (scene.take(), without.take());
        let mut threads = vec![];
        for events in events {
            let Ok(group) = session.open(&scene.counters, &events(&processor)) else { break };
            session.enable(group, 0).unwrap();
            let mut thread: Vec<_> = session.group_events(group).map(ThreadEvent::Opened).collect();
            session.switch_out(&mut thread, 0, |_| ()).unwrap();
            threads.push(thread);
        }
        if threads.len() < 2 {
            continue;
        }
        tried += 1;
        for round in 0..6 {
            let thread = &mut threads[round % 2];
            session.switch_in(&scene.counters, thread, 0).expect(&what);
            let on = |event: &ThreadEvent| match event {
                ThreadEvent::Opened(id) => session.counter_of(*id),
                other => panic!("{what}: {other:?}"),
            };
            assert_eq!(scene.read(register), values[kind][round % 2], "{what}, {round}");
            let recording = on(thread.last().unwrap()).unwrap().only().bits();
            assert_eq!(scene.enabled(), recording, "{what}, {round}");
            session.switch_out(thread, 0, |_| ()).expect(&what);
            assert_eq!(scene.enabled(), 0, "{what}, {round}");
            // Format 0 has neither register.
            elsewhere.switch_in(&without.counters, thread, 0).expect(&what);
            assert_eq!(without.enabled(), 0, "{what}, {round}");
            let running = without.mock.with_pmu(|pmu| pmu.running().count());
            assert_eq!(running, 0, "{what}, {round}");
            elsewhere.switch_out(thread, 0, |_| ()).expect(&what);
        }
        scene.ends(session, &what);
        without.ends(elsewhere, &what);
    }
    assert!(tried >= 20, "{tried}");
}
