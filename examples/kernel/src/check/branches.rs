//! Claims of branch records, on a loop whose branches were counted by hand.

use pmu::core::branch_recording::BranchRecorder;
use pmu::core::branches::{BranchFilter, BranchKind, BranchMemory, BranchSlot, BranchUnit};
use pmu::core::x86::Snapshot;
use pmu::core::x86::raw_cpuid::native_cpuid::CpuIdReaderNative;

use crate::check::bench::Bench;
use crate::check::claim::{Outcome, Reason};
use crate::check::handler;
use crate::demos::branches::{Listed, listed, sample};
use crate::demos::failure::Failure;
use crate::embedding::memory::MAX_RECORDS;
use crate::embedding::msr::control_msr;
use crate::embedding::opened_events::with_events;

/// The records can be taken: the last one gives back what is written to it, and the recording can be started.
pub fn registers(bench: &Bench) -> Outcome {
    static MEMORY: BranchMemory<[BranchSlot; MAX_RECORDS]> = BranchMemory::new();
    let snapshot = Snapshot::capture(CpuIdReaderNative);
    let unit = bench.machine.branches_of(&snapshot, &control_msr()).ok();
    // Those of an event alone have no recorder.
    let Some(unit) = unit.filter(|unit| !unit.holds_interrupt()) else {
        return Outcome::ABSENT;
    };
    let taken = BranchRecorder::take(&unit, control_msr(), &MEMORY);
    Outcome::of(taken.is_ok_and(|mut recorder| recorder.shut_down().is_ok()))
}

/// A sample has as many branches as the model has records, each after the one before it.
pub fn depth(bench: &Bench) -> Outcome {
    let Some(unit) = freezing(bench) else { return Outcome::ABSENT };
    of_samples(BranchFilter::KERNEL, |[_, last]| {
        let expected = usize::from(unit.depth());
        Outcome::of(last.count == expected && last.in_order)
            .with("records", last.count as u64)
            .with("expected", expected as u64)
            .with("ordered", last.in_order.into())
    })
}

/// Only returns are recorded where only returns are asked for.
pub fn filter(bench: &Bench) -> Outcome {
    let returns = BranchFilter::KERNEL.only(BranchKind::Return.only());
    match freezing(bench) {
        Some(unit) if unit.recorded(returns) == Some(returns) => {}
        _ => return Outcome::ABSENT,
    }
    of_samples(returns, |[_, last]| {
        Outcome::of(last.found && last.count != 0 && last.returns)
            .with("records", last.count as u64)
            .with("returns", last.returns.into())
    })
}

/// A sample has no branch of the handler, and neither has the next one: the first was released.
pub fn freeze(bench: &Bench) -> Outcome {
    if freezing(bench).is_none() {
        return Outcome::ABSENT;
    }
    of_samples(BranchFilter::KERNEL, |[first, second]| {
        let [first, second] = [first, second].map(|sample| sample.found && sample.in_order);
        Outcome::of(first && second).with("first", first.into()).with("second", second.into())
    })
}

/// Returns the records of the processor, if it can freeze them.
fn freezing(bench: &Bench) -> Option<BranchUnit> {
    let snapshot = Snapshot::capture(CpuIdReaderNative);
    bench.machine.branches_of(&snapshot, &control_msr()).ok().filter(BranchUnit::can_freeze)
}

/// Samples the known loop twice, and judges both samples.
fn of_samples(filter: BranchFilter, judge: impl FnOnce([Listed; 2]) -> Outcome) -> Outcome {
    handler::leave();
    let sampled = with_events(|counters, unit| {
        let mut twice = || sample(counters, unit, filter).map(|()| listed());
        Ok::<_, Failure>([twice()?, twice()?])
    });
    sampled.map_or(Outcome::not_tried(Reason::Driver), judge)
}
