//! The Firefox Profiler's processed format, written by `fxprof-processed-profile`.

use core::time::Duration;
use std::collections::HashMap;

use fxprof_processed_profile::{
    CategoryColor, CpuDelta, Frame, FrameFlags, FrameInfo, Profile, ReferenceTimestamp,
    SamplingInterval, Timestamp,
};

use crate::profiler::graph::Graph;

/// Returns the profile as JSON. `start` is when it began, in nanoseconds since 1970; an interrupt stands for
/// `nanoseconds` of processor time, where it does for time.
///
/// # Errors
/// A name cannot be written as JSON.
pub fn write(
    graph: &Graph,
    product: &str,
    start: u64,
    nanoseconds: Option<u64>,
) -> serde_json::Result<String> {
    let reference = ReferenceTimestamp::from_duration_since_unix_epoch(Duration::from_nanos(start));
    let interval = SamplingInterval::from_nanos(nanoseconds.unwrap_or(1_000_000));
    let mut profile = Profile::new(product, reference, interval);
    profile.set_os_name("Linux");
    // All that is named here is named already.
    profile.set_symbolicated(true);
    let user = profile.add_category("User", CategoryColor::Yellow);
    let kernel = profile.add_category("Kernel", CategoryColor::Orange);

    let origin = graph.samples.iter().map(|sample| sample.time).min().unwrap_or(0);
    let zero = Timestamp::from_nanos_since_reference(0);
    let mut processes = HashMap::new();
    let mut threads = Vec::with_capacity(graph.threads.len());
    for thread in &graph.threads {
        let process = *processes
            .entry(thread.process)
            .or_insert_with(|| profile.add_process(&thread.process_name, thread.process, zero));
        let is_main = thread.thread == thread.process;
        let handle = profile.add_thread(process, thread.thread, zero, is_main);
        profile.set_thread_name(handle, &thread.name);
        threads.push(handle);
    }
    for sample in &graph.samples {
        let thread = threads[sample.thread];
        let mut frames = Vec::with_capacity(graph.stacks[sample.stack].len());
        for frame in &graph.stacks[sample.stack] {
            let named = &graph.frames[*frame];
            let name = if named.frame.name.starts_with('[') {
                named.frame.name.clone()
            } else {
                format!("{} ({})", named.frame.name, named.module)
            };
            let category = if named.kernel { kernel } else { user };
            frames.push(FrameInfo {
                frame: Frame::Label(profile.intern_string(&name)),
                category_pair: category.into(),
                flags: FrameFlags::empty(),
            });
        }
        let stack = profile.intern_stack_frames(thread, frames.into_iter());
        let time = Timestamp::from_nanos_since_reference(sample.time - origin);
        let consumed = nanoseconds.unwrap_or(0) * u64::from(sample.interrupts);
        let weight = sample.interrupts.try_into().unwrap_or(i32::MAX);
        profile.add_sample(thread, time, stack, CpuDelta::from_nanos(consumed), weight);
    }
    serde_json::to_string(&profile)
}
