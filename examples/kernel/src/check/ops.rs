//! Claims of AMD's instruction-based sampling, by the crates' own sampler.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use pmu::Duties;
use pmu::amd::ibs::registers::{IBS_CTL, IbsCtl};
use pmu::amd::ibs::{
    Ibs, IbsError, IbsKind, IbsMemory, IbsRecord, IbsSampler, IbsSampling, IbsUnit,
};
use pmu::core::raw_cpuid::native_cpuid::CpuIdReaderNative;
use pmu::core::{
    Claim, CounterMemory, CounterSlot, CounterUnit, EventTable, FixupMsr, MAX_COUNTERS,
    OpenedEvents, Snapshot, service_with,
};
use spin::Once;

use crate::check::bench::{Bench, address, read, work, work_until};
use crate::check::claim::{Outcome, Reason};
use crate::check::handler;
use crate::demos::loops::{CALLS, COUNTED};
use crate::embedding::extended_entries;
use crate::embedding::msr::control_msr;
use crate::embedding::platform::Kernel;
use crate::machine::apic;

/// Ops between two samples, first and at most: a period that ends within the handler samples only the handler.
const SHORTEST: u32 = 1_600;
const LONGEST: u32 = 256 * SHORTEST;
/// Samples elsewhere after which the period becomes four times as long.
const TOO_MANY: u32 = 32;
/// Samples of the loop that settle a claim, and the time to wait for them.
const SAMPLES: u32 = 20;
const PATIENCE_MS: u64 = 5_000;

/// No session takes these counters: the sampler interrupts alone.
static COUNTERS: CounterMemory<[CounterSlot; MAX_COUNTERS]> = CounterMemory::new();
static MEMORY: IbsMemory = IbsMemory::new();
static UNIT: Once<IbsUnit> = Once::new();

/// Samples of the loop, and those of them that say something else than the loop's listing; samples elsewhere.
static RIGHT: AtomicU32 = AtomicU32::new(0);
static WRONG: AtomicU32 = AtomicU32::new(0);
static ELSEWHERE: AtomicU32 = AtomicU32::new(0);
/// Interrupts, and those of them that the sampler did not claim.
static TAKEN: AtomicU32 = AtomicU32::new(0);
static UNCLAIMED: AtomicU32 = AtomicU32::new(0);

/// Returns the unit that samples ops, or fetches.
pub fn unit(kind: IbsKind) -> Option<IbsUnit> {
    IbsUnit::of(&Snapshot::capture(CpuIdReaderNative), kind)
}

/// Handles an interrupt while claims of sampled ops are tried.
fn interrupt() {
    let Some(unit) = UNIT.get() else { return };
    let ops = Ibs::new(unit, &MEMORY, |record: &IbsRecord| sampled(unit, record));
    let (source, apic) =
        (OpenedEvents::new(&CounterUnit::NONE, EventTable::none()), Duties::<Kernel>::platform());
    let serviced = service_with(&source, &control_msr(), &apic, &COUNTERS, ops, |_, _| ());
    TAKEN.fetch_add(1, Relaxed);
    if serviced.is_ok_and(|serviced| serviced.claim == Claim::NotOurs) {
        UNCLAIMED.fetch_add(1, Relaxed);
    }
}

/// Compares a sample of the loop with the listing: whether the instruction at its address loads, and stores.
fn sampled(unit: &IbsUnit, record: &IbsRecord) {
    let sample = record.sample(unit);
    let Some(effect) = sample.address.and_then(|address| CALLS.effect_of(address)) else {
        ELSEWHERE.fetch_add(1, Relaxed);
        return;
    };
    let access = sample.access.unwrap_or_default();
    let is_right = access.load == effect.loads && access.store == effect.stores;
    (if is_right { &RIGHT } else { &WRONG }).fetch_add(1, Relaxed);
}

/// Takes the unit that samples ops, and calls `act` with the sampler; the reason why not, if it cannot be taken.
fn with_ops(
    act: impl FnOnce(&mut IbsSampler<'_, FixupMsr>) -> Result<Outcome, IbsError>,
) -> Outcome {
    let Some(unit) = unit(IbsKind::Op).filter(|unit| unit.capabilities().counts_ops()) else {
        return Outcome::ABSENT;
    };
    UNIT.call_once(|| unit);
    for count in [&RIGHT, &WRONG, &ELSEWHERE, &TAKEN, &UNCLAIMED] {
        count.store(0, Relaxed);
    }
    handler::leave_to(interrupt);
    let apic = Duties::<Kernel>::platform();
    let tried = IbsSampler::take(unit, control_msr(), &apic, &MEMORY).and_then(|mut ops| {
        let outcome = act(&mut ops);
        let ended = ops.shut_down();
        // An interrupt may still come.
        work(1);
        outcome.and_then(|outcome| ended.map(|()| outcome))
    });
    handler::leave();
    match tried {
        Ok(outcome) => outcome,
        Err(IbsError::NoInterrupt | IbsError::Entry(_)) => Outcome::ABSENT,
        Err(_) => Outcome::not_tried(Reason::Driver),
    }
}

/// `IBS_CTL` names an extended entry that the local APIC has, in its present mode.
pub fn entry(_: &Bench) -> Outcome {
    if unit(IbsKind::Op).is_none() {
        return Outcome::ABSENT;
    }
    let control = read(address(IBS_CTL)).map_or(IbsCtl::new(), IbsCtl::from_bits);
    let found = extended_entries::read(control.lvt_offset());
    Outcome::of(control.lvt_offset_valid() && found.is_some())
        .with("entry", control.lvt_offset().into())
        .with("holds", found.unwrap_or(0).into())
        .with("x2apic", apic::is_x2apic().into())
}

/// Each sample of a loop is at the instruction that it describes.
pub fn exact_address(_: &Bench) -> Outcome {
    with_ops(|ops| {
        let mut period = SHORTEST;
        ops.start(&IbsSampling::ops(period))?;
        let enough = || RIGHT.load(Relaxed) + WRONG.load(Relaxed) >= SAMPLES;
        let mut failed = Ok(());
        let done = work_until(PATIENCE_MS, || {
            (COUNTED[2].run)();
            if ELSEWHERE.load(Relaxed) >= TOO_MANY && period < LONGEST && failed.is_ok() {
                period *= 4;
                failed = ops.stop();
                ELSEWHERE.store(0, Relaxed);
                failed = failed.and(ops.start(&IbsSampling::ops(period)));
            }
            enough()
        });
        ops.stop()?;
        failed?;
        let (right, wrong) = (RIGHT.load(Relaxed), WRONG.load(Relaxed));
        Ok(Outcome::of(done && wrong == 0).with("right", right.into()).with("wrong", wrong.into()))
    })
}

/// After a stop at most one interrupt comes, which the sampler claims; and no sample is seen twice.
pub fn stop(_: &Bench) -> Outcome {
    const ROUNDS: u32 = 100;
    with_ops(|ops| {
        let (mut late, mut more) = (0, 0);
        for round in 0..ROUNDS {
            ops.start(&IbsSampling::ops(SHORTEST + 16 * (round % 64)))?;
            (0..=round % 4).for_each(|_| (COUNTED[2].run)());
            ops.stop()?;
            let before = TAKEN.load(Relaxed);
            (0..4).for_each(|_| (COUNTED[2].run)());
            let after = TAKEN.load(Relaxed) - before;
            late += u64::from(after);
            more += u64::from(after.saturating_sub(1));
        }
        let unclaimed = u64::from(UNCLAIMED.load(Relaxed));
        let taken = u64::from(TAKEN.load(Relaxed));
        Ok(Outcome::of(taken != 0 && more == 0 && unclaimed == 0)
            .with("interrupts", taken)
            .with("late", late)
            .with("unclaimed", unclaimed))
    })
}
