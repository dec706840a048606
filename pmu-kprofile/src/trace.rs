//! Event tracing on profile interrupts.
//!
//! - `builtin`: the callbacks that the kernel itself has; begin here
//! - `record`, `stack_walk`, `context_switch`, `interval_change`: the records, as bytes
//! - `ring`: a processor's records, between its interrupts and a task
//! - `group_mask`, `control` (feature `critical-section`): what starts and stops it all
//!
//! This folder may use everything of the crate but `index`, and nothing of the crate uses it.

mod builtin;
mod context_switch;
#[cfg(feature = "critical-section")]
mod control;
mod group_mask;
mod interval_change;
mod record;
mod ring;
mod stack_walk;

pub use builtin::{CacheErrata, TraceCallback};
pub use context_switch::{CONTEXT_SWITCH_HOOK, ContextSwitch, PebsHookError, PebsTracing};
#[cfg(feature = "critical-section")]
pub use control::{MAX_PMC_SOURCES, TraceControl, TraceError, TraceObjects};
pub use group_mask::{
    EVENT_TRACE_FLAG_PROFILE, GroupMask, PERF_CONTEXT_SWITCH, PERF_PMC_PROFILE, PERF_PROFILE,
};
pub use interval_change::{IntervalHook, IntervalRecord};
pub use record::{Detail, Hook, RecordBytes, RecordError, TraceRecord};
pub use ring::{Drain, StackRing, TraceRing};
pub use stack_walk::{MAX_RETURN_ADDRESSES, STACK_WALK_HOOK, StackWalk};
