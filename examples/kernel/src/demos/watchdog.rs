//! A watchdog that fires on purpose: an event of cycles whose interrupt is an NMI, and a processor that does not
//! touch the watchdog between two of them.

use core::sync::atomic::Ordering;

use pmu::core::{CounterSet, Event, EventTable, GenericEvent};
use x86_64::instructions::interrupts;

use crate::demos::failure::Failure;
use crate::demos::rate::Rate;
use crate::demos::workload;
use crate::embedding::cpuid::snapshot;
use crate::embedding::interrupt::{OVERFLOWS, STUCK};
use crate::embedding::memory::PMU;
use crate::embedding::platform::set_counters;
use crate::line;
use crate::machine::{clock, smp};

/// Time for which a processor's cycles are measured.
const MEASURED_MS: u64 = 10;
/// The watchdog's period.
const PERIOD_MS: u64 = 200;
/// Time to wait for its interrupts.
const PATIENCE_MS: u64 = 8_000;
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
            PMU.processor_up(&snapshot())?;
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
fn watch(number: usize) -> Result<u32, Failure> {
    let begin = clock::now();
    let [cycles] = PMU.count(&[Event::generic(GenericEvent::Cycles)], || {
        while clock::now() - begin < clock::milliseconds(MEASURED_MS) {
            workload::short_turn();
        }
    })?;
    let rate = Rate { events: cycles.value, ticks: clock::now() - begin };

    // A kernel of your own waits for some seconds. Here a second has 200 ms, so that the example ends.
    let hertz = rate.per(PERIOD_MS).max(EventTable::DEFAULT_MIN_PERIOD);
    let before = OVERFLOWS[number].load(Ordering::Relaxed);
    PMU.watch(hertz, 1)?;
    let fired = || OVERFLOWS[number].load(Ordering::Relaxed) - before;
    let stuck = || STUCK[number].load(Ordering::Relaxed);
    wait_for(|| {
        PMU.touch(); // as a kernel's timer tick does
        fired() >= ALIVE
    })?;
    if stuck() != 0 {
        return Err(Failure::Wrong("a watchdog fired though it was touched"));
    }
    let alive = fired();
    wait_for(|| stuck() != 0)?;
    PMU.unwatch()?;
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
