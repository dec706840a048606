//! Processors that sleep, go and come back; what a predecessor left; and giving everything back.

use pmu_virt::mock::{Deviation, Deviations};

use super::world::{World, machines};
use crate::kernel::perf::Target::{Processor, Task};

/// Opens an event of processor 0, a sampled and a counted one of a task, and lets the task run there.
fn busy(w: &mut World) -> usize {
    let task = w.perf.spawn();
    w.open(Processor(0), &["cpu/event=0xd0,umask=0x01,period=7000/D"]);
    w.open(Task(task), &["cpu/event=0xd1,umask=0x01,period=4096/uD"]);
    w.open(Task(task), &["cpu/event=0xd0,umask=0x01/"]);
    w.switch(0, Some(task));
    task
}

fn happen(w: &mut World, cpu: usize, step: &str) {
    for (kind, count) in [(2, 9_999), (3, 4_095), (3, 2), (2, 1)] {
        w.happen(cpu, kind, count);
    }
    w.pass(1_000);
    w.check(step);
}

#[test]
fn suspended_processors_go_on_where_they_were() {
    for machine in machines(Deviations::NONE) {
        let mut w = World::new(&machine);
        busy(&mut w);
        for round in 0..3 {
            happen(&mut w, 0, &format!("round {round}"));
            (0..2).for_each(|cpu| w.perf.suspend(cpu));
            w.check(&format!("after suspend {round}"));
        }
        happen(&mut w, 0, "the end");
        w.cycles(0, 9_999);
        w.end();
    }
}

/// A task goes on elsewhere while its processor is away. The processor's own events end with it.
#[test]
fn a_processor_goes_offline_and_comes_back() {
    for machine in machines(Deviations::NONE) {
        let mut w = World::new(&machine);
        let task = busy(&mut w);
        for round in 0..3 {
            let [here, other] = [round % 2, (round + 1) % 2];
            happen(&mut w, here, &format!("round {round}"));
            w.perf.offline(here);
            w.switch(other, Some(task));
            w.mocks[here].lose_registers();
            happen(&mut w, other, &format!("processor {here} is away"));
            w.perf.online(here, &machine[here]);
            happen(&mut w, other, &format!("processor {here} is back"));
        }
        w.end();
    }
}

/// Firmware or another kernel left counters running, overflowed, frozen or precise.
#[test]
fn what_a_predecessor_left_counts_nothing_and_is_claimed_once_at_most() {
    let left = [
        Deviation::LeftRunning,
        Deviation::LeftOverflowed,
        Deviation::LeftFrozen,
        Deviation::LeftPrecise,
    ];
    for deviation in left {
        for machine in machines(Deviations::of(&[deviation])) {
            let mut w = World::new(&machine);
            busy(&mut w);
            happen(&mut w, 0, &format!("{deviation:?}"));
            w.end();
        }
    }
}

/// Everything is given back, and can be taken again by the next kernel.
#[test]
fn all_counters_are_given_back_and_taken_again() {
    for machine in machines(Deviations::NONE) {
        for _ in 0..2 {
            let mut w = World::new(&machine);
            busy(&mut w);
            happen(&mut w, 0, "the first kernel");
            for (cpu, processor) in machine.iter().enumerate() {
                w.perf.offline(cpu);
                w.perf.online(cpu, processor);
            }
            happen(&mut w, 1, "the second");
            w.end();
        }
    }
}
