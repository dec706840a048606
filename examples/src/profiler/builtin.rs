//! Profiling the built-in workload: a thread of this process, interrupted by its own timer.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::thread;

use pmu_core::access::{
    AccessErrorKind, CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate,
};
use pmu_core::interval::IntervalLimits;
use pmu_core::memory::{CounterMemory, CounterSlot};
use pmu_core::profile::{DefaultInterface, InterfaceError, KProfileSource, Session};
use pmu_core::x86::{Snapshot, raw_cpuid};
use pmu_core::{CounterSet, EventSource, Platform};
use pmu_kprofile::hardware::ThisProcessor;
use pmu_kprofile::{ProfileError, ProfileHardware, ProfileObject, Statistics};

use super::call_stacks::CallStacks;
use super::call_walk;
use super::counters::{Counters, is_counter};
use super::error::Error;
use super::histogram::{Histogram, Histograms};
use super::processor::{PROCESSOR, PROFILES, this_process, thread_time};
use super::timer::{STACKS, ThreadTimer, late};
use super::{maps, signals, workload};
use crate::machine::Source;

/// The length of the workload, which a [request to stop](signals) cuts short.
#[derive(Clone, Copy, Debug)]
pub enum Length {
    /// Until there are samples enough to tell the shares, but not forever.
    Enough,
    /// For this much processor time.
    Time(Duration),
}

/// Samples that are enough, the processor time that they are to be spread over, and the time after
/// which it is enough all the same.
const ENOUGH: u64 = 2_000;
const LONG_ENOUGH: Duration = Duration::from_millis(1_900);
const FOREVER: Duration = Duration::from_secs(20);

/// The tick that moves the counters on where they are the source: each 200 µs.
const TICK: u64 = 2_000;

/// The outcome of profiling.
#[derive(Debug)]
pub struct Outcome {
    /// The buckets, of this program's executable mappings.
    pub histograms: Vec<Histogram>,
    /// The interrupts, hit and missed.
    pub statistics: Statistics,
    /// The call stacks.
    pub stacks: CallStacks,
    /// Signals of the timer that were left out, because they came while the thread did not run.
    pub late: u64,
    /// The processor time that the workload took.
    pub time: Duration,
}

/// Profiles the workload, and tells `progress` now and then what became of the interrupts so far. Not
/// more than once at a time in a process.
///
/// # Errors
/// The source is fed by nothing, or the interval is outside its limits. Else this system lacks
/// something that every Linux has.
pub fn run(
    source: &Source,
    interval: u32,
    length: Length,
    callers: bool,
    progress: impl Fn(Statistics),
) -> Result<Outcome, Error> {
    if is_counter(source) && Counters::feed_of(source).is_none() {
        return Err(Error::NotFed(source.name));
    }
    let profile = |enough: &dyn Fn(Duration) -> bool| {
        call_walk::begin(callers).map_err(Error::Timer)?;
        if is_counter(source) {
            let counters = Counters::for_source(source).ok_or(Error::NotFed(source.name))?;
            profile_by_counter(counters, source.id, interval, enough)
        } else {
            profile_by_time(interval, enough)
        }
    };
    run_thread(&profile, length, progress)
}

/// Histograms, and the processor time that the workload took.
type Profiled = (Vec<Histogram>, Duration);

fn run_thread(
    profile: &(impl Fn(&dyn Fn(Duration) -> bool) -> Result<Profiled, Error> + Sync),
    length: Length,
    progress: impl Fn(Statistics),
) -> Result<Outcome, Error> {
    let (before, late_before) = (PROFILES.statistics(), late());
    let running = AtomicBool::new(true);
    let text = all_text()?;
    let mut stacks = CallStacks::default();
    let thread = std::process::id();
    let mut take_in = || {
        // SAFETY: this thread alone reads the ring.
        while let Some(sample) = unsafe { STACKS.pop() } {
            let place = |(index, address): (usize, &u64)| {
                // A return address may be another function's: the call is before it.
                let address = address.saturating_sub(u64::from(index > 0));
                let mapping = text.iter().find(|mapping| mapping.has(address))?;
                Some((&*mapping.path, address - mapping.start + mapping.file_offset))
            };
            let places = sample.addresses().iter().enumerate().map_while(place);
            stacks.add(sample.time, (thread, thread), places, sample.interrupts);
        }
    };
    take_in();
    let result = thread::scope(|scope| {
        // The workload has a thread of its own, so that this one's doings are not in the profile.
        let thread = scope.spawn(|| {
            let long_enough = |time| match length {
                Length::Enough => {
                    since(before).seen >= ENOUGH && time >= LONG_ENOUGH || time >= FOREVER
                }
                Length::Time(length) => time >= length,
            };
            let enough = |time| long_enough(time) || signals::requested().is_some();
            let result = profile(&enough);
            running.store(false, Ordering::Relaxed);
            result
        });
        while running.load(Ordering::Relaxed) && !thread.is_finished() {
            thread::sleep(Duration::from_millis(50));
            take_in();
            progress(since(before));
        }
        thread.join()
    });
    let (histograms, time) = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    take_in();
    stacks.name_threads(|_, _| "profile".into());
    let late = late() - late_before;
    Ok(Outcome { histograms, statistics: since(before), stacks, late, time })
}

fn since(before: Statistics) -> Statistics {
    let now = PROFILES.statistics();
    Statistics {
        seen: now.seen - before.seen,
        hit: now.hit - before.hit,
        missed: now.missed - before.missed,
        outside: now.outside - before.outside,
    }
}

/// Profiles by the thread's timer.
fn profile_by_time(interval: u32, enough: &dyn Fn(Duration) -> bool) -> Result<Profiled, Error> {
    let timer = ThreadTimer::new().map_err(Error::Timer)?;
    let interface = DefaultInterface::new();
    interface.set_interval(KProfileSource::TIME, interval.into()).map_err(Error::Interval)?;
    let memory: &CounterMemory = &CounterMemory::<[CounterSlot; 0]>::new();
    let nothing =
        Snapshot::capture(|_, _| raw_cpuid::CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 });
    let mut session =
        Session::take(&interface, &nothing, CounterSet::GENERAL, (NoRegisters, &timer), memory)
            .map_err(failed)?;
    let mut hardware = ThisProcessor::new(&mut session, PROCESSOR);
    profile(KProfileSource::TIME, &mut hardware, || {
        workload::run(enough);
        Ok(())
    })
}

/// Profiles by a counter of the software PMU, which the thread's timer moves on.
fn profile_by_counter(
    counters: &'static Counters,
    source: KProfileSource,
    interval: u32,
    enough: &dyn Fn(Duration) -> bool,
) -> Result<Profiled, Error> {
    let timer = ThreadTimer::new().map_err(Error::Timer)?;
    let Counters { interface, processor, registers, memory, .. } = counters;
    interface.set_interval(source, interval.into()).map_err(Error::Interval)?;
    let mut session = Session::take(&interface, processor, CounterSet::GENERAL, registers, memory)
        .map_err(failed)?;
    let mut hardware = ThisProcessor::new(&mut session, PROCESSOR);
    profile(source, &mut hardware, || {
        counters.begin();
        let tick = IntervalLimits::TIME.clamp(TICK);
        timer.move_on(counters, tick).map_err(Error::Timer)?;
        workload::run(enough);
        (&timer).stop_profile_timer();
        Ok(())
    })
}

/// Runs the workload on this thread, with profile objects over this program's text.
fn profile(
    source: KProfileSource,
    hardware: &mut impl ProfileHardware,
    workload: impl FnOnce() -> Result<(), Error>,
) -> Result<Profiled, Error> {
    let mut histograms = Histograms::default();
    let mut objects: Vec<&'static ProfileObject<'static>> = Vec::new();
    for mapping in own_text()? {
        let histogram = histograms.of(&mapping);
        let object = histogram
            .object(this_process(), mapping.start, source, hardware)
            .map_err(Error::Create)?;
        objects.push(object);
    }

    for object in &objects {
        PROFILES.start(object, hardware).map_err(Error::Profile)?;
    }
    let start = thread_time();
    let outcome = workload();
    let time = thread_time() - start;
    for object in &objects {
        PROFILES.stop(object, hardware).map_err(Error::Profile)?;
    }
    outcome.map(|()| (histograms.into_vec(), time))
}

fn failed(error: InterfaceError) -> Error {
    Error::Profile(ProfileError::Hardware { processor: PROCESSOR, error })
}

/// The executable mappings of this process.
fn all_text() -> Result<Vec<maps::Mapping>, Error> {
    let path = "/proc/self/maps";
    let maps = std::fs::read_to_string(path);
    let maps = maps.map_err(|error| Error::File { path: path.into(), error })?;
    Ok(maps::executable(&maps))
}

/// Those of this program itself, without libraries.
fn own_text() -> Result<Vec<maps::Mapping>, Error> {
    let program = std::env::current_exe()
        .map_err(|error| Error::File { path: "/proc/self/exe".into(), error })?;
    let mut mappings = all_text()?;
    mappings.retain(|mapping| mapping.path == program);
    Ok(mappings)
}

/// The registers of a processor without counters, which are never named.
struct NoRegisters;

impl RegisterBackend for NoRegisters {
    type Error = AccessErrorKind;

    fn read(&self, _: RegisterAddress) -> Result<u64, Self::Error> {
        Err(AccessErrorKind::Unreachable)
    }

    fn write(&self, _: RegisterAddress, _: u64) -> Result<(), Self::Error> {
        Err(AccessErrorKind::Unreachable)
    }

    fn read_counter(&self, _: CounterIndex) -> Result<u64, Self::Error> {
        Err(AccessErrorKind::Unreachable)
    }

    fn update(&self, _: RegisterUpdate) -> Result<u64, Self::Error> {
        Err(AccessErrorKind::Unreachable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    /// Time tells how many cycles passed, and nothing of other events.
    #[test]
    fn only_cycles_are_fed() {
        let machine = Machine::with_interface(pmu_intel::Emon::declared());
        let fed =
            ["ProfileTotalCycles", "ProfileUnhaltedCoreCycles", "ProfileUnhaltedReferenceCycles"];
        for source in machine.sources().iter().filter(|source| is_counter(source)) {
            let counters = Counters::for_source(source);
            assert_eq!(counters.is_some(), fed.contains(&source.name), "{}", source.name);
            if counters.is_none() {
                let result = run(source, 65_536, Length::Enough, false, |_| {});
                assert!(matches!(result, Err(Error::NotFed(name)) if name == source.name));
            }
        }
        let machine = Machine::with_interface(pmu_amd::Amd64::declared());
        for source in machine.sources().iter().filter(|source| is_counter(source)) {
            assert!(Counters::for_source(source).is_none(), "{}", source.name);
        }
    }
}
