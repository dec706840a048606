//! The outcome of sampling.

use pmu_kprofile::Statistics;

use crate::profiler::call_stacks::{CallStacks, Thread};
use crate::profiler::histogram::Histogram;
use crate::profiler::kept::Kept;
use crate::profiler::perf::setting::Setting;
use crate::profiler::perf::{Event, Request, Scope};
use crate::profiler::report::consumed::Consumed;
use crate::profiler::unwind::Used;

/// The outcome of sampling.
#[derive(Debug)]
pub struct Outcome {
    /// The buckets.
    pub histograms: Vec<Histogram>,
    /// The interrupts, hit and missed.
    pub statistics: Statistics,
    /// The call stacks.
    pub stacks: CallStacks,
    /// The files and bytes by which callers were found, where stacks were copied.
    pub used: Option<Used>,
    /// The processes' files and users.
    pub kept: Kept,
    /// The samples and the bytes that were recorded, where that was asked for.
    pub recorded: Option<(u64, u64)>,
    /// Set if the records were a recording's.
    pub is_replayed: bool,
    /// Records for which the ring buffers had no room.
    pub lost: u64,
    /// The number of times that the kernel paused the event, which came too often.
    pub throttled: u64,
    /// Mappings for which there was no room on the lists.
    pub unprofiled: u64,
    /// The command's consumption; `None` if the kernel does not tell.
    pub consumed: Option<Consumed>,
    /// The kernel's count for the selected and the others together, in the period's unit.
    pub counted: Option<u64>,
    /// Threads with samples that are not selected, those with the most first.
    pub left_out: Vec<Thread>,
    /// The event as it was opened.
    pub request: Request,
    /// The machine's permissions.
    pub setting: Setting,
}

impl Outcome {
    /// Returns what a reader of the profile should know of it.
    pub fn notes(&self) -> Vec<String> {
        let by_thread = || {
            let period = match self.request.event {
                Event::Clock => format!("{} µs", self.request.period as f64 / 1e3),
                Event::Raw(_) => format!("{} events", self.request.period),
            };
            let advice = self.setting.system_wide_advice();
            format!("up to {period} at the end of each thread are not sampled; {advice}")
        };
        [
            (self.request.scope == Scope::PerThread && !self.is_replayed).then(by_thread),
            (!self.request.kernel).then(|| self.setting.kernel_advice()),
            (self.lost > 0)
                .then(|| format!("{} records lost: the ring buffers were full", self.lost)),
            (self.throttled > 0).then(|| {
                format!("{} pauses by the kernel, for too many interrupts", self.throttled)
            }),
            (self.unprofiled > 0)
                .then(|| format!("{} mappings not profiled: the lists were full", self.unprofiled)),
            self.kept.note(),
            self.used.as_ref().filter(|used| used.stacks > 0).map(Used::describe),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}
