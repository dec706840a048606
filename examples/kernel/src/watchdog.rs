//! A watchdog: an event of cycles whose interrupt is an NMI. A processor that does not touch it between two of
//! them is stuck.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pmu_core::{CounterUnit, Event, EventTable, NamedEvent, ProfileInterface};
use x86_64::instructions::interrupts;

use crate::events::{Events, with_events};
use crate::failure::Failure;
use crate::processor::MAX_PROCESSORS;
use crate::profile::Rate;
use crate::{clock, line, smp, workload};

/// How long a processor is watched for how many cycles it has.
const MEASURED_MS: u64 = 10;
/// The watchdog's period.
const PERIOD_MS: u64 = 200;
/// How long to wait for its interrupts.
const PATIENCE_MS: u64 = 8_000;
/// How many interrupts a processor that is well is watched for.
const ALIVE: u32 = 2;

static TOUCHED: [AtomicBool; MAX_PROCESSORS] = [const { AtomicBool::new(false) }; MAX_PROCESSORS];
/// How many interrupts there were, and of how many the processor was stuck.
static FIRED: [AtomicU32; MAX_PROCESSORS] = [const { AtomicU32::new(0) }; MAX_PROCESSORS];
static STUCK: [AtomicU32; MAX_PROCESSORS] = [const { AtomicU32::new(0) }; MAX_PROCESSORS];

/// The watchdog's interrupt came: in an NMI.
pub fn interrupt(number: usize) {
    FIRED[number].fetch_add(1, Ordering::Relaxed);
    if !TOUCHED[number].swap(false, Ordering::Relaxed) {
        STUCK[number].fetch_add(1, Ordering::Relaxed);
    }
}

/// Watches the last processor: while it is well, and while it loops with interrupts off.
///
/// # Errors
/// Those of the counters; a watchdog that does not fire, or does though it was touched.
pub fn run<I: ProfileInterface + Sync>(interface: &I) -> Result<(), Failure> {
    let number = smp::processors() - 1;
    let alive = smp::run_on(number, || {
        // Nothing but an NMI comes through.
        interrupts::without_interrupts(|| {
            with_events(interface, |counters, unit| watch(counters, unit, number))
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
fn watch<I: ProfileInterface>(
    counters: &mut Events<'_, I>,
    unit: &CounterUnit,
    number: usize,
) -> Result<u32, Failure> {
    let cycles = Event::named(NamedEvent::Cycles);
    let measured = counters.open_event(unit, &cycles)?;
    let begin = clock::now();
    counters.start_event(measured, begin)?;
    while clock::now() - begin < clock::milliseconds(MEASURED_MS) {
        workload::short_turn();
    }
    let (events, ticks) = (counters.close_event(measured, clock::now())?, clock::now() - begin);
    let rate = Rate { events: events.value, ticks };

    let period = rate.per(PERIOD_MS).max(EventTable::FLOOR);
    let watchdog = counters.open_event(unit, &cycles.every(period))?;
    counters.start_event(watchdog, clock::now())?;
    let fired = || FIRED[number].load(Ordering::Relaxed);
    let stuck = || STUCK[number].load(Ordering::Relaxed);
    wait_for(|| {
        TOUCHED[number].store(true, Ordering::Relaxed);
        fired() >= ALIVE
    })?;
    if stuck() != 0 {
        return Err(Failure::Wrong("a watchdog fired though it was touched"));
    }
    let alive = fired();
    wait_for(|| stuck() != 0)?;
    counters.close_event(watchdog, clock::now())?;
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
