//! Threads of ring 3 that take turns, each with an event of its own, which goes with it.

use pmu::core::thread::ThreadEvent;
use pmu::core::{CounterUnit, Event, GenericEvent};

use crate::demos::failure::Failure;
use crate::demos::programs::count_down;
use crate::embedding::opened_events::Counters;
use crate::line;
use crate::machine::clock;
use crate::machine::ring3::Thread;

/// A thread that counts down, with an event of its own.
struct CountDown {
    thread: Thread,
    turns: u64,
    events: [ThreadEvent; 1],
    /// Instructions of all its turns.
    instructions: u64,
}

impl CountDown {
    fn new(number: usize, from: u32, turns: u64) -> Self {
        let thread = count_down(number, from);
        // See `programs::count_down`.
        let instructions = turns * (1 + 2 * u64::from(from)) + (turns - 1);
        Self { thread, turns, events: [ThreadEvent::Unused], instructions }
    }
}

/// Runs two threads in turns: each thread's count is that of its own execution. `false`: a count is not the known one.
///
/// # Errors
/// Those of the counters.
pub fn run(counters: &mut Counters, unit: &CounterUnit) -> Result<bool, Failure> {
    let event = Event::generic(GenericEvent::Instructions).user_only();
    let mut threads = [CountDown::new(0, 1_000, 3), CountDown::new(1, 300, 2)];
    for thread in &mut threads {
        let event = counters.open(unit, &[event])?;
        thread.events = [ThreadEvent::Opened(event)];
        // The thread does not run yet: its event starts with its first turn.
        counters.switch_out(&mut thread.events, clock::now(), |_| ())?;
        if let [ThreadEvent::SwitchedOut(event)] = &mut thread.events {
            *event = event.to_be_enabled(true);
        }
    }
    for turn in 0..3 {
        for thread in threads.iter_mut().filter(|thread| turn < thread.turns) {
            counters.switch_in(unit, &mut thread.events, clock::now())?;
            thread.thread.run();
            counters.switch_out(&mut thread.events, clock::now(), |_| ())?;
        }
    }
    let mut right = true;
    for (number, CountDown { turns, events, instructions, .. }) in threads.iter().enumerate() {
        let count = match events {
            [ThreadEvent::SwitchedOut(event)] => event.count().value,
            _ => return Err(Failure::Wrong("a thread's event was lost")),
        };
        right &= count == *instructions;
        line!("thread {} turns {} instructions {}", number, turns, count);
    }
    Ok(right)
}
