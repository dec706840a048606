//! Claims of AMD's instruction-based sampling, by a session of the crates' with its units alone.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use pmu::amd::ibs::registers::{IBS_CTL, IbsCtl};
use pmu::amd::ibs::{Ibs, IbsKind, IbsMemory, IbsSampling, IbsUnit, IbsUnits};
use pmu::apic::ApicRegisters;
use pmu::core::error::CounterError;
use pmu::core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu::core::precise::{NotPrecise, PreciseSample};
use pmu::core::registers::MAX_COUNTERS;
use pmu::core::x86::FixupMsr;
use pmu::core::x86::Snapshot;
use pmu::core::x86::raw_cpuid::native_cpuid::CpuIdReaderNative;
use pmu::core::{Claim, CounterSession, CounterSet, CounterUnit, Event, EventId, Events, service};
use pmu::processors::KernelHooks;
use spin::Once;

use crate::check::bench::{Bench, address, read, work, work_until};
use crate::check::claim::{Outcome, Reason};
use crate::check::handler;
use crate::demos::loops::{CALLS, COUNTED};
use crate::embedding::extended_entries::native_apic;
use crate::embedding::msr::control_msr;
use crate::embedding::platform::Kernel;
use crate::machine::apic;

/// Ops between two samples, first and at most: a period that ends within the handler samples only the handler.
const SHORTEST: u64 = 1_600;
const LONGEST: u64 = 256 * SHORTEST;
/// Samples elsewhere after which the period becomes four times as long.
const TOO_MANY: u32 = 32;
/// Samples of the loop that settle a claim, and the time to wait for them.
const SAMPLES: u32 = 20;
const PATIENCE_MS: u64 = 5_000;

/// The session has the sampling units, and no other counter.
static COUNTERS: CounterMemory<[CounterSlot; MAX_COUNTERS]> = CounterMemory::new();
static EVENTS: EventTable<[EventEntry; 1]> = EventTable::new();
static MEMORY: IbsMemory = IbsMemory::new();
static UNITS: Once<(CounterUnit, IbsUnits)> = Once::new();

/// Samples of the loop, and those of them that say something else than the loop's listing; samples elsewhere.
static RIGHT: AtomicU32 = AtomicU32::new(0);
static WRONG: AtomicU32 = AtomicU32::new(0);
static ELSEWHERE: AtomicU32 = AtomicU32::new(0);
/// Interrupts, and those of them that the session did not claim.
static TAKEN: AtomicU32 = AtomicU32::new(0);
static UNCLAIMED: AtomicU32 = AtomicU32::new(0);

/// Returns the unit that samples ops, or fetches.
pub fn unit(kind: IbsKind) -> Option<IbsUnit> {
    IbsUnits::of(&Snapshot::capture(CpuIdReaderNative))?.get(kind).copied()
}

type Source = Events<'static, CounterUnit, Ibs<'static>>;

/// The session of a claim, with its event.
struct Ops {
    session: CounterSession<'static, Source, (FixupMsr, KernelHooks<Kernel>)>,
    unit: &'static CounterUnit,
}

impl Ops {
    /// Samples every `period`-th op.
    fn start(&mut self, period: u64) -> Result<EventId, CounterError> {
        let ops: Event = IbsSampling::ops().event().every(period);
        let event = self.session.open(self.unit, &[ops])?;
        Ok(self.session.enable(event, 0).map(|()| event)?)
    }

    fn stop(&mut self, event: EventId) -> Result<(), CounterError> {
        Ok(self.session.close(event, 0).map(drop)?)
    }
}

fn source() -> Option<(Source, &'static CounterUnit)> {
    let (unit, units) = UNITS.get()?;
    let events: &EventTable = &EVENTS;
    Some((Events::new(unit, events).with(Ibs::new(units, &MEMORY)), unit))
}

/// Handles an interrupt while claims of sampled ops are tried.
fn interrupt() {
    let Some((source, _)) = source() else { return };
    let apic = KernelHooks::<Kernel>::new();
    let serviced = service(&source, &(control_msr(), apic), &COUNTERS, |sample| {
        sampled(sample.instruction());
    });
    TAKEN.fetch_add(1, Relaxed);
    if serviced.is_ok_and(|serviced| serviced.claim == Claim::NotOurs) {
        UNCLAIMED.fetch_add(1, Relaxed);
    }
}

/// Compares a sample of the loop with the listing: whether the instruction at its address loads, and stores.
fn sampled(sample: Option<PreciseSample>) {
    let sample = sample.unwrap_or_default();
    let Some(effect) = sample.address.and_then(|address| CALLS.effect_of(address)) else {
        ELSEWHERE.fetch_add(1, Relaxed);
        return;
    };
    let access = sample.access.unwrap_or_default();
    let is_right = access.load == effect.loads && access.store == effect.stores;
    (if is_right { &RIGHT } else { &WRONG }).fetch_add(1, Relaxed);
}

/// Takes the units, and calls `act` with their session; the reason why not, if they cannot be taken.
fn with_ops(act: impl FnOnce(&mut Ops) -> Result<Outcome, CounterError>) -> Outcome {
    let processor = Snapshot::capture(CpuIdReaderNative);
    let counters = pmu::amd::counters(&processor);
    let counters = counters.why_absent().is_none().then_some(counters);
    let found = IbsUnits::of(&processor).zip(counters);
    let counts_ops = |unit: IbsUnit| unit.capabilities().counts_ops();
    let Some((units, unit)) = found.filter(|_| unit(IbsKind::Op).is_some_and(counts_ops)) else {
        return Outcome::ABSENT;
    };
    UNITS.call_once(|| (unit, units));
    for count in [&RIGHT, &WRONG, &ELSEWHERE, &TAKEN, &UNCLAIMED] {
        count.store(0, Relaxed);
    }
    let Some((source, unit)) = source() else { return Outcome::ABSENT };
    handler::leave_to(interrupt);
    let (msr, apic) = (control_msr(), KernelHooks::<Kernel>::new());
    let taken = CounterSession::take(source, unit, CounterSet::UNITS, (msr, apic), &COUNTERS);
    let tried = taken.and_then(|session| {
        EVENTS.set_min_period(SHORTEST);
        let mut ops = Ops { session, unit };
        let outcome = act(&mut ops);
        let ended = ops.session.shut_down();
        // An interrupt may still come.
        work(1);
        outcome.and_then(|outcome| ended.map(|()| outcome))
    });
    handler::leave();
    match tried {
        Ok(outcome) => outcome,
        Err(CounterError::NotPrecise(NotPrecise::NoInterrupt)) => Outcome::ABSENT,
        Err(_) => Outcome::not_tried(Reason::Driver),
    }
}

/// `IBS_CTL` names an extended entry that the local APIC has, in its present mode.
pub fn entry(_: &Bench) -> Outcome {
    if unit(IbsKind::Op).is_none() {
        return Outcome::ABSENT;
    }
    let control = read(address(IBS_CTL)).map_or(IbsCtl::new(), IbsCtl::from_bits);
    let found = native_apic().and_then(|apic| apic.read_extended_entry(control.lvt_offset()));
    Outcome::of(control.lvt_offset_valid() && found.is_some())
        .with("entry", control.lvt_offset().into())
        .with("holds", found.unwrap_or(0).into())
        .with("x2apic", apic::is_x2apic().into())
}

/// Each sample of a loop is at the instruction that it describes.
pub fn exact_address(_: &Bench) -> Outcome {
    with_ops(|ops| {
        let mut period = SHORTEST;
        let event = ops.start(period)?;
        let enough = || RIGHT.load(Relaxed) + WRONG.load(Relaxed) >= SAMPLES;
        let mut failed = Ok(());
        let done = work_until(PATIENCE_MS, || {
            (COUNTED[2].run)();
            if ELSEWHERE.load(Relaxed) >= TOO_MANY && period < LONGEST && failed.is_ok() {
                period *= 4;
                failed = EVENTS.set_period(event, period);
                ELSEWHERE.store(0, Relaxed);
            }
            enough()
        });
        ops.stop(event)?;
        failed?;
        let (right, wrong) = (RIGHT.load(Relaxed), WRONG.load(Relaxed));
        Ok(Outcome::of(done && wrong == 0).with("right", right.into()).with("wrong", wrong.into()))
    })
}

/// After a stop at most one interrupt comes, which the session claims; and no sample is seen twice.
pub fn stop(_: &Bench) -> Outcome {
    const ROUNDS: u64 = 100;
    with_ops(|ops| {
        let (mut late, mut more) = (0, 0);
        for round in 0..ROUNDS {
            let event = ops.start(SHORTEST + 16 * (round % 64))?;
            (0..=round % 4).for_each(|_| (COUNTED[2].run)());
            ops.stop(event)?;
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
