//! Overflows within the calls that start, switch and lend events with branches.

use super::support::*;
use pmu_core::Sample;
use pmu_core::branches::{BranchFilter, Branches};
use pmu_tests::opened::{happened, raw};

use super::scene::*;

/// Calls `act` in a new scene with the number of each access before which the overflow of event 3 may come, until `act`
/// returns that there are no more accesses.
fn at_each_access(processor: &Processor, mut act: impl FnMut(&mut Scene<'_>, u32) -> bool) {
    let mut is_over = |access| {
        let mut over = false;
        with_scene(processor, |scene| over = act(scene, access));
        over
    };
    assert!((1..3_000).any(&mut is_over), "{}: too many accesses", processor.name);
}

/// Makes a call, before the access of which with this number event 3 overflows. Returns whether the call had fewer
/// accesses.
fn interrupted(scene: &mut Scene<'_>, access: u32, call: impl FnOnce(&mut Scene<'_>)) -> bool {
    scene.happens.set((access, 3));
    call(scene);
    scene.happens.replace((0, 3)).0 != 0
}

/// Checks that each sample has records.
fn check_records(scene: &Scene<'_>, access: u32) {
    for (tag, found) in scene.samples.take() {
        assert!(found.is_some(), "{}, {access}: sample of {tag}", scene.name);
    }
}

#[test]
fn an_overflow_within_a_turn_has_its_branches() {
    for processor in processors() {
        at_each_access(&processor, |scene, access| {
            for (kind, filter) in [(2, BranchFilter::ALL), (3, BranchFilter::KERNEL)] {
                let event = raw(kind).every(PERIOD).rotating().tagged(kind as u64);
                let event = event.with_branches(filter);
                let event = scene.session.open(scene.counters, &[event]).unwrap();
                scene.session.enable(event, 0).unwrap();
            }
            scene.session.rotate(1).unwrap();
            scene.mock.advance(&mut happened(3, PERIOD - 1));
            scene.session.rotate(2).unwrap();
            scene.mock.branch(&kernel(1));
            assert_eq!(scene.samples.take(), []);
            let over = interrupted(scene, access, |scene| scene.session.rotate(3).unwrap());
            check_records(scene, access);
            over
        });
    }
}

#[test]
fn an_overflow_within_a_start_on_a_free_counter_has_its_branches() {
    for processor in processors() {
        at_each_access(&processor, |scene, access| {
            let event = raw(3).every(PERIOD).tagged(3).with_branches(BranchFilter::KERNEL);
            let event = scene.session.open(scene.counters, &[event]).unwrap();
            let over = interrupted(scene, access, |scene| {
                scene.session.enable_if_free(event, 3).unwrap();
            });
            check_records(scene, access);
            // Started by one access, the last: what comes after it has its branches, too.
            scene.mock.branch(&kernel(1));
            let found = scene.overflow(3);
            assert_eq!(found, [(3, Some(vec![kernel(1).from]))], "{}, {access}", scene.name);
            over
        });
    }
}

#[test]
fn an_overflow_before_any_access_of_a_life_has_its_branches() {
    for processor in processors() {
        at_each_access(&processor, |scene, access| {
            let all = BranchFilter::ALL;
            let members = [
                raw(2).every(PERIOD).tagged(2).with_branches(all),
                raw(3).every(PERIOD).tagged(3).with_branches(all),
                raw(4).every(PERIOD).tagged(4),
            ];
            let group = scene.session.open(scene.counters, &members).unwrap();
            let over = interrupted(scene, access, |scene| {
                scene.session.enable(group, 0).unwrap();
                scene.mock.branch(&user(1));
                scene.session.switch_out(&mut [], 1, |_| ()).unwrap();
                scene.mock.branch(&user(2));
                scene.session.switch_in(scene.counters, &mut [], 1).unwrap();
                scene.mock.branch(&user(3));
                let samples = scene.samples;
                let report = |sample: Sample<'_, Branches<'_>>| {
                    let records = sample.branch_records();
                    let found = records.map(|records| records.iter().map(|of| of.from).collect());
                    samples.borrow_mut().push((sample.tag, found));
                };
                scene.session.lend(2, report).unwrap().end(3).unwrap();
                scene.mock.branch(&user(4));
                scene.session.suspend(4, report).unwrap();
                scene.session.resume(5, |_| ()).unwrap();
                scene.mock.branch(&user(5));
                scene.session.reprogram(|_| ()).unwrap();
                scene.mock.branch(&user(6));
                scene.session.rotate(6).unwrap();
                scene.session.disable(group, 7).unwrap();
                scene.session.enable(group, 8).unwrap();
                scene.mock.branch(&user(7));
                scene.session.shut_down().unwrap();
            });
            assert_eq!(scene.visible(), None, "{}, {access}", scene.name);
            check_records(scene, access);
            over
        });
    }
}

#[test]
fn a_sample_after_a_switch_or_window_that_was_interrupted_has_what_came_after_it() {
    type Operation = fn(&mut Scene<'_>);
    let operations: [(&str, Operation); 5] = [
        ("out", |scene| scene.session.switch_out(&mut [], 1, |_| ()).unwrap()),
        ("in", |scene| scene.session.switch_in(scene.counters, &mut [], 1).unwrap()),
        ("window", |scene| {
            let mut window = scene.session.lend(1, |_| ()).unwrap();
            window.lent().set_programmed(true);
            window.end(2).unwrap();
        }),
        ("suspend", |scene| {
            scene.session.suspend(1, |_| ()).unwrap();
            scene.session.resume(2, |_| ()).unwrap();
        }),
        ("reprogram", |scene| {
            scene.session.reprogram(|_| ()).unwrap();
        }),
    ];
    for processor in processors() {
        for (name, operation) in operations {
            at_each_access(&processor, |scene, access| {
                let event = scene.open(2, BranchFilter::ALL);
                scene.session.enable(event, 0).unwrap();
                let other = scene.open(3, BranchFilter::ALL);
                scene.session.enable(other, 0).unwrap();
                (1..=3).for_each(|number| scene.mock.branch(&user(number)));
                let over = interrupted(scene, access, operation);
                let at = format!("{}, {name}, {access}", scene.name);
                let within = scene.samples.take();
                assert!(within.len() <= 1, "{at}: {within:X?}");
                for (tag, found) in within {
                    assert!(found.is_some() || name != "out" && name != "in", "{at}: {tag}");
                }
                scene.mock.branch(&user(9));
                let found = scene.overflow(2);
                assert_eq!(found, [(2, Some(vec![user(9).from]))], "{at}");
                scene.mock.branch(&user(10));
                let found = scene.overflow(3);
                let [(3, Some(branches))] = &found[..] else { panic!("{at}: {found:?}") };
                assert_eq!(branches[..], [user(10).from, user(9).from], "{at}");
                over
            });
        }
    }
}
