//! Profiles by the exact addresses of AMD's instruction-based sampling.

use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Mutex;

use pmu::PmuError;
use pmu::amd::ibs::IbsSampling;
use pmu::core::frame::InterruptFrame;
use pmu::core::profile::KProfileSource;
use pmu::core::{Event, GenericEvent};
use pmu_tests::opened::processors;
use pmu_virt::configuration::Configuration;
use pmu_virt::ibs::FedOp;
use pmu_virt::mock::Deviations;

use crate::world::{Happens, Machine, PROCESSORS, TestPmu};

const BASE: u64 = 0x40_0000;
/// Address at which every interrupt comes, behind every op.
const INTERRUPTED: u64 = 0x50_0000;

/// Every 4,096th op.
const OPS: Event = IbsSampling::ops().event().every(4_096);
/// Number of ops that a processor executes in a test.
const EXECUTED: u64 = 30_000;

/// Runs a test on a machine of each of AMD's configurations, whose processors are up.
fn on_each(test: impl Fn(&'static Machine, &'static TestPmu)) {
    for processor in processors(Deviations::NONE) {
        if !matches!(processor.configuration, Configuration::Amd(_)) {
            continue;
        }
        let (machine, pmu) = Machine::new(processor.configuration);
        machine.up();
        for index in 0..PROCESSORS {
            machine.pc[index].set(INTERRUPTED);
        }
        test(machine, pmu);
        for index in 0..PROCESSORS {
            let enabled = machine.mocks[index].with_sampling_unit(|unit| unit.is_enabled());
            assert_eq!(enabled, Some(false));
        }
        machine.down();
    }
}

#[test]
fn sampled_ops_interrupt_as_the_kernel_says() {
    on_each(|machine, pmu| {
        for (by_vector, entry) in [(false, 0x400), (true, 0xE1)] {
            machine.on(1, || pmu.processor_down()).unwrap();
            machine.by_vector.set(by_vector);
            let entries = || (0..4).map(|number| machine.mocks[1].extended_entry(number));
            let unmasked = || entries().filter(|entry| entry & 0x1_0000 == 0).collect::<Vec<_>>();
            (0..4).for_each(|number| machine.mocks[1].set_extended_entry(number, 0x1_0000));
            machine.on(1, || pmu.processor_up(&machine.snapshot())).unwrap();
            let event = machine.on(1, || pmu.start(&OPS)).unwrap();
            assert_eq!(unmasked(), [entry]);
            machine.on(1, || pmu.close(event)).unwrap();
        }
    });
}

/// Executes ops on a processor, each at an address of its own. Returns those that were sampled.
fn execute(machine: &Machine, processor: usize, ops: u64) -> Vec<u64> {
    machine.on(processor, || {
        let addresses = (0..ops).map(|op| BASE + 4 * op);
        addresses
            .filter(|address| machine.mocks[processor].execute(&FedOp::new(*address)))
            .collect()
    })
}

#[test]
fn a_callback_gets_the_address_of_each_sampled_op_on_each_processor() {
    on_each(|machine, pmu| {
        let (called, sampled) = (Mutex::new(vec![]), RefCell::new(vec![]));
        let callback = |frame: &dyn InterruptFrame, _: KProfileSource| {
            called.lock().unwrap().push((frame.processor().index(), frame.pc()));
        };
        let work = || {
            for processor in [0, 2, 1] {
                let of = execute(machine, processor, EXECUTED).into_iter();
                sampled.borrow_mut().extend(of.map(|address| (processor, address)));
            }
        };
        machine.on(1, || pmu.sample(OPS, &callback, work)).unwrap();
        assert_eq!(*called.lock().unwrap(), *sampled.borrow());
        assert!(sampled.borrow().len() > 12);
        // The end of the profile has stopped the sampling.
        assert_eq!(execute(machine, 0, EXECUTED), []);
        assert_eq!(called.lock().unwrap().len(), sampled.borrow().len());
    });
}

#[test]
fn a_histogram_of_sampled_ops_has_their_addresses_and_a_counter_s_the_interrupted_one() {
    on_each(|machine, pmu| {
        let buffer = || (0..0x8000).map(|_| AtomicU32::new(0)).collect::<Vec<_>>();
        let buffers = [buffer(), buffer()];
        let sampled = Cell::new(vec![]);
        let cycles = Event::generic(GenericEvent::Cycles).every(10_007);
        let both = || {
            let profile = pmu.profile(OPS, BASE..BASE + 0x2_0000, &buffers[0], || {
                sampled.set(execute(machine, 0, EXECUTED));
                machine.happen(0, Happens::Cycles, 10_007);
            });
            let hits: Vec<_> = profile.unwrap().hits().map(|(at, _)| at.start).collect();
            assert_eq!(hits, sampled.take());
            assert!(hits.len() > 4);
        };
        let range = INTERRUPTED..INTERRUPTED + 0x1000;
        let by_cycles = machine.on(0, || pmu.profile(cycles, range, &buffers[1], both)).unwrap();
        let hits: Vec<_> = by_cycles.hits().map(|(at, count)| (at.start, count)).collect();
        assert_eq!(hits, [(INTERRUPTED, 1)]);
        let claims = machine.interrupted.take();
        assert!(claims.iter().all(|(_, interrupted)| interrupted.claim.interrupts() == 1));
        assert_eq!(buffers[0].iter().map(|bucket| bucket.load(Ordering::Relaxed)).max(), Some(1));
    });
}

#[test]
fn a_source_that_a_processor_cannot_start_is_refused_and_the_others_are_stopped() {
    on_each(|machine, pmu| {
        // Another user took the entry of the last processor's units.
        machine.on(2, || pmu.processor_down()).unwrap();
        (0..4).for_each(|entry| machine.mocks[2].set_extended_entry(entry, 0xE1));
        machine.on(2, || pmu.processor_up(&machine.snapshot())).unwrap();
        let callback = |_: &dyn InterruptFrame, _: KProfileSource| ();
        let refused = machine.on(0, || pmu.sample(OPS, &callback, || panic!("not run")));
        assert!(matches!(refused, Err(PmuError::Profile(_))), "{refused:?}");
        assert_eq!(execute(machine, 0, EXECUTED), []);
        let other = KProfileSource::new(0x7001).unwrap();
        let buffer = [AtomicU32::new(0)];
        let profile = machine.on(0, || pmu.profile(other, 0..4, &buffer, || ()));
        assert!(matches!(profile, Err(PmuError::Create(_))), "{profile:?}");
    });
}
