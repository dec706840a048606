//! Claims of what firmware leaves, read before anything was written.

use pmu::core::CounterSet;

use crate::check::bench::{Bench, DEBUG_CONTROL, ENABLED, FREEZE, address, read};
use crate::check::claim::Outcome;

const MISC_ENABLE: u32 = 0x1A0;
const PEBS_UNAVAILABLE: u64 = 1 << 12;
const PEBS_ENABLE: u32 = 0x3F1;

/// No counter is left running.
pub fn running(bench: &Bench) -> Outcome {
    let selects = (0..bench.general()).filter_map(|place| {
        let select = read(bench.counter(place)?.control().register())?;
        Some(if select & ENABLED != 0 { bench.bit(place) } else { 0 })
    });
    let selected = selects.fold(0, |all, bit| all | bit);
    // After reset the global control has the bits of all general counters.
    let control = bench.global().map_or(Some(u64::MAX), |global| read(global.control));
    let running = selected & control.unwrap_or(0);
    Outcome::of(running == 0).with("running", running)
}

/// No overflow is left unacknowledged.
pub fn overflowed(bench: &Bench) -> Outcome {
    if bench.global().is_none() {
        return Outcome::ABSENT;
    }
    let status = bench.status() & (CounterSet::GENERAL | CounterSet::FIXED).bits();
    Outcome::of(status == 0).with("status", status)
}

/// The counters are left neither frozen nor freezing.
pub fn frozen(bench: &Bench) -> Outcome {
    let Some(global) = bench.global() else { return Outcome::ABSENT };
    let freezes = global.freeze.and_then(|_| read(address(DEBUG_CONTROL))).unwrap_or(0) & FREEZE;
    let frozen = bench.status() & global.frozen;
    Outcome::of(freezes | frozen == 0)
        .with("freezes", u64::from(freezes != 0))
        .with("frozen", u64::from(frozen != 0))
}

/// No counter is left enabled for PEBS.
pub fn precise(bench: &Bench) -> Outcome {
    let unavailable = || read(address(MISC_ENABLE)).is_none_or(|misc| misc & PEBS_UNAVAILABLE != 0);
    if !bench.is_intel() || unavailable() {
        return Outcome::ABSENT;
    }
    match read(address(PEBS_ENABLE)) {
        Some(enabled) => Outcome::of(enabled == 0).with("enabled", enabled),
        None => Outcome::ABSENT,
    }
}
