//! Branches of events after calls that failed, and beside other owners of the records.

use super::support::*;
use pmu_core::EventId;
use pmu_core::branch_recording::BranchRecorder;
use pmu_core::branches::BranchFilter;
use pmu_tests::opened::raw;
use pmu_virt::mock::Fault;

use super::scene::*;

#[test]
fn a_call_stack_that_could_not_be_brought_back_is_not_another_events() {
    for processor in processors() {
        let Some(stack) = stack_of(&processor) else { continue };
        for failing in 1..200 {
            let mut ended = false;
            with_scene(&processor, |scene| {
                let (event, other) = (scene.open(2, stack), scene.open(3, stack));
                scene.session.enable(event, 0).unwrap();
                (1..=3).for_each(|number| scene.mock.branch(&call(number)));
                let window = scene.session.lend(1, |_| ()).unwrap();
                scene.mock.inject(Fault::From(failing));
                ended = window.end(1).is_ok();
                scene.mock.inject(Fault::None);
                if ended {
                    return;
                }
                let at = format!("{}, {failing}", scene.name);
                let _ = scene.session.disable(event, 2);
                let _ = scene.session.switch_out(&mut [], 2, |_| ());
                scene.session.enable(other, 2).unwrap();
                scene.mock.branch(&call(4));
                let found = scene.overflow(3);
                assert_eq!(found, [(3, Some(vec![call(4).from]))], "{at}");
                // Nor is it a guest's.
                let _ = scene.session.disable(other, 3);
                let window = scene.session.lend(4, |_| ()).unwrap();
                drop(window);
                assert_eq!(scene.visible(), None, "{at}");
            });
            if ended {
                break;
            }
        }
    }
}

#[test]
fn a_call_stack_that_could_not_be_brought_back_is_not_a_guests() {
    for processor in processors() {
        let Some(stack) = stack_of(&processor) else { continue };
        for failing in 1..200 {
            let mut ended = false;
            with_scene(&processor, |scene| {
                let event = scene.open(2, stack);
                scene.session.enable(event, 0).unwrap();
                (1..=3).for_each(|number| scene.mock.branch(&call(number)));
                let window = scene.session.lend(1, |_| ()).unwrap();
                scene.mock.inject(Fault::From(failing));
                ended = window.end(1).is_ok();
                scene.mock.inject(Fault::None);
                if ended {
                    return;
                }
                let _ = scene.session.reprogram(|_| ());
                let window = scene.session.lend(4, |_| ()).unwrap();
                drop(window);
                assert_eq!(scene.visible(), None, "{}, {failing}", scene.name);
            });
            if ended {
                break;
            }
        }
    }
}

#[test]
fn a_recorder_within_a_window_leaves_nothing_to_the_events_after_it() {
    for processor in processors() {
        let Some(stack) = stack_of(&processor) else { continue };
        with_scene(&processor, |scene| {
            let event = scene.open(2, stack);
            scene.session.enable(event, 0).unwrap();
            (1..=3).for_each(|number| scene.mock.branch(&call(number)));
            scene.session.suspend(1, |_| ()).unwrap();
            let mut recorder = BranchRecorder::take(scene.unit, scene.mock, scene.records).unwrap();
            recorder.start(stack).unwrap();
            (11..=13).for_each(|number| scene.mock.branch(&call(number)));
            assert_eq!(addresses(&mut recorder).len(), 3);
            recorder.shut_down().unwrap();
            scene.session.resume(2, |_| ()).unwrap();
            scene.mock.branch(&call(4));
            let found = scene.overflow(2);
            assert_eq!(found, [(2, Some(vec![call(4).from]))], "{}", scene.name);
        });
    }
}

#[test]
fn a_call_stack_does_not_outlast_its_session() {
    for processor in processors() {
        let Some(stack) = stack_of(&processor) else { continue };
        with_scene(&processor, |scene| {
            let event = scene.open(2, stack);
            scene.session.enable(event, 0).unwrap();
            (1..=3).for_each(|number| scene.mock.branch(&call(number)));
            scene.session.shut_down().unwrap();
            scene.take_again();
            let event = scene.open(2, stack);
            scene.session.enable(event, 0).unwrap();
            scene.mock.branch(&call(4));
            let found = scene.overflow(2);
            assert_eq!(found, [(2, Some(vec![call(4).from]))], "{}", scene.name);
        });
    }
}

#[test]
fn nothing_is_on_after_a_first_start_that_fails() {
    for processor in processors() {
        for failing in 1..200 {
            let mut ended = false;
            with_scene(&processor, |scene| {
                let event = scene.open(2, BranchFilter::ALL);
                scene.mock.inject(Fault::From(failing));
                ended = scene.session.enable(event, 0).is_ok();
                scene.mock.inject(Fault::None);
                let _ = scene.session.reprogram(|_| ());
                let at = format!("{}, {failing}", scene.name);
                let window = scene.session.lend(1, |_| ()).unwrap();
                drop(window);
                assert_eq!(scene.visible(), None, "{at}");
                scene.session.shut_down().unwrap();
                assert_eq!(scene.visible(), None, "{at}");
            });
            if ended {
                break;
            }
        }
    }
}

#[test]
fn nothing_is_visible_after_a_shutdown_that_failed_and_a_reprogramming() {
    for processor in processors() {
        for register in accessed(&processor) {
            with_scene(&processor, |scene| {
                let event = scene.open(2, BranchFilter::ALL);
                scene.session.enable(event, 0).unwrap();
                (1..=3).for_each(|number| scene.mock.branch(&user(number)));
                scene.mock.inject(Fault::Register(register));
                let ended = scene.session.shut_down();
                scene.mock.inject(Fault::None);
                if ended.is_ok() {
                    return;
                }
                let at = format!("{}, {register:#X}", scene.name);
                scene.session.reprogram(|_| ()).unwrap();
                let window = scene.session.lend(1, |_| ()).unwrap();
                drop(window);
                assert_eq!(scene.visible(), None, "{at}");
            });
        }
    }
}

#[test]
fn a_register_that_is_missing_does_not_keep_the_counters_from_being_lent() {
    for processor in processors() {
        for register in accessed(&processor) {
            with_scene(&processor, |scene| {
                let at = format!("{}, {register:#X}", scene.name);
                if scene.counters.global().is_some_and(|of| of.acknowledge.get() == register) {
                    return;
                }
                let event = scene.open(2, BranchFilter::ALL);
                scene.mock.inject(Fault::Register(register));
                if scene.session.enable(event, 0).is_ok() {
                    return;
                }
                let window = scene.session.lend(1, |_| ()).map_err(|error| (at.clone(), error));
                window.unwrap().end(2).unwrap();
                scene.session.shut_down().map_err(|error| (at, error)).unwrap();
                scene.mock.inject(Fault::None);
                assert_eq!(scene.visible(), None);
            });
        }
    }
}

#[test]
fn a_recorder_that_could_not_be_taken_leaves_no_freeze_of_the_events() {
    for processor in processors() {
        for register in accessed(&processor) {
            with_scene(&processor, |scene| {
                let event = scene.open(2, BranchFilter::ALL);
                scene.session.enable(event, 0).unwrap();
                scene.session.disable(event, 0).unwrap();
                scene.mock.inject(Fault::Register(register));
                let taken = BranchRecorder::take(scene.unit, scene.mock, scene.records);
                scene.mock.inject(Fault::None);
                let at = format!("{}, {register:#X}", scene.name);
                if let Ok(mut recorder) = taken {
                    recorder.shut_down().unwrap();
                }
                let window = scene.session.lend(1, |_| ()).unwrap();
                drop(window);
                assert_eq!(scene.visible(), None, "{at}");
            });
        }
    }
}

#[test]
fn a_start_that_failed_leaves_the_records_to_a_recorder() {
    for processor in processors() {
        for failing in 1..200 {
            let mut ended = false;
            with_scene(&processor, |scene| {
                let event = scene.open(2, BranchFilter::ALL);
                let other = scene.open(3, BranchFilter::USER);
                scene.session.enable(event, 0).unwrap();
                scene.session.disable(event, 0).unwrap();
                scene.mock.inject(Fault::From(failing));
                ended = scene.session.enable(other, 0).is_ok();
                scene.mock.inject(Fault::None);
                if ended {
                    return;
                }
                let _ = scene.session.reprogram(|_| ());
                let taken = BranchRecorder::take(scene.unit, scene.mock, scene.records);
                let at = format!("{}, {failing}", scene.name);
                taken.map_err(|error| (at, error)).unwrap().shut_down().unwrap();
            });
            if ended {
                break;
            }
        }
        for register in accessed(&processor) {
            with_scene(&processor, |scene| {
                let event = scene.open(2, BranchFilter::ALL);
                let other = scene.open(3, BranchFilter::USER);
                scene.session.enable(event, 0).unwrap();
                scene.session.disable(event, 0).unwrap();
                scene.mock.inject(Fault::Register(register));
                let _ = scene.session.enable(other, 0);
                let _ = scene.session.disable(other, 0);
                scene.mock.inject(Fault::None);
                let at = format!("{}, {register:#X}", scene.name);
                let plain = raw(4).every(PERIOD);
                let plain = scene.session.open(scene.counters, &[plain]).unwrap();
                scene.session.enable(plain, 0).map_err(|error| (at.clone(), error)).unwrap();
                let taken = BranchRecorder::take(scene.unit, scene.mock, scene.records);
                taken.map_err(|error| (at, error)).unwrap().shut_down().unwrap();
            });
        }
    }
}

#[test]
fn memory_that_is_reclaimed_beside_events_ends_with_them() {
    for processor in processors() {
        with_scene(&processor, |scene| {
            let event = scene.open(2, BranchFilter::ALL);
            scene.session.enable(event, 0).unwrap();
            // SAFETY: no recorder is there.
            unsafe { scene.records.reclaim() };
            scene.session.disable(event, 1).unwrap();
            scene.session.shut_down().unwrap();
            assert_eq!(scene.visible(), None, "{}", scene.name);
        });
    }
}

#[test]
fn nothing_is_on_after_two_starts_that_fail() {
    for processor in processors() {
        for register in [0x14CE, 0x1D9, 0xC000_010F] {
            for failing in 1..60 {
                let mut ended = false;
                with_scene(&processor, |scene| {
                    let event = scene.open(2, BranchFilter::ALL);
                    let other = scene.open(3, BranchFilter::ALL);
                    scene.mock.inject(Fault::From(failing));
                    ended = scene.session.enable(event, 0).is_ok();
                    scene.mock.inject(Fault::Register(register));
                    let _ = scene.session.enable(other, 0);
                    let _ = scene.session.disable(other, 0);
                    scene.mock.inject(Fault::None);
                    let _ = scene.session.reprogram(|_| ());
                    let window = scene.session.lend(1, |_| ()).unwrap();
                    drop(window);
                    assert_eq!(scene.visible(), None, "{}, {register:#X}, {failing}", scene.name);
                });
                if ended {
                    break;
                }
            }
        }
    }
}

/// Calls `act` with an event that does not run, beside one whose branches an interrupt could not record any further, of
/// which a register faults for good.
fn beside_lost_branches(mut act: impl FnMut(&mut Scene<'_>, EventId, &str)) {
    for processor in processors() {
        for failing in 1..60 {
            for register in [0x14CE, 0x1D9, 0xC000_010F] {
                with_scene(&processor, |scene| {
                    let event = scene.open(2, BranchFilter::ALL);
                    let plain = raw(3).every(PERIOD);
                    let plain = scene.session.open(scene.counters, &[plain]).unwrap();
                    scene.session.enable(event, 0).unwrap();
                    scene.mock.inject(Fault::From(failing));
                    scene.overflow(2);
                    scene.mock.inject(Fault::Register(register));
                    let counts = scene.session.counter_of(event).is_some();
                    if counts && !is_recording(scene.mock) {
                        let at = format!("{}, {failing}, {register:#X}", scene.name);
                        act(scene, plain, &at);
                    }
                });
            }
        }
    }
}

#[test]
fn a_start_that_failed_because_of_others_branches_left_no_counter_running() {
    let mut tried = 0;
    beside_lost_branches(|scene, plain, at| {
        let started = scene.session.enable_if_free(plain, 1);
        tried += u32::from(started.is_err());
        let on = scene.session.counter_of(plain).is_some();
        assert_eq!(on, started.is_ok(), "{at}: {started:?}");
        assert_eq!(scene.session.is_enabled(plain), on, "{at}: {started:?}");
    });
    assert!(tried > 0);
}

#[test]
fn a_start_that_failed_is_not_started() {
    let mut tried = 0;
    beside_lost_branches(|scene, plain, at| {
        let started = scene.session.enable(plain, 1);
        tried += u32::from(started.is_err());
        assert_eq!(scene.session.is_enabled(plain), started.is_ok(), "{at}: {started:?}");
    });
    assert!(tried > 0);
}
