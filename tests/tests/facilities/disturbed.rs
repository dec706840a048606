//! Interrupts and faults at each access of an interrupt that facilities share.

use pmu_tests::opened::{Mock, Processor};
use pmu_virt::mock::Deviations;

use super::scene::*;

/// Cause of the first interrupt.
#[derive(Clone, Copy)]
enum First {
    Sample,
    Everything,
}

/// Services an interrupt; just before the `at`-th access, everything overflows once more. These accesses fault, from
/// the first on so many. Returns whether both went beyond the end.
fn disturbed(
    processor: &Processor,
    freezes: bool,
    first: First,
    at: Option<u32>,
    faults: Option<(u32, u32)>,
) -> bool {
    let mut beyond = false;
    on(processor, freezes, |scene, mock| {
        scene.at.set(at);
        scene.hardware.faults.set(faults);
        match first {
            First::Sample => scene.happen(mock, SAMPLED, PERIOD),
            First::Everything => scene.overflow_all(mock),
        }
        scene.at.set(None);
        scene.hardware.faults.set(None);
        beyond = (at.is_none() || scene.is_beyond())
            && (faults.is_none() || !scene.hardware.faulted.get());
        if scene.errors.get() == 0 {
            assert!(!scene.fell.get());
            scene.overflow_all(mock);
            scene.assert_complete();
        } else {
            assert_after_a_fault(scene, mock);
        }
    });
    beyond
}

fn assert_after_a_fault(scene: &Scene<'_>, mock: &Mock<'_>) {
    let (context, hardware) = (&scene.context, &scene.hardware);
    scene.overflow_all(mock);
    // An op that waited since the fault did not interrupt anew: any interrupt finds it.
    scene.expect_foreign();
    mock.interrupt_from_elsewhere();
    let told = scene.told.borrow().len() as u64;
    let happened = scene.overflows[0].get();
    assert!(told == happened || scene.fell.get() && told < happened, "{context}: {told} samples");
    let ops = hardware.op_samples.borrow().len() as u64 + hardware.op_lost.get();
    assert_eq!(ops, hardware.ops.get(), "{context}: ops");
    let records = hardware.drained.get() + hardware.buffer.get();
    assert_eq!(records, scene.overflows[1].get(), "{context}: records");
}

#[test]
fn an_interrupt_at_any_access_loses_nothing() {
    each(platforms(), |processor, freezes| {
        for first in [First::Sample, First::Everything] {
            (1..).find(|at| disturbed(processor, freezes, first, Some(*at), None));
        }
    });
}

#[test]
fn an_access_that_fails_once_changes_nothing() {
    each([Deviations::NONE], |processor, freezes| {
        (1..).find(|access| {
            on(processor, freezes, |scene, mock| {
                scene.hardware.faults.set(Some((*access, 1)));
                scene.overflow_all(mock);
                assert_eq!(scene.errors.get(), 0, "{}: {access}", scene.context);
                scene.assert_complete();
            });
            disturbed(processor, freezes, First::Everything, None, Some((*access, 1)))
        });
    });
}

#[test]
fn a_fault_at_any_access_loses_no_overflow() {
    each(platforms(), |processor, freezes| {
        for count in [2, 4, u32::MAX] {
            for first in [First::Sample, First::Everything] {
                (1..).find(|access| {
                    disturbed(processor, freezes, first, None, Some((*access, count)))
                });
            }
        }
    });
}

#[test]
fn a_fault_and_an_interrupt_at_any_access_lose_no_overflow() {
    each([Deviations::NONE], |processor, freezes| {
        for at in 1..16 {
            (1..).find(|access| {
                let faults = Some((*access, 2));
                disturbed(processor, freezes, First::Everything, Some(at), faults) || *access > 60
            });
        }
    });
}
