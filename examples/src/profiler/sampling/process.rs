//! The processes that run while they are sampled.

use pmu_kprofile::ProfileObject;

use crate::profiler::maps::Mapping;
use crate::profiler::unwind::Unwinder;

/// A process that is running.
#[derive(Default)]
pub(super) struct Process {
    pub(super) threads: u32,
    pub(super) mappings: Vec<(Mapping, Object)>,
    /// The files' tables where they are mapped; made when they are needed first.
    pub(super) unwinder: Option<Unwinder>,
}

impl Process {
    /// A process with one thread.
    pub(super) fn new(mappings: Vec<(Mapping, Object)>) -> Self {
        Self { threads: 1, mappings, unwinder: None }
    }
}

/// The profile object of a mapping.
#[derive(Clone, Copy)]
pub(super) enum Object {
    /// Not needed before the first sample, which most mappings of short processes never have.
    Unhit,
    Started(&'static ProfileObject<'static>),
    /// Not created, or without room on the lists.
    Refused,
}
