//! Counts, samples and profiles, each compared with what it must be.

use core::fmt;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

use pmu::core::profile::KProfileSource;
use pmu::core::registers::EventSelect;
use pmu::user::UserPage;
use pmu::{Event, GenericEvent, PmuError, Profiled};

use crate::embedding::{
    INTERRUPTS, PAGES, PMU, STUCK, UNHANDLED, identify, left, permit_reads_at_el0, processor_up,
};
use crate::samples::{IN_LOOP, SAMPLES, TAG};
use crate::{line, machine, spare, workload};

/// The reason why a check failed.
#[derive(Debug)]
pub enum Failure {
    /// An operation of `Pmu`.
    Pmu(PmuError),
    /// A number is not what it must be.
    Number(&'static str, u64),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pmu(error) => write!(f, "{error}"),
            Self::Number(what, found) => write!(f, "{what}: {found}"),
        }
    }
}

impl From<PmuError> for Failure {
    fn from(error: PmuError) -> Self {
        Self::Pmu(error)
    }
}

fn check(what: &'static str, found: u64, expected: u64) -> Result<(), Failure> {
    line!("{what} {found}");
    if found == expected { Ok(()) } else { Err(Failure::Number(what, found)) }
}

/// All checks, on processor 0.
pub fn run() -> Result<(), Failure> {
    let processor = identify();
    line!("PMUv3 version {} kernel at EL{}", processor.version(), machine::level());
    let counters = processor_up()?;
    let width = if processor.has_long_counters() { 64 } else { 32 };
    line!("event counters {} width {width}", processor.event_counters());
    line!("counters of the driver {}", counters.len());
    counts()?;
    modes()?;
    increments()?;
    for (name, event) in
        [("instructions", GenericEvent::Instructions), ("cycles", GenericEvent::Cycles)]
    {
        samples(name, event)?;
    }
    thread()?;
    reads_at_el0()?;
    watchdog()?;
    let processors = start_second()?;
    let of = |event| Event::generic(event).every(5_000);
    profile("cycles", of(GenericEvent::Cycles), processors)?;
    profile("instructions", of(GenericEvent::Instructions), processors)?;
    profile("ProfileTotalCycles", KProfileSource::TOTAL_CYCLES, processors)?;
    for (number, interrupts) in INTERRUPTS.iter().take(processors).enumerate() {
        let interrupts = interrupts.load(Relaxed) as u64;
        line!("processor {number} interrupts {interrupts}");
        if interrupts < 100 {
            return Err(Failure::Number("interrupts", interrupts));
        }
    }
    check("unhandled interrupts", UNHANDLED.load(Relaxed) as u64, 0)?;
    PMU.processor_down()?;
    spare::follow();
    check("left by the driver", left(), 0)
}

/// The same loop with more turns has two more instructions for each.
fn counts() -> Result<(), Failure> {
    let count = |turns| -> Result<[u64; 2], Failure> {
        let events = [GenericEvent::Instructions, GenericEvent::Cycles].map(Event::generic);
        let counted = PMU.count(&events, || workload::count_down(turns))?;
        Ok(counted.map(|count| count.value))
    };
    let (few, many) = (count(1_000)?, count(1_001_000)?);
    line!("around the loop {} instructions, {} cycles", few[0] - 2_000, few[1] - 2_000);
    check("instructions of 1000000 turns", many[0] - few[0], 2_000_000)?;
    check("cycles of 1000000 turns", many[1] - few[1], 2_000_000)
}

/// Events of the kernel and of EL0.
fn modes() -> Result<(), Failure> {
    let event = Event::generic(GenericEvent::Instructions);
    let count = |turns| -> Result<[u64; 2], Failure> {
        let counted = PMU.count(&[event.user_only(), event.kernel_only()], || {
            workload::count_down_at_el0(turns)
        })?;
        Ok(counted.map(|count| count.value))
    };
    let (few, many) = (count(10)?, count(100_010)?);
    check("instructions at EL0", many[0] - few[0], 200_000)?;
    check("more instructions at EL1", many[1] - few[1], 0)
}

/// An event whose number is 0, which software makes happen.
fn increments() -> Result<(), Failure> {
    const PERIOD: u64 = 5_000;
    let event = Event::raw(EventSelect::from_bits(0));
    let counted = PMU.count(&[event], || (0..1_234).for_each(|_| machine::increment()))?;
    check("software increments", counted[0].value, 1_234)?;
    SAMPLES.store(0, Relaxed);
    let event = PMU.start(&event.every(PERIOD).tagged(TAG))?;
    (0..3 * PERIOD + 1).for_each(|_| machine::increment());
    PMU.close(event)?;
    check("samples of them", SAMPLES.load(Relaxed), 3)
}

/// Each period of an event at EL0, where no handler runs, has one sample, which is in the loop.
fn samples(name: &'static str, event: GenericEvent) -> Result<(), Failure> {
    const PERIOD: u64 = 10_000;
    SAMPLES.store(0, Relaxed);
    IN_LOOP.store(0, Relaxed);
    let event =
        PMU.start(&Event::generic(event).user_only().every(PERIOD).with_total().tagged(TAG))?;
    spare::follow();
    workload::count_down_at_el0(1_010_000);
    PMU.disable(event)?;
    let total = PMU.read(event)?.value;
    PMU.close(event)?;
    line!("{name} {total}");
    check("samples", SAMPLES.load(Relaxed), total / PERIOD)?;
    check("samples in the loop", IN_LOOP.load(Relaxed), total / PERIOD)
}

/// A thread's event counts while the thread is switched in.
fn thread() -> Result<(), Failure> {
    let instructions = Event::generic(GenericEvent::Instructions).user_only();
    let mut events = [PMU.thread_event(&instructions)?];
    for turns in [1_000, 50, 7] {
        PMU.switch(&mut [], &mut events)?;
        workload::count_down_at_el0(turns);
        PMU.switch(&mut events, &mut [])?;
        workload::count_down_at_el0(999); // another thread's
    }
    // The last instruction of each is SVC.
    check("instructions of a thread", PMU.read_thread(&events[0])?.value, 2 * 1_057 + 3)
}

/// A thread reads its events by their pages, and by MRS.
fn reads_at_el0() -> Result<(), Failure> {
    let [instructions, cycles] = [GenericEvent::Instructions, GenericEvent::Cycles]
        .map(|event| Event::generic(event).user_only().with_user_reads());
    let mut events =
        [PMU.thread_event(&instructions.tagged(0))?, PMU.thread_event(&cycles.tagged(1))?];
    PMU.switch(&mut [], &mut events)?;
    permit_reads_at_el0(true);
    let read = |page: &UserPage| page.read(|index| workload::read_at_el0(index).unwrap_or(0));
    let [before, after] = [1, 1_000].map(|turns| {
        workload::count_down_at_el0(turns);
        PAGES.each_ref().map(|page| read(page).unwrap_or(0))
    });
    permit_reads_at_el0(false);
    PMU.switch(&mut events, &mut [])?;
    // The loop and its SVC, and MRS and SVC of two reads.
    check("instructions that EL0 reads", after[0] - before[0], 2_001 + 4)?;
    check("cycles that EL0 reads", after[1] - before[1], 2_001 + 4)?;
    // The read's SVC, and MRS and SVC of the other read.
    check("instructions after that", PMU.read_thread(&events[0])?.value - after[0], 3)?;
    check("pages that are left", PAGES.iter().filter_map(read).count() as u64, 0)
}

/// The watchdog bites where nothing touches it for three periods.
fn watchdog() -> Result<(), Failure> {
    const PERIOD: u64 = 100_000;
    PMU.watch(PERIOD, 3)?;
    spare::follow();
    for _ in 0..10 {
        PMU.touch();
        workload::count_down(PERIOD / 2);
    }
    check("watchdog that is touched", STUCK.load(Relaxed) as u64, 0)?;
    workload::count_down(PERIOD * 3);
    PMU.unwatch()?;
    check("watchdog that is not touched", STUCK.load(Relaxed) as u64, 1)
}

/// Turns that processor 1 is to execute, and how often it did.
static TURNS: AtomicU64 = AtomicU64::new(0);
static DONE: AtomicUsize = AtomicUsize::new(0);

/// Starts processor 1 if there is one. Returns the number of processors.
fn start_second() -> Result<usize, Failure> {
    if !machine::start_second() {
        return Ok(1);
    }
    while DONE.load(Acquire) == 0 {
        machine::yield_to_others();
    }
    line!("processors 2");
    Ok(2)
}

/// Executes the workload on processor 1 when processor 0 asks for it.
pub fn serve() -> Result<(), Failure> {
    processor_up()?;
    DONE.fetch_add(1, Release);
    loop {
        match TURNS.swap(0, Acquire) {
            0 => machine::yield_to_others(),
            turns => {
                spare::follow();
                workload::mixed(turns);
                DONE.fetch_add(1, Release);
            }
        }
    }
}

/// Finds out where an event happens, on all processors: the loops of the workload have their shares.
fn profile(name: &'static str, by: impl Into<Profiled>, processors: usize) -> Result<(), Failure> {
    static BUCKETS: [AtomicU32; 4] = [const { AtomicU32::new(0) }; 4];
    const TURNS_EACH: u64 = 5_000_000;
    BUCKETS.iter().for_each(|bucket| bucket.store(0, Relaxed));
    let profile = PMU.profile(by, workload::text(), &BUCKETS, || {
        spare::follow();
        workload::mixed(TURNS_EACH);
        let before = DONE.load(Acquire);
        if processors > 1 {
            TURNS.store(TURNS_EACH, Release);
            while DONE.load(Acquire) == before {
                machine::yield_to_others();
            }
        }
    })?;
    let all: u64 = profile.hits().map(|(_, hits)| u64::from(hits)).sum();
    line!("profile of {name} {all}");
    for (function, address, tenths) in workload::shares() {
        let of = profile.hits().filter(|(range, _)| range.contains(&address));
        let hits: u64 = of.map(|(_, hits)| u64::from(hits)).sum();
        let stars = (hits * 50 / all.max(1)) as usize;
        line!("  {function:12} {hits:5} {:#<stars$}", "");
        // At the ends of a loop, up to two samples of each processor are another loop's.
        if all < 100 || (hits * 10).abs_diff(tenths * all) > 20 * processors as u64 {
            return Err(Failure::Number(function, hits));
        }
    }
    Ok(())
}
