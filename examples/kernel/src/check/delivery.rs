//! Claims of the performance interrupt's delivery.

use core::sync::atomic::Ordering::Relaxed;

use crate::check::bench::{BY_NMI, Bench, MASKED, work, work_until};
use crate::check::claim::Outcome;
use crate::check::handler::{self, AGAIN, ENTRY, PERIODS, Plan, STATUS, TAKEN, VECTOR};
use crate::demos::workload;
use crate::machine::vectors::PERFORMANCE;
use crate::machine::{apic, clock};

/// Instructions to the overflow, and the longest wait for it.
const SHORT: u64 = 20_000;
const PATIENCE_MS: u64 = 5_000;
/// Time in which an interrupt would come that is not to come.
const QUIET_MS: u64 = 20;
const NMI: u32 = 2;

fn taken() -> u64 {
    TAKEN.load(Relaxed)
}

/// Lets one counter overflow, and returns the number of interrupts.
fn overflow_once(bench: &Bench, entry: u32, plan: Plan) -> u64 {
    handler::expect(bench, entry, plan);
    bench.start([(0, SHORT, true)]);
    work_until(PATIENCE_MS, || taken() != 0);
    work(QUIET_MS);
    bench.end();
    taken()
}

fn by(bench: &Bench, entry: u32, vector: u32) -> Outcome {
    let taken = overflow_once(bench, entry, Plan::Stop);
    let came_by = VECTOR.load(Relaxed);
    Outcome::of(taken == 1 && came_by == vector)
        .with("interrupts", taken)
        .with("vector", came_by.into())
}

/// An overflow interrupts by an NMI.
pub fn by_nmi(bench: &Bench) -> Outcome {
    by(bench, BY_NMI, NMI)
}

/// An overflow interrupts by a vector.
pub fn by_vector(bench: &Bench) -> Outcome {
    by(bench, PERFORMANCE.into(), PERFORMANCE.into())
}

/// Delivery masks the LVT entry on Intel, and not on AMD.
pub fn mask_on_delivery(bench: &Bench) -> Outcome {
    if overflow_once(bench, BY_NMI, Plan::Stop) == 0 {
        return Outcome::of(false).with("interrupts", 0);
    }
    let masked = ENTRY.load(Relaxed) & MASKED != 0;
    Outcome::of(masked == bench.is_intel()).with("masked", masked.into())
}

/// Two overflows at once interrupt once.
pub fn second(bench: &Bench) -> Outcome {
    if bench.general() < 2 || bench.global().is_none() {
        return Outcome::ABSENT;
    }
    handler::expect(bench, BY_NMI, Plan::Stop);
    bench.start([(0, SHORT, true), (1, SHORT, true)]);
    work_until(PATIENCE_MS, || taken() != 0);
    work(QUIET_MS);
    bench.end();
    let overflowed = STATUS.load(Relaxed) & (bench.bit(0) | bench.bit(1));
    Outcome::of(taken() == 1)
        .with("interrupts", taken())
        .with("overflows", overflowed.count_ones().into())
}

/// Lets a counter overflow while LVTPC is masked, and then unmasks LVTPC, with the overflow acknowledged or not.
/// Returns the interrupts before and after; `None`: it did not overflow.
fn masked_overflow(bench: &Bench, acknowledged: bool) -> Option<(u64, u64)> {
    handler::expect(bench, BY_NMI | MASKED, Plan::Stop);
    bench.start([(0, SHORT, true)]);
    let overflowed = work_until(PATIENCE_MS, || bench.has_overflowed(0));
    work(QUIET_MS);
    let before = taken();
    bench.halt();
    if acknowledged {
        bench.acknowledge();
    }
    apic::write_performance_entry(BY_NMI);
    work(QUIET_MS);
    bench.end();
    overflowed.then_some((before, taken() - before))
}

fn quiet(outcome: Option<(u64, u64)>) -> Outcome {
    match outcome {
        Some((before, after)) => {
            Outcome::of(before + after == 0).with("masked", before).with("unmasked", after)
        }
        None => Outcome::of(false).with("overflows", 0),
    }
}

/// An overflow while the LVT entry is masked does not interrupt, then or later.
pub fn while_masked(bench: &Bench) -> Outcome {
    quiet(masked_overflow(bench, true))
}

/// Unmasking the LVT entry while a bit of the status is set does not interrupt.
pub fn raise_on_unmask(bench: &Bench) -> Outcome {
    if bench.global().is_none() {
        return Outcome::ABSENT;
    }
    quiet(masked_overflow(bench, false))
}

/// An overflow while another is serviced is in the status.
pub fn again(bench: &Bench) -> Outcome {
    if bench.global().is_none() {
        return Outcome::ABSENT;
    }
    overflow_once(bench, BY_NMI, Plan::Again(SHORT / 4));
    let again = AGAIN.load(Relaxed) & bench.bit(0);
    Outcome::of(again != 0).with("interrupts", taken())
}

/// After a counter was stopped, an interrupt comes only of an overflow that it had by then.
pub fn late(bench: &Bench) -> Outcome {
    const ROUNDS: u64 = 200;
    let (mut late, mut invented) = (0, 0);
    for round in 0..ROUNDS {
        handler::expect(bench, BY_NMI, Plan::Stop);
        bench.start([(0, 200 + 37 * round, true)]);
        for _ in 0..round % 16 {
            workload::short_turn();
        }
        bench.halt();
        let (at_stop, overflowed) = (taken(), bench.has_overflowed(0));
        let begin = clock::now();
        while clock::now() - begin < clock::milliseconds(1) / 4 {
            core::hint::spin_loop();
        }
        let after = taken() - at_stop;
        late += after;
        // One that came before has stopped the counter.
        invented += after.saturating_sub(u64::from(overflowed && at_stop == 0));
        bench.end();
    }
    Outcome::of(invented == 0).with("late", late).with("without-overflow", invented)
}

/// A period is kept: no overflow is lost, none invented.
pub fn period(bench: &Bench) -> Outcome {
    const PERIOD: u64 = 200_000;
    const INTERRUPTS: u64 = 50;
    const FAR: u64 = 1 << 30;
    // Without a global control the counters do not stop together.
    if bench.general() < 2 || bench.global().is_none() {
        return Outcome::ABSENT;
    }
    handler::expect(bench, BY_NMI, Plan::Period(PERIOD));
    bench.start([(0, PERIOD, true), (1, FAR, false)]);
    work_until(PATIENCE_MS, || taken() >= INTERRUPTS);
    handler::finish();
    bench.halt();
    let (interrupts, mask) = (taken(), bench.counter(1).map_or(0, |counter| counter.mask()));
    let events = bench.value(1).wrapping_add(FAR) & mask;
    bench.end();
    let (periods, expected) = (PERIODS.load(Relaxed), events / PERIOD);
    // One may be underway at the end.
    Outcome::of(interrupts > 1 && periods.abs_diff(expected) <= 1)
        .with("interrupts", interrupts)
        .with("periods", periods)
        .with("expected", expected)
}
