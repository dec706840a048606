//! One interrupt, with the facilities' records.

use pmu_core::{Claim, Events};
use pmu_virt::mock::Deviations;

use super::hardware::{FROZEN, OWN_BRANCH, Registers};
use super::scene::*;
use pmu_tests::opened::Mock;

#[test]
fn a_sample_has_what_was_recorded_before_its_interrupt() {
    each(platforms(), |processor, freezes| {
        on(processor, freezes, |scene, mock| {
            for sample in 1..=3 {
                scene.happen(mock, SAMPLED, PERIOD);
                let (hardware, context) = (&scene.hardware, &scene.context);
                let last = *scene.told.borrow().last().unwrap();
                let newest = last.unwrap_or_else(|| panic!("{context}: no records"));
                assert_eq!(scene.told.borrow().len(), sample, "{context}");
                if hardware.freezes {
                    assert_eq!(newest, hardware.at_interrupt.get(), "{context}");
                } else {
                    // One access stops the recording: what came with it is the interrupt's.
                    let most = (hardware.at_interrupt.get() + 1) | OWN_BRANCH;
                    assert!(newest <= most, "{context}: {newest:#x}");
                }
                scene.assert_complete();
            }
        });
    });
}

/// An interrupt of another owner's counter freezes the records, too.
#[test]
fn frozen_records_alone_are_released_and_claim_no_interrupt() {
    each(platforms(), |processor, freezes| {
        on(processor, freezes, |scene, mock| {
            if !scene.hardware.freezes {
                return;
            }
            // A predecessor's overflow, whose interrupt may be expected.
            scene.expect_foreign();
            mock.interrupt_from_elsewhere();
            scene.happen(mock, SAMPLED, 5);
            scene.hardware.raised();
            assert!(scene.hardware.frozen.get());
            scene.expect_foreign();
            assert!(mock.interrupt_from_elsewhere());
            let serviced = scene.last.get().unwrap().unwrap();
            let context = &scene.context;
            assert_eq!((serviced.claim, serviced.overflows), (Claim::NotOurs, 0), "{context}");
            assert_eq!(serviced.others & FROZEN, 0, "{context}");
            scene.assert_complete();
        });
    });
}

/// The counter that fills the buffer is neither reported nor loaded, and its interrupt is the facility's.
#[test]
fn a_facility_reports_the_overflows_of_its_own_counter() {
    each(platforms(), |processor, freezes| {
        on(processor, freezes, |scene, mock| {
            if scene.counters[1].is_none() {
                return;
            }
            for records in 1..=3 {
                scene.happen(mock, PRECISE, PERIOD);
                assert_eq!(scene.hardware.drained.get(), records, "{}", scene.context);
                assert_eq!(scene.overflows[1].get(), records, "{}", scene.context);
            }
            assert!(scene.told.borrow().is_empty(), "{}", scene.context);
            scene.overflow_all(mock);
            scene.assert_complete();
        });
    });
}

/// A counter is stopped between its overflow and the interrupt, which finds the buffer full, too. The interrupt is the
/// buffer's; another one may still come for the counter.
#[test]
fn a_facilitys_interrupt_is_not_that_of_a_stopped_counter() {
    each([Deviations::NONE], |processor, freezes| {
        if !processor.freezing || !processor.freezes_by_status() {
            return;
        }
        let scene = Scene::new(processor, freezes);
        let mock = processor.mock();
        let registers = Registers(&mock, &scene.hardware, |_: &Mock<'_>| ());
        let mut counters = scene.take(&registers);
        let event = scene.sampled_event();
        // No handler is set: interrupts are off.
        scene.happen(&mock, SAMPLED, PERIOD);
        counters.disable(event, 0).unwrap();
        scene.hardware.full.set(true);
        let mut claims = vec![];
        for _ in 0..2 {
            scene.interrupt(&mock);
            claims.push(scene.last.get().unwrap().unwrap().claim);
        }
        assert_eq!(claims, [Claim::OursAndMore, Claim::Ours], "{}", scene.context);
    });
}

#[test]
fn a_sampled_op_is_served_beside_the_counters() {
    each(platforms(), |processor, freezes| {
        on(processor, freezes, |scene, mock| {
            scene.hardware.sample_op(mock);
            let serviced = scene.last.get().unwrap().unwrap();
            assert_eq!((serviced.claim, serviced.overflows), (Claim::Ours, 0), "{}", scene.context);
            scene.overflow_all(mock);
            scene.assert_complete();
        });
    });
}

/// Without a facility its bits stay another owner's.
#[test]
fn bits_of_a_facility_that_is_not_served_are_others() {
    each([Deviations::NONE], |processor, freezes| {
        on(processor, freezes, |scene, mock| {
            if !scene.hardware.freezes {
                return;
            }
            scene.hardware.raised();
            let registers = Registers(mock, &scene.hardware, |_: &Mock<'_>| ());
            let source = Events::new(&processor.unit, &scene.table);
            let serviced = pmu_core::service(&source, &registers, &scene.memory, |_| ()).unwrap();
            assert_eq!(serviced.others, FROZEN, "{}", scene.context);
            assert!(scene.hardware.frozen.get(), "{}", scene.context);
        });
    });
}
