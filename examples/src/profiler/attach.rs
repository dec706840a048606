//! Profiling of processes that are running already.

use core::time::Duration;
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use pmu_kprofile::Statistics;

use super::call_graph::CallGraph;
use super::error::Error;
use super::perf::PerfEvents;
use super::perf_data::writer::Facts;
use super::sampling::Sampling;
use super::sampling::outcome::Outcome;
use super::sampling::selection::Selection;
use super::signals;
use crate::machine::Source;

/// The time between two looks into the ring buffers.
const READ_EACH: Duration = Duration::from_millis(10);

/// Ways to sample processes.
pub struct Options {
    /// The time after which they are left.
    pub limit: Option<Duration>,
    /// The processes and threads whose samples are kept.
    pub selection: Selection,
    /// The way to callers.
    pub call_graph: CallGraph,
    /// The file that the records are written into, in place of a profile.
    pub recording: Option<(PathBuf, Facts)>,
}

/// Samples the events' target until all its processes have ended, the time limit, or a
/// [request to stop](signals). The processes themselves go on.
///
/// # Errors
/// The kernel forbids sampling or has no such event; there is no such process.
pub fn run<E: PerfEvents>(
    events: E,
    source: &Source,
    interval: u32,
    options: Options,
    progress: impl Fn(Statistics),
) -> Result<Outcome, Error> {
    let Options { limit, selection, call_graph, recording } = options;
    let mut sampling: Sampling<E> = Sampling::start(events, source, interval, call_graph)?;
    sampling.select(selection);
    if let Some((path, facts)) = recording {
        sampling.record_into(&path, facts)?;
    }
    let start = Instant::now();
    let is_late = || limit.is_some_and(|limit| start.elapsed() >= limit);
    while sampling.is_running() && !is_late() && signals::requested().is_none() {
        thread::sleep(READ_EACH);
        sampling.read()?;
        progress(sampling.statistics());
    }
    // The rest may take its time, and is ended by a signal as any program is.
    signals::restore().map_err(Error::Signals)?;
    sampling.finish()
}
