//! Calls after each other on branches of events, with faults, guests, recorders and other sessions in between.

use super::support::*;
use pmu_core::EventId;
use pmu_core::access::RegisterAccess;
use pmu_core::branch_recording::BranchRecorder;
use pmu_core::branches::{BranchEnable, BranchFilter};
use pmu_tests::opened::{Random, happened, raw};
use pmu_virt::mock::Fault;

use super::scene::*;

#[test]
fn one_reprogramming_makes_up_for_any_register_that_was_missing() {
    type Operation = fn(&mut Scene<'_>, EventId, EventId) -> Result<(), String>;
    let operations: [(&str, Operation); 9] = [
        ("out", |scene, _, _| scene.session.switch_out(&mut [], 1, |_| ()).map_err(text)),
        ("in", |scene, _, _| scene.session.switch_in(scene.counters, &mut [], 1).map_err(text)),
        ("window", |scene, _, _| {
            let mut window = scene.session.lend(1, |_| ()).map_err(text)?;
            window.lent().set_programmed(true);
            window.end(2).map_err(text)
        }),
        ("end", |scene, _, _| {
            let mock = scene.mock;
            let register = scene.missing;
            mock.inject(Fault::None);
            let window = scene.session.lend(1, |_| ()).unwrap();
            mock.inject(Fault::Register(register));
            window.end(2).map_err(text)
        }),
        ("suspend", |scene, _, _| {
            scene.session.suspend(1, |_| ()).map_err(text)?;
            scene.mock.lose_registers();
            scene.session.resume(2, |_| ()).map(|_| ()).map_err(text)
        }),
        ("stop", |scene, event, _| scene.session.disable(event, 1).map_err(text)),
        ("rotate", |scene, _, _| scene.session.rotate(1).map_err(text)),
        ("start", |scene, _, other| scene.session.enable(other, 1).map_err(text)),
        ("interrupt", |scene, _, _| {
            scene.overflow(2);
            Err(String::new())
        }),
    ];
    for processor in processors() {
        for stack in [None, stack_of(&processor)] {
            for (name, operation) in operations {
                for register in accessed(&processor) {
                    with_scene(&processor, |scene| {
                        let filter = stack.unwrap_or(BranchFilter::ALL);
                        let event = scene.open(2, filter);
                        let event3 = raw(3).every(PERIOD).rotating().tagged(3);
                        let event3 = event3.with_branches(BranchFilter::USER);
                        let other = scene.session.open(scene.counters, &[event3]).unwrap();
                        scene.session.enable(event, 0).unwrap();
                        (1..=3).for_each(|number| scene.mock.branch(&call(number)));
                        scene.mock.inject(Fault::Register(register));
                        scene.missing = register;
                        let done = operation(scene, event, other);
                        scene.mock.inject(Fault::None);
                        let at = format!("{}, {name}, {register:#X}, {stack:?}", scene.name);
                        if done.is_err() {
                            let healed = scene.session.resume(3, |_| ());
                            assert!(healed.is_ok(), "{at}: {healed:?} after {done:?}");
                        }
                        // Another thread runs.
                        scene
                            .session
                            .switch_out(&mut [], 4, |_| ())
                            .map_err(|of| (&at, of))
                            .unwrap();
                        let _ = scene.session.disable(event, 4);
                        let _ = scene.session.disable(other, 4);
                        let window = scene.session.lend(4, |_| ()).unwrap();
                        drop(window);
                        assert_eq!(scene.visible(), None, "{at}");
                        scene.session.lend(4, |_| ()).unwrap().end(5).unwrap();
                        scene.session.enable(event, 6).map_err(|of| (&at, of)).unwrap();
                        scene.mock.branch(&call(9));
                        let _ = scene.samples.take();
                        let found = scene.overflow(2);
                        assert_eq!(found, [(2, Some(vec![call(9).from]))], "{at}");
                        scene.session.shut_down().unwrap();
                        assert_eq!(scene.visible(), None, "{at}");
                    });
                }
            }
        }
    }
}

/// The guest records its own branches in a window.
fn run_guest(scene: &Scene<'_>, number: u64) {
    let (mock, registers) = (scene.mock, scene.unit.registers());
    record_as_guest(mock, scene.unit);
    mock.branch(&user(number));
    mock.branch(&kernel(number));
    // Its hypervisor stops the recording, and leaves the records.
    match registers.enable {
        BranchEnable::Register(control) => mock.write_retrying(control, 0).unwrap(),
        BranchEnable::Bits { bits, off, .. } => {
            mock.update_retrying(bits.set_to(off)).unwrap();
        }
    }
}

#[test]
fn no_fault_that_is_followed_by_others_shows_branches_of_another_thread_or_owner() {
    const SEEDS: u64 = 100;
    for (at, processor) in processors().into_iter().enumerate() {
        let registers = accessed(&processor);
        let stack = stack_of(&processor).unwrap_or(BranchFilter::KERNEL);
        let filters = [BranchFilter::ALL, BranchFilter::USER, stack];
        for seed in 1..SEEDS {
            let mut random = Random((seed + 1000 * at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            with_scene(&processor, |scene| {
                let mut log = vec![];
                let guests = seed.is_multiple_of(2);
                let mut epoch = 1;
                let mut events = vec![];
                let open = |scene: &mut Scene<'_>, events: &mut Vec<EventId>| {
                    events.clear();
                    for (place, filter) in filters.into_iter().enumerate() {
                        let kind = place + 2;
                        let event = raw(kind).every(PERIOD).rotating().tagged(kind as u64);
                        let event = event.with_branches(filter);
                        events.push(scene.session.open(scene.counters, &[event]).unwrap());
                    }
                };
                open(scene, &mut events);
                for _ in 0..60 {
                    let operation = random.below(14);
                    let event = events[random.below(3) as usize];
                    let fault = match random.below(5) {
                        0 => {
                            let place = random.below(registers.len() as u64) as usize;
                            Fault::Register(registers[place])
                        }
                        1 => Fault::From(1 + random.below(60) as u32),
                        _ => Fault::None,
                    };
                    if random.below(4) == 0 {
                        scene
                            .happens
                            .set((1 + random.below(40) as u32, 2 + random.below(3) as usize));
                    }
                    log.push((operation, fault));
                    let name = || format!("{}, seed {seed}, {log:?}", processor.name);
                    scene.mock.inject(fault);
                    let now = 10 * log.len() as u64;
                    match operation {
                        0 | 1 => drop(scene.session.enable(event, now)),
                        2 => drop(scene.session.disable(event, now)),
                        3 => drop(scene.session.rotate(now)),
                        4 => {
                            let _ = scene.session.switch_out(&mut [], now, |_| ());
                            epoch += 1;
                            scene.check(0, &name());
                        }
                        5 => {
                            let _ = scene.session.switch_in(scene.counters, &mut [], now);
                        }
                        6 | 7 => {
                            let mut lent = false;
                            let was_lent = scene.session.counters().usable.is_empty();
                            let mock = scene.mock;
                            let guest = 100 * 5000;
                            let records = guests && random.below(2) == 0;
                            let dropped = random.below(4) == 0;
                            if let Ok(window) = scene.session.lend(now, |_| ()) {
                                mock.inject(Fault::None);
                                drop(window);
                                lent = true;
                            }
                            if lent {
                                scene.happens.set((0, 2));
                                scene.check_borrowed(was_lent || guests, &name());
                                if records {
                                    run_guest(scene, guest);
                                }
                                if !dropped {
                                    mock.inject(fault);
                                    if let Ok(mut window) = scene.session.lend(now, |_| ()) {
                                        window.lent().set_programmed(true);
                                        let _ = window.end(now);
                                    }
                                }
                            }
                        }
                        8 => {
                            if scene.session.suspend(now, |_| ()).is_ok() {
                                scene.mock.lose_registers();
                                let _ = scene.session.resume(now, |_| ());
                            }
                        }
                        9 | 10 => drop(scene.session.reprogram(|_| ())),
                        11 => {
                            if let Ok(mut recorder) =
                                BranchRecorder::take(scene.unit, scene.mock, scene.records)
                            {
                                let _ = recorder.start(filters[random.below(3) as usize]);
                                let mut ended = recorder.shut_down();
                                scene.mock.inject(Fault::None);
                                if ended.is_err() {
                                    ended = recorder.shut_down();
                                }
                                ended.unwrap();
                                scene.happens.set((0, 2));
                            }
                        }
                        12 => {
                            let mut ended = scene.session.shut_down();
                            if ended.is_err() && random.below(2) == 0 {
                                scene.mock.inject(Fault::None);
                                let _ = scene.session.reprogram(|_| ());
                                continue;
                            }
                            scene.happens.set((0, 2));
                            scene.mock.inject(Fault::None);
                            while ended.is_err() {
                                ended = scene.session.shut_down();
                            }
                            scene.check_borrowed(guests, &name());
                            epoch += 1;
                            scene.take_again();
                            open(scene, &mut events);
                        }
                        _ => drop(scene.session.enable_if_free(event, now)),
                    }
                    scene.mock.inject(Fault::None);
                    scene.happens.set((0, 2));
                    scene.samples.take();
                    for _ in 0..random.below(6) {
                        let number = 100 * epoch + random.below(90);
                        match random.below(3) {
                            0 => scene.mock.branch(&user(number)),
                            1 => scene.mock.branch(&kernel(number)),
                            _ => scene.mock.branch(&call(number)),
                        }
                    }
                    for kind in 2..5 {
                        scene.mock.advance(&mut happened(kind, PERIOD));
                    }
                    scene.check(epoch, &name());
                }
                let _ = scene.session.reprogram(|_| ());
                scene.session.shut_down().unwrap();
                scene.check_borrowed(guests, &format!("{}, seed {seed}, {log:?}", processor.name));
            });
        }
    }
}
