//! Events of threads.

use pmu::frame::PlainFrame;
use pmu::{Event, GenericEvent, Interrupted, Kernel, PmuError, ThreadEvent};
use pmu_virt::configuration::{Configuration, IntelConfiguration};

use super::{PMU, printed, println, up};
use crate::world::{Happens, World as Bare, machine};

type Events = [ThreadEvent; 4];

// ANCHOR: group
/// Counts a thread's cycles and instructions as a group: both, or neither, are on counters.
fn count_together(this_thread: &mut Events) -> Result<(), PmuError> {
    let events = [GenericEvent::Cycles, GenericEvent::Instructions].map(Event::generic);
    let [cycles, instructions] = PMU.thread_group(&events)?;
    Bare::pinned(|| {
        [this_thread[0], this_thread[1]] = [cycles, instructions];
        PMU.switch(&mut [], this_thread)
    })
}

/// The scheduler's switch, with preemption off. Idle processors have no events.
fn switch(from: &mut Events, to: &mut Events) -> Result<(), PmuError> {
    PMU.switch(from, to)
}

/// Gives the counters to other events, among those that are `rotating`.
fn timer_tick() -> Result<(), PmuError> {
    PMU.tick()
}

fn print(thread: &Events) -> Result<(), PmuError> {
    for event in &thread[..2] {
        let count = Bare::pinned(|| PMU.read_thread(event))?;
        println!("{} counted", count.value);
    }
    Ok(())
}
// ANCHOR_END: group

fn interrupt(frame: &PlainFrame) -> Interrupted {
    PMU.interrupt(frame)
}

#[test]
fn a_threads_events_count_the_thread_alone_wherever_it_runs() {
    let machine = up(Configuration::Intel(IntelConfiguration::new(4, 4, 0)), interrupt);
    let (mut thread, mut other) = ([ThreadEvent::Unused; 4], [ThreadEvent::Unused; 4]);
    let run = |processor| {
        self::machine().happen(processor, Happens::Cycles, 100);
        self::machine().happen(processor, Happens::Instructions, 40);
    };
    count_together(&mut thread).unwrap();
    run(0);
    timer_tick().unwrap();
    switch(&mut thread, &mut other).unwrap();
    run(0);
    machine.on(2, || switch(&mut other, &mut thread)).unwrap();
    run(2);
    machine.on(2, || print(&thread)).unwrap();
    assert_eq!(printed(), ["200 counted", "80 counted"]);
    machine.on(2, || switch(&mut thread, &mut other)).unwrap();
    machine.down();
}
