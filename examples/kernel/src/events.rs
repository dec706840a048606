//! Events of this kernel's own beside the profile sources: a raw one, a fixed counter's, those of ring 3 and of
//! threads; and a watchdog.

use core::hint::black_box;

use pmu::Machine;
use pmu::core::raw_cpuid::native_cpuid::CpuIdReaderNative;
use pmu::core::{
    CounterError, CounterSet, CounterUnit, Counters, Event, EventId, EventSelect, FixupMsr,
    NamedEvent, SessionPlatform, Snapshot, SourceInterface, ThreadEvent, WithEvents,
};

use crate::boot::CommandLine;
use crate::embedding::{Apic, COUNTERS, EVENTS, apic, control_msr};
use crate::failure::Failure;
use crate::programs::count_down;
use crate::ring3::Thread;
use crate::workload::{COUNTED, EMPTY};
use crate::{clock, line, named, processor, user, watchdog};

/// The counters of a processor, with its events.
pub type Events = Counters<'static, WithEvents<'static, Machine>, FixupMsr, SessionPlatform<Apic>>;

/// Retired instructions, by the number that both vendors' manuals give them.
const INSTRUCTIONS: EventSelect = EventSelect::from_bits(0xC0);
/// Intel's fixed counter of the same.
const FIXED_0: CounterSet = CounterSet::fixed(1);

/// Opens events of every kind, and that of the command line. With `exact` the machine counts exactly, so compare.
///
/// # Errors
/// Those of the counters; a count that is not the known one; a watchdog that does not fire.
pub fn run(
    machine: &'static Machine,
    snapshot: &Snapshot,
    words: &CommandLine,
) -> Result<(), Failure> {
    if machine.unit().counters().is_empty() {
        line!("event none");
        return Ok(());
    }
    let right = with_events(machine, |counters, unit| {
        let right = raw_and_fixed(counters, unit)?;
        if let Some(name) = &words.event {
            named::count(counters, unit, snapshot, name.as_str())?;
        }
        Ok(right & user::run(counters, unit)? & threads(counters, unit)?)
    })?;
    if words.exact && !right {
        return Err(Failure::Wrong("an event's count is not the known one"));
    }
    watchdog::run(machine)
}

/// Takes this processor's counters, fixed ones included, and gives them back.
///
/// # Errors
/// Those of the counters, and of `function`.
pub fn with_events<R>(
    machine: &'static Machine,
    function: impl FnOnce(&mut Events, &CounterUnit) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let (number, this) = (processor::number(), Snapshot::capture(CpuIdReaderNative));
    let events = machine.with_events(&EVENTS[number]);
    let mut session =
        events.initialize(&this, CounterSet::ALL, control_msr(), apic(), &COUNTERS[number])?;
    let result = function(session.counters_mut(), &machine.unit_of(&this));
    session.shut_down()?;
    result
}

/// Counts a raw event on a general counter and, if there is one, on the fixed counter of the same event, over one loop.
fn raw_and_fixed(counters: &mut Events, unit: &CounterUnit) -> Result<bool, Failure> {
    let general = Event::raw(INSTRUCTIONS).on(CounterSet::GENERAL);
    let general = counters.open_event(unit, &general)?;
    let fixed = match counters.open_event(unit, &Event::named(NamedEvent::Instructions).on(FIXED_0))
    {
        Ok(event) => Some(event),
        Err(CounterError::NoCounterForEvent) => None,
        Err(error) => return Err(error.into()),
    };
    for event in [Some(general), fixed].into_iter().flatten() {
        counters.start_event(event, clock::now())?;
    }
    let counted = &COUNTED[0];
    let mut right = true;
    for (name, event) in [("raw", Some(general)), ("fixed", fixed)] {
        let Some(event) = event else {
            line!("event {} none", name);
            continue;
        };
        let around = measure(counters, event, EMPTY)?;
        let count = measure(counters, event, counted.run)?.saturating_sub(around);
        right &= count == counted.instructions;
        line!("event {} {} {}", name, counted.name, count);
        counters.close_event(event, clock::now())?;
    }
    Ok(right)
}

/// Returns the events between two readings with `run` between them. Those that are not `run`'s are the same each
/// time, so this is one piece of code.
///
/// # Errors
/// Those of reading.
#[inline(never)]
pub fn measure(
    counters: &Events,
    event: EventId,
    run: extern "C" fn(),
) -> Result<u64, CounterError> {
    let run = black_box(run);
    x86_64::instructions::interrupts::without_interrupts(|| {
        let before = counters.read_event(event, 0)?.value;
        run();
        Ok(counters.read_event(event, 0)?.value.wrapping_sub(before))
    })
}

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

/// Runs two threads in turns: each thread's count is that of its own execution.
fn threads(counters: &mut Events, unit: &CounterUnit) -> Result<bool, Failure> {
    let event = Event::named(NamedEvent::Instructions).user_only();
    let mut threads = [CountDown::new(0, 1_000, 3), CountDown::new(1, 300, 2)];
    for thread in &mut threads {
        let event = counters.open_event(unit, &event)?;
        thread.events = [ThreadEvent::Opened(event)];
        // The thread does not run yet: its event starts with its first turn.
        counters.switch_out(&mut thread.events, clock::now(), |_| ())?;
        if let [ThreadEvent::Switched(event)] = &mut thread.events {
            *event = event.to_be_started(true);
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
            [ThreadEvent::Switched(event)] => event.count().value,
            _ => return Err(Failure::Wrong("a thread's event was lost")),
        };
        right &= count == *instructions;
        line!("thread {} turns {} instructions {}", number, turns, count);
    }
    Ok(right)
}
