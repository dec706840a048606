//! Counts: of processors and of threads, of groups, of children, and of events that take turns.

use pmu::core::error::CounterError;
use pmu::core::{CounterSet, EventStatus};
use pmu_virt::mock::Deviations;

use super::world::{World, machines};
use crate::kernel::event::TICK;
use crate::kernel::perf::Target::{Processor, Task};

#[test]
fn events_of_processors_and_of_threads_count_what_happens_to_them() {
    for machine in machines(Deviations::NONE) {
        let mut w = World::new(&machine);
        w.open(Processor(0), &["cpu/event=0xd0,umask=0x01/D"]);
        w.open(Processor(1), &["cpu/event=0xd0,umask=0x01/kD"]);
        let [first, second] = [w.perf.spawn(), w.perf.spawn()];
        let of_first = w.open(Task(first), &["cpu/event=0xd0,umask=0x01/uD"]);
        w.open(Task(first), &["cpu/event=0xd1,umask=0x01,period=5000/D"]);
        let of_second = w.open(Task(second), &["cpu/event=0xd0,umask=0x01,period=4096/D"]);
        let unlike = machine[0].unit.core_type() != machine[1].unit.core_type();
        let turns = [[Some(first), None], [None, Some(first)], [Some(second), Some(first)]];
        let turns = turns.into_iter().chain([[Some(first), Some(second)], [None, None]]);
        for (turn, tasks) in turns.cycle().take(15).enumerate() {
            (0..2).for_each(|cpu| w.switch(cpu, None));
            for (cpu, task) in tasks.into_iter().enumerate() {
                w.switch(cpu, task);
                for (of, number) in [(first, of_first), (second, of_second)] {
                    if task == Some(of) {
                        // The event of one type of core stands still on the other.
                        assert_eq!(w.perf.is_active(number), cpu == 0 || !unlike, "{machine:?}");
                    }
                }
            }
            w.check(&format!("turn {turn}"));
            for cpu in 0..2 {
                w.happen(cpu, 2, 3_000 + 7 * turn as u64);
                w.happen_in_kernel(cpu, 2, 2_000);
                w.happen(cpu, 3, 4_999);
            }
            w.pass(1_000);
            w.check(&format!("turn {turn}, later"));
        }
        w.end();
    }
}

/// The counts of a group come with each sample of its leader, in the handler.
#[test]
fn a_group_is_read_with_each_sample_of_its_leader() {
    const GROUP: [&str; 2] =
        ["cpu/event=0xd0,umask=0x01,period=4096/SD", "cpu/event=0xd1,umask=0x01/"];
    for machine in machines(Deviations::NONE) {
        for of_task in [false, true] {
            let mut w = World::new(&machine);
            let task = w.perf.spawn();
            let leader = w.open(if of_task { Task(task) } else { Processor(0) }, &GROUP);
            if of_task {
                w.switch(0, Some(task));
            }
            assert!(w.perf.is_active(leader) && w.perf.is_active(leader + 1), "{machine:?}");
            for step in 0..20 {
                w.happen(0, 3, 100 + step);
                w.happen(0, 2, 700 * step);
                w.pass(50);
                w.check(&format!("step {step}"));
                if of_task && step % 3 == 0 {
                    let cpu = w.perf.processor_of(task).unwrap();
                    w.switch(cpu, None);
                    w.switch(0, Some(task));
                }
            }
            let samples = w.naive[leader].samples.len();
            assert!(samples >= 20 && w.naive[leader].samples[0].counts.len() == 2, "{samples}");
            w.end();
        }
    }
}

/// A task forks, its children run beside it on the other processor, and end before it and after it was switched.
#[test]
fn what_children_count_is_in_their_parents_count() {
    for machine in machines(Deviations::NONE) {
        let mut w = World::new(&machine);
        let parent = w.perf.spawn();
        w.open(Task(parent), &["cpu/event=0xd0,umask=0x01,inherit/D"]);
        w.open(Task(parent), &["cpu/event=0xd1,umask=0x01,period=4096,inherit/uD"]);
        let alone = w.open(Task(parent), &["cpu/event=0xd2,umask=0x01/D"]);
        w.switch(0, Some(parent));
        w.happen(0, 2, 100);
        let numbers = alone + 1..alone + 3;
        let child = w.fork(parent);
        w.switch(1, Some(child));
        for step in 0..5 {
            for cpu in 0..2 {
                w.happen(cpu, 2, 1_000 + step);
                w.happen(cpu, 3, 3_000);
                w.happen(cpu, 4, 10);
            }
            w.pass(300);
            w.check(&format!("step {step}"));
        }
        // A grandchild, while its parent is on no processor.
        w.switch(1, None);
        let grandchild = w.fork(child);
        let of_grandchild = numbers.end..numbers.end + 2;
        w.switch(0, None);
        w.switch(0, Some(grandchild));
        w.happen(0, 2, 77);
        w.happen(0, 3, 8_000);
        w.pass(10);
        w.check("the grandchild");
        w.exit(grandchild, of_grandchild);
        w.check("the grandchild ended");
        w.switch(0, Some(parent));
        w.exit(child, numbers);
        w.check("the child ended");
        w.happen(0, 2, 5);
        w.pass(10);
        w.end();
    }
}

/// Pinned events keep their counters, and the others share what is left: fairly, and all of it.
#[test]
fn flexible_events_take_turns_beside_pinned_ones() {
    const FLEXIBLE: usize = 10;
    for machine in machines(Deviations::NONE) {
        let mut w = World::new(&machine);
        let pinned = w.open(Processor(0), &["cpu/event=0xd0,umask=0x01,period=6000/D"]);
        let first = w.open(Processor(0), &["cpu/event=0xd1,umask=0x01/"]);
        for _ in 1..FLEXIBLE {
            w.open(Processor(0), &["cpu/event=0xd1,umask=0x01,period=9000/u"]);
        }
        let general = (machine[0].unit.counters() & CounterSet::GENERAL).iter().count();
        let cpu = w.perf.cpu(0);
        let watchdog = cpu.session.counter_of(cpu.watched).unwrap();
        let free = (general - 1 - usize::from(!watchdog.is_fixed())).min(FLEXIBLE);
        let turns = 20 * FLEXIBLE as u64;
        for turn in 0..turns {
            let active = (first..first + FLEXIBLE).filter(|number| w.perf.is_active(*number));
            assert_eq!(active.count(), free, "{machine:?}: turn {turn}");
            assert!(w.perf.is_active(pinned), "{machine:?}: turn {turn}");
            w.happen(0, 2, 500);
            w.happen(0, 3, 2_000 + turn);
            w.pass(TICK);
            w.check(&format!("turn {turn}"));
            w.tick();
        }
        for number in first..first + FLEXIBLE {
            let running = w.naive[number].count.running;
            let fair = turns * TICK * free as u64 / FLEXIBLE as u64;
            let difference = running.abs_diff(fair);
            assert!(difference <= 4 * TICK, "{machine:?}: {number}: {running}, {fair}");
        }
        w.end();
    }
}

/// A pinned event without a counter is in an error state, and counts again where there is one.
#[test]
fn a_pinned_event_without_a_counter_is_in_an_error_state() {
    for machine in machines(Deviations::NONE) {
        let mut w = World::new(&machine);
        let task = w.perf.spawn();
        let of_task = w.open(Task(task), &["cpu/event=0xd2,umask=0x01/uD"]);
        let mut own = vec![];
        let refused = loop {
            match w.perf.open(Processor(0), &["cpu/event=0xd0,umask=0x01/D"]) {
                Ok(numbers) => own.extend(numbers),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.reason, CounterError::NoFreeCounter, "{machine:?}");
        w.perf.switch(0, Some(task));
        assert_eq!(w.perf.status(of_task), Some(EventStatus::Error), "{machine:?}");
        assert_eq!(w.perf.read(of_task).running, 0);
        w.perf.switch(0, None);
        w.perf.close(own[0]);
        w.perf.switch(0, Some(task));
        assert!(w.perf.is_active(of_task), "{machine:?}");
    }
}
