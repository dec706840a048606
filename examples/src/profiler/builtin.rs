//! Profiling the built-in workload: a thread of this process, interrupted by its own timer.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::thread;

use pmu_core::{
    CounterMemory, CounterSlot, DefaultInterface, InterfaceError, KProfileSource, MsrAddress,
    MsrBackend, MsrErrorKind, PmcIndex, ProfileInterface,
};
use pmu_kprofile::{ProfileError, ProfileObject, Statistics, ThisProcessor};

use super::error::Error;
use super::histogram::{Histogram, Histograms};
use super::timer::{PROCESSOR, PROFILES, ThreadTimer, this_process};
use super::{maps, workload};

use crate::machine::Source;

/// What profiling came to.
#[derive(Debug)]
pub struct Outcome {
    /// The buckets, of this program's executable mappings.
    pub histograms: Vec<Histogram>,
    /// What became of the interrupts.
    pub statistics: Statistics,
}

/// Profiles the workload for this much processor time, and tells `progress` now and then what became
/// of the interrupts so far. Not more than once at a time in a process.
///
/// # Errors
/// The source is fed by nothing, or the interval is outside its limits. Else this system lacks
/// something that every Linux has.
pub fn run(
    source: &Source,
    interval: u32,
    length: Duration,
    progress: impl Fn(Statistics),
) -> Result<Outcome, Error> {
    // What feeds a source: for time, the thread's timer.
    match source.id {
        KProfileSource::TIME => run_by_time(interval, length, progress),
        _ => Err(Error::NotFed(source.name)),
    }
}

fn run_by_time(
    interval: u32,
    length: Duration,
    progress: impl Fn(Statistics),
) -> Result<Outcome, Error> {
    let before = PROFILES.statistics();
    let running = AtomicBool::new(true);
    let result = thread::scope(|scope| {
        // The workload has a thread of its own, so that this one's doings are not in the profile.
        let thread = scope.spawn(|| {
            let result = profile(interval, length);
            running.store(false, Ordering::Relaxed);
            result
        });
        while running.load(Ordering::Relaxed) && !thread.is_finished() {
            thread::sleep(Duration::from_millis(50));
            progress(since(before));
        }
        thread.join()
    });
    let histograms = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    Ok(Outcome { histograms, statistics: since(before) })
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

/// Runs the workload on this thread, with profile objects over this program's text.
fn profile(interval: u32, length: Duration) -> Result<Vec<Histogram>, Error> {
    let timer = ThreadTimer::new().map_err(Error::Timer)?;
    let interface = DefaultInterface::new();
    interface.set_interval(KProfileSource::TIME, interval.into()).map_err(Error::Interval)?;
    let memory: &CounterMemory = &CounterMemory::<[CounterSlot; 0]>::new();
    let mut session = interface.initialise(NoRegisters, &timer, memory).map_err(failed)?;
    let mut hardware = ThisProcessor::new(&mut session, PROCESSOR);

    let mut histograms = Histograms::default();
    let mut objects: Vec<&'static ProfileObject<'static>> = Vec::new();
    for mapping in own_text()? {
        let histogram = histograms.of(&mapping);
        let object = histogram
            .object(this_process(), mapping.start, KProfileSource::TIME, &hardware)
            .map_err(Error::Create)?;
        objects.push(object);
    }

    for object in &objects {
        PROFILES.start(object, &mut hardware).map_err(Error::Profile)?;
    }
    workload::run(length);
    for object in &objects {
        PROFILES.stop(object, &mut hardware).map_err(Error::Profile)?;
    }
    Ok(histograms.into_vec())
}

fn failed(error: InterfaceError) -> Error {
    Error::Profile(ProfileError::Hardware { processor: PROCESSOR, error })
}

/// The executable mappings of this program itself, without libraries.
fn own_text() -> Result<Vec<maps::Mapping>, Error> {
    let read = |path: &str| {
        std::fs::read_to_string(path).map_err(|error| Error::File { path: path.into(), error })
    };
    let program = std::env::current_exe()
        .map_err(|error| Error::File { path: "/proc/self/exe".into(), error })?;
    let mut mappings = maps::executable(&read("/proc/self/maps")?);
    mappings.retain(|mapping| mapping.path == program);
    Ok(mappings)
}

/// The registers of a processor without counters: nobody names one.
struct NoRegisters;

impl MsrBackend for NoRegisters {
    type Error = MsrErrorKind;

    fn read(&self, _: MsrAddress) -> Result<u64, Self::Error> {
        Err(MsrErrorKind::Unreachable)
    }

    fn write(&self, _: MsrAddress, _: u64) -> Result<(), Self::Error> {
        Err(MsrErrorKind::Unreachable)
    }

    fn read_pmc(&self, _: PmcIndex) -> Result<u64, Self::Error> {
        Err(MsrErrorKind::Unreachable)
    }
}
