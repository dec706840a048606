//! Event tracing on profile interrupts and context switches.
//!
//! - `builtin`: the kernel's built-in callbacks; begin here
//! - `switches` (feature `critical-section`): the same for context switches
//! - `interval_services`: what sets intervals, and traces them; `pmc`: the counters whose values records have
//! - `ring`: the records of one processor, from their writers to a task
//! - `record`, `event`, `bytes`: records as bytes, and the events that they describe
//! - `group_mask`, `control` (feature `critical-section`): starting and stopping of all tracing
//!
//! This folder may use everything of the crate except `index`, and nothing in the crate uses it.

mod builtin;
mod bytes;
#[cfg(feature = "critical-section")]
mod control;
mod event;
mod group_mask;
mod interval_services;
mod pmc;
mod record;
mod ring;
#[cfg(feature = "critical-section")]
mod switches;

pub use builtin::{CacheErrata, TraceCallback};
pub use bytes::Utf16;
#[cfg(feature = "critical-section")]
pub use control::{MAX_PMC_SOURCES, TraceControl, TraceError, TraceObjects};
pub use event::*;
pub use group_mask::*;
pub use interval_services::IntervalServices;
pub use pmc::{CounterSets, LoggerFacts, MAX_TRACED_COUNTERS, MAX_TRACED_HOOKS, TracedPmc};
pub use record::{
    Extended, MAX_PMC_VALUES, PEBS_INDEX_FLAG, PMC_COUNT_MASK, RECORD_VERSION, Record, RecordError,
};
pub use ring::{Drain, RecordBytes, StackRing, SwitchRing, TraceRing};
#[cfg(feature = "critical-section")]
pub use switches::SwitchTrace;
