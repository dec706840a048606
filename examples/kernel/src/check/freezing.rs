//! Claims of freezing: the processor stops the counters by itself as it raises the performance interrupt.

use core::sync::atomic::Ordering::Relaxed;

use crate::check::bench::{BY_NMI, Bench, work_until};
use crate::check::claim::Outcome;
use crate::check::handler::{self, CONTROL, MOVED, Plan, STATUS, TAKEN};

const SHORT: u64 = 20_000;
const FAR: u64 = 1 << 30;
const PATIENCE_MS: u64 = 5_000;

/// The bit that freezes is kept.
pub fn control(bench: &Bench) -> Outcome {
    let Some(kept) = bench.set_freezing(true) else { return Outcome::ABSENT };
    let cleared = bench.set_freezing(false) == Some(false);
    Outcome::of(kept && cleared).with("kept", kept.into())
}

/// The acknowledge register takes the bit of frozen counters.
pub fn acknowledge(bench: &Bench) -> Outcome {
    match bench.global() {
        Some(global) if global.frozen != 0 => Outcome::of(bench.release() == global.frozen),
        _ => Outcome::ABSENT,
    }
}

/// Returns the events by which a counter moves while the interrupt of another is serviced; `None`: there was none.
fn moved(bench: &Bench) -> Option<u64> {
    handler::expect(bench, BY_NMI, Plan::Look);
    bench.start([(0, SHORT, true), (1, FAR, false)]);
    work_until(PATIENCE_MS, || TAKEN.load(Relaxed) != 0).then(|| MOVED.load(Relaxed))
}

/// The counters freeze on the performance interrupt where that is set, and do not where it is not; frozen, the status
/// has its bit, or the global control is clear.
pub fn counters(bench: &Bench) -> Outcome {
    if bench.general() < 2 || bench.set_freezing(true).is_none() {
        return Outcome::ABSENT;
    }
    let frozen = moved(bench);
    let marked = bench.global().is_some_and(|global| match global.frozen {
        0 => CONTROL.load(Relaxed) == 0,
        frozen => STATUS.load(Relaxed) & frozen != 0,
    });
    bench.end();
    bench.set_freezing(false);
    let running = moved(bench);
    bench.end();
    let holds = frozen == Some(0) && marked && running.is_some_and(|moved| moved != 0);
    Outcome::of(holds)
        .with("frozen", frozen.unwrap_or(u64::MAX))
        .with("marked", marked.into())
        .with("running", running.unwrap_or(u64::MAX))
}
