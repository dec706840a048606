//! Profiling by a recording.

use std::path::Path;

use pmu_core::interval::IntervalLimits;
use pmu_core::profile::{Availability, KProfileSource, SourceInformation};
use pmu_intel::Emon;
use pmu_kprofile::Statistics;

use super::call_graph::CallGraph;
use super::error::Error;
use super::perf_data::reader::{Reader, Recorded};
use super::sampling::Sampling;
use super::sampling::outcome::Outcome;
use super::sampling::selection::Selection;
use crate::machine::{Machine, Source};
use crate::untrusted::visible;

/// Profiles by a recording, and tells `progress` now and then what became of its samples so far.
///
/// # Errors
/// The file cannot be read, or is no recording.
pub fn run(
    path: &Path,
    selection: Selection,
    call_graph: CallGraph,
    progress: impl Fn(Statistics),
) -> Result<(Outcome, Recorded, Source), Error> {
    let failed = |error| Error::Read { path: path.to_string_lossy().into(), error };
    let reader = Reader::open(path).map_err(failed)?;
    let facts = reader.facts.clone();
    let source = source(&facts).ok_or(Error::NotX86)?;
    // The recording has its own interval.
    let mut sampling: Sampling<Reader> = Sampling::start(reader, &source, 1, call_graph)?;
    sampling.select(selection);
    while !sampling.has_ended() {
        sampling.read()?;
        if let Some(error) = sampling.failure() {
            return Err(failed(error));
        }
        progress(sampling.statistics());
    }
    Ok((sampling.finish()?, facts, source))
}

/// Returns the source that a recorded event stands for.
fn source(facts: &Recorded) -> Option<Source> {
    let mut source = Machine::with_interface(Emon::declared()).find("Timer").ok()?;
    source.name = Box::leak(visible(&facts.event).into_owned().into_boxed_str());
    if !facts.is_time {
        // Beside all numbers of tables.
        source.id = KProfileSource::new(u32::MAX).unwrap_or(KProfileSource::TOTAL_CYCLES);
        source.information = SourceInformation {
            source: source.id,
            availability: Availability::Declared,
            interval: 1,
            limits: IntervalLimits::EVENTS,
        };
    }
    Some(source)
}
