//! A watchdog that fires on purpose: an event of cycles whose interrupt is an NMI, and a processor that does not
//! touch the watchdog between two of them.

use core::sync::atomic::{AtomicU32, Ordering};

use pmu::Watchdog;
use pmu::core::{CounterUnit, Event, EventId, EventTable, GenericEvent};
use x86_64::instructions::interrupts;

use crate::demos::failure::Failure;
use crate::demos::rate::Rate;
use crate::demos::workload;
use crate::embedding::opened_events::{Events, with_events};
use crate::line;
use crate::machine::processor::MAX_PROCESSORS;
use crate::machine::{clock, smp};

/// Time for which a processor's cycles are measured.
const MEASURED_MS: u64 = 10;
/// The watchdog's period.
const PERIOD_MS: u64 = 200;
/// Time to wait for its interrupts.
const PATIENCE_MS: u64 = 8_000;
/// Number of interrupts for which a processor that is well is watched.
const ALIVE: u32 = 2;

static WATCHDOGS: [Watchdog; MAX_PROCESSORS] = [const { Watchdog::new() }; MAX_PROCESSORS];
/// Number of interrupts, and of those that found the processor stuck.
static FIRED: [AtomicU32; MAX_PROCESSORS] = [const { AtomicU32::new(0) }; MAX_PROCESSORS];
static STUCK: [AtomicU32; MAX_PROCESSORS] = [const { AtomicU32::new(0) }; MAX_PROCESSORS];

/// Handles the end of an event's period, in an NMI. A real kernel reports more than a number here, or panics.
pub fn interrupt(number: usize, event: EventId) {
    FIRED[number].fetch_add(1, Ordering::Relaxed);
    if WATCHDOGS[number].is_stuck(event) {
        STUCK[number].fetch_add(1, Ordering::Relaxed);
    }
}

/// Watches the last processor: while it is well, and while it loops with interrupts off.
///
/// # Errors
/// Those of the counters; a watchdog that does not fire, or does though it was touched.
pub fn run() -> Result<(), Failure> {
    let number = smp::processors() - 1;
    let alive = smp::run_on(number, || {
        // Nothing but an NMI comes through.
        interrupts::without_interrupts(|| {
            with_events(|counters, unit| watch(counters, unit, number))
        })
    })?;
    line!("watchdog processor {} alive {}", number, alive);
    let stuck = STUCK.iter().enumerate().filter(|(_, stuck)| stuck.load(Ordering::Relaxed) > 0);
    for (number, _) in stuck {
        line!("watchdog processor {} stuck", number);
    }
    Ok(())
}

/// Starts a watchdog on this processor, touches it for a while, and then no more until it fires. Returns how many
/// of its interrupts found the processor well.
fn watch(counters: &mut Events, unit: &CounterUnit, number: usize) -> Result<u32, Failure> {
    let cycles = Event::generic(GenericEvent::Cycles);
    let measured = counters.open_event(unit, &cycles)?;
    let begin = clock::now();
    counters.start_event(measured, begin)?;
    while clock::now() - begin < clock::milliseconds(MEASURED_MS) {
        workload::short_turn();
    }
    let (events, ticks) = (counters.close_event(measured, clock::now())?, clock::now() - begin);
    let rate = Rate { events: events.value, ticks };

    // A kernel of your own waits for some seconds. Here a second has 200 ms, so that the example ends.
    let hertz = rate.per(PERIOD_MS).max(EventTable::DEFAULT_MIN_PERIOD);
    let no_cycles = Failure::Wrong("the processor has no event of cycles");
    let event = Watchdog::event(unit, hertz, 1).ok_or(no_cycles)?;
    let event = counters.open_event(unit, &event)?;
    let watchdog = &WATCHDOGS[number];
    watchdog.watch(event);
    counters.start_event(event, clock::now())?;
    let fired = || FIRED[number].load(Ordering::Relaxed);
    let stuck = || STUCK[number].load(Ordering::Relaxed);
    wait_for(|| {
        watchdog.touch(); // as a kernel's timer tick does
        fired() >= ALIVE
    })?;
    if stuck() != 0 {
        return Err(Failure::Wrong("a watchdog fired though it was touched"));
    }
    let alive = fired();
    wait_for(|| stuck() != 0)?;
    counters.close_event(event, clock::now())?;
    Ok(alive)
}

/// Works until `done`, if that is in time.
fn wait_for(mut done: impl FnMut() -> bool) -> Result<(), Failure> {
    let begin = clock::now();
    while !done() {
        workload::short_turn();
        if clock::now() - begin > clock::milliseconds(PATIENCE_MS) {
            return Err(Failure::Wrong("a watchdog did not fire"));
        }
    }
    Ok(())
}
