//! A watchdog that fires on purpose: an event of cycles whose interrupt is an NMI, and a processor that does not
//! touch the watchdog between two of them.

use core::sync::atomic::Ordering;

use pmu::core::memory::EventTable;
use pmu::core::{CounterSet, Event, GenericEvent};
use x86_64::instructions::interrupts;

use crate::demos::failure::Failure;
use crate::demos::rate::Rate;
use crate::demos::workload;
use crate::embedding::interrupt::{OVERFLOWS, STUCK};
use crate::embedding::memory::PMU;
use crate::embedding::platform::set_counters;
use crate::embedding::sessions::processor_up;
use crate::line;
use crate::machine::{clock, smp};

/// The watchdog's period, and the longest that is tried.
const PERIOD_MS: u64 = 200;
const LONGEST_MS: u64 = 32 * PERIOD_MS;
/// Time to wait for its interrupts.
const PATIENCE_MS: u64 = 60_000;
/// Number of interrupts for which a processor that is well is watched.
const ALIVE: u32 = 2;

/// Watches the last processor: while it is well, and while it loops with interrupts off.
///
/// # Errors
/// Those of the counters; a watchdog that does not fire, or does though it was touched.
pub fn run() -> Result<(), Failure> {
    let number = smp::processors() - 1;
    let alive = smp::run_on(number, || {
        // Nothing but an NMI comes through.
        interrupts::without_interrupts(|| {
            set_counters(CounterSet::ALL);
            processor_up()?;
            let alive = watch(number);
            PMU.processor_down()?;
            alive
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
///
/// A hypervisor that is busy lets a processor wait for longer than a period, or while its cycles are measured. So a
/// watchdog that fires though it was touched is tried again, with a longer period.
fn watch(number: usize) -> Result<u32, Failure> {
    let cycles = PMU.open(&Event::generic(GenericEvent::Cycles))?;
    PMU.enable(cycles)?;
    let rate = Rate::median(|| PMU.read(cycles).map(|count| count.value));
    PMU.close(cycles)?;
    let rate = rate?;

    // A kernel of your own waits for some seconds. Here a second has 200 ms, so that the example ends.
    let mut milliseconds = PERIOD_MS;
    while milliseconds <= LONGEST_MS {
        PMU.watch(rate.per(milliseconds).max(EventTable::DEFAULT_MIN_PERIOD), 1)?;
        let alive = well(number)?;
        if let Some(alive) = alive {
            wait_for(|| stuck(number) != 0)?;
            PMU.unwatch()?;
            return Ok(alive);
        }
        PMU.unwatch()?;
        STUCK[number].store(0, Ordering::Relaxed);
        milliseconds *= 2;
    }
    Err(Failure::Wrong("a watchdog fired though it was touched"))
}

/// Touches the watchdog until it has interrupted some times. Returns how often; `None`: it fired.
fn well(number: usize) -> Result<Option<u32>, Failure> {
    let before = OVERFLOWS[number].load(Ordering::Relaxed);
    let fired = || OVERFLOWS[number].load(Ordering::Relaxed) - before;
    wait_for(|| {
        PMU.touch(); // as a kernel's timer tick does
        fired() >= ALIVE
    })?;
    Ok((stuck(number) == 0).then(fired))
}

fn stuck(number: usize) -> u32 {
    STUCK[number].load(Ordering::Relaxed)
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
