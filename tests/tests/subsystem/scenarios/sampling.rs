//! Samples: by frequency, throttled, and a watchdog beside them.

use pmu_virt::mock::Deviations;

use super::world::{World, machines};
use crate::kernel::event::{MAX_PER_TICK, TICK};
use crate::kernel::perf::Target::{Processor, Task};

/// The rate of events changes, and the period follows it, at each sample and at each tick. When the events become rare,
/// the long period under way gives way to a new one.
#[test]
fn an_event_with_a_frequency_samples_that_often() {
    const HERTZ: u64 = 1_000;
    for machine in machines(Deviations::NONE) {
        let mut w = World::new(&machine);
        let own = w.open(Processor(0), &["cpu/event=0xd0,umask=0x01,freq=1000/D"]);
        let task = w.perf.spawn();
        w.open(Task(task), &["cpu/event=0xd1,umask=0x01,freq=4000/uD"]);
        for (tick, rate) in
            [20_000_u64, 2_000_000, 15_000].iter().flat_map(|rate| [*rate; 60]).enumerate()
        {
            w.switch((tick + 1) % 2, None);
            w.switch(tick % 2, Some(task));
            for _ in 0..8 {
                for (cpu, kind) in [(0, 2), (0, 3), (1, 3)] {
                    w.happen(cpu, kind, rate / 8);
                }
                w.pass(TICK / 8);
            }
            w.check(&format!("tick {tick}"));
            w.tick();
        }
        // After the rate was the same for 60 ticks, as many samples as asked for come in as many events.
        let per_second = 15_000 * 1_000_000_000 / TICK;
        let period = w.naive[own].every;
        let wanted = (per_second / HERTZ).max(4096);
        assert!(period.abs_diff(wanted) <= wanted / 8, "{machine:?}: {period}, {wanted}");
        w.end();
    }
}

/// An event that samples too often is silent up to the next tick, and its total misses nothing.
#[test]
fn an_event_that_samples_too_often_waits_for_the_tick() {
    for machine in machines(Deviations::NONE) {
        let mut w = World::new(&machine);
        let fast = w.open(Processor(0), &["cpu/event=0xd0,umask=0x01,period=4096/D"]);
        let slow = w.open(Processor(0), &["cpu/event=0xd0,umask=0x01,period=40960/D"]);
        let limit = u64::from(MAX_PER_TICK);
        for tick in 0..4 {
            for (step, periods) in [limit - 1, 1, 3, 2 * limit].into_iter().enumerate() {
                w.happen(0, 2, 4096 * periods);
                w.pass(100);
                w.check(&format!("tick {tick}, step {step}"));
            }
            assert!(w.naive[fast].throttled && !w.naive[slow].throttled, "{machine:?}");
            assert_eq!(w.naive[fast].samples.len() as u64, (tick + 1) * limit, "{machine:?}");
            w.tick();
            w.check(&format!("after tick {tick}"));
        }
        w.end();
    }
}

/// The watchdog reports only the processor whose tick does not come, while events beside it come and go.
#[test]
fn a_watchdog_watches_beside_all_events() {
    for machine in machines(Deviations::NONE) {
        let mut w = World::new(&machine);
        let task = w.perf.spawn();
        w.open(Task(task), &["cpu/event=0xd0,umask=0x01,period=4096/"]);
        for _ in 0..12 {
            w.open(Processor(0), &["cpu/event=0xd1,umask=0x01/"]);
        }
        let stuck =
            |w: &World| [0, 1].map(|cpu| w.perf.cpus[cpu].as_ref().unwrap().per.stuck.get());
        for round in 0..8 {
            w.switch(0, (round % 2 == 0).then_some(task));
            for cpu in 0..2 {
                // The watchdog's period is 10,000 cycles.
                w.cycles(cpu, 10_000);
                w.happen(cpu, 2, 5_000);
                w.happen(cpu, 3, 700);
            }
            w.pass(TICK);
            w.check(&format!("round {round}"));
            w.tick();
            assert_eq!(stuck(&w), [0, 0], "{machine:?}: round {round}");
        }
        // Processor 1 takes no tick any more.
        for late in 1..4 {
            w.perf.tick(0);
            w.cycles(0, 10_000);
            w.cycles(1, 10_000);
            // The first period had the last tick.
            assert_eq!(stuck(&w), [0, late - 1], "{machine:?}");
        }
        w.end();
    }
}
