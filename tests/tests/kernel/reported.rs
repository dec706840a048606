//! Samples that a task reports: of overflows whose interrupts have not come.

use core::sync::atomic::AtomicU32;

use pmu::PmuSample;

use crate::events::{CYCLES, PERIOD, on_each};
use crate::world::{Happens, World, sampling};

/// Overflows of the watchdog and of a profile that are pending as well are not the kernel's.
#[test]
fn a_window_a_suspend_and_a_new_period_report_the_overflows_of_the_kernels_own_events_alone() {
    static BUCKETS: [AtomicU32; 16] = [const { AtomicU32::new(0) }; 16];
    on_each(|machine, pmu| {
        pmu.watch(PERIOD, 10).unwrap();
        let profiled = pmu.profile(CYCLES.every(PERIOD), 0..64, &BUCKETS, || {
            let sampled = pmu.open(&CYCLES.every(PERIOD)).unwrap();
            pmu.enable(sampled).unwrap();
            for way in 0..4 {
                // With interrupts off, each counter of cycles has an overflow that waits.
                machine.pass(0, Happens::Cycles, 10 * PERIOD);
                let mut reported = vec![];
                let report = |sample: &PmuSample<'_, World>| reported.push(sample.event);
                sampling(report, || match way {
                    0 => pmu.lend(|_| ()).unwrap(),
                    1 => {
                        pmu.processor_suspended().unwrap();
                        pmu.processor_resumed().map(drop).unwrap();
                    }
                    2 => pmu.set_period(sampled, PERIOD).unwrap(),
                    _ => pmu.switch(&mut [], &mut []).unwrap(),
                });
                let of_kernel = if way == 3 { vec![] } else { vec![sampled.id()] };
                assert_eq!(reported, of_kernel, "{way}");
            }
            pmu.close(sampled).unwrap();
        });
        let _ = profiled.unwrap();
        pmu.unwatch().unwrap();
        machine.overflows.take();
        machine.interrupted.take();
    });
}

/// The overflow waits while the period gets much shorter, so that the tick begins a new one.
#[test]
fn a_tick_reports_the_overflow_of_a_period_that_it_ends() {
    const LONG: u64 = 1 << 20;
    on_each(|machine, pmu| {
        let event = pmu.open(&CYCLES.at_frequency(1_000_000)).unwrap();
        pmu.enable(event).unwrap();
        pmu.set_period(event, LONG).unwrap();
        // With interrupts off.
        machine.pass(0, Happens::Cycles, LONG);
        let mut reported = vec![];
        for _ in 0..40 {
            machine.pass(0, Happens::Cycles, 1);
            let report = |sample: &PmuSample<'_, World>| {
                reported.push((sample.event, sample.period, sample.frame().is_some()));
            };
            sampling(report, || pmu.tick()).unwrap();
        }
        assert_eq!(reported, [(event.id(), LONG, false)]);
        pmu.close(event).unwrap();
        machine.overflows.take();
        machine.interrupted.take();
    });
}

/// As `PERF_EVENT_IOC_REFRESH`: the sample that `set_period` reports is the last one that the reader wants.
#[test]
fn what_stops_reporting_at_the_sample_of_a_new_period_reports_no_more() {
    on_each(|machine, pmu| {
        let event = pmu.start(&CYCLES.every(PERIOD)).unwrap();
        // With interrupts off.
        machine.pass(0, Happens::Cycles, PERIOD);
        let mut samples = 0;
        let last = |sample: &PmuSample<'_, World>| {
            samples += 1;
            pmu.stop_reporting(sample.event).unwrap();
        };
        sampling(last, || pmu.set_period(event, PERIOD)).unwrap();
        assert_eq!(samples, 1);
        machine.overflows.take();
        machine.happen(0, Happens::Cycles, 3 * PERIOD);
        assert_eq!(machine.overflows.take(), []);
        pmu.close(event).unwrap();
        machine.interrupted.take();
    });
}
