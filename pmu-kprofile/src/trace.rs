//! Event tracing on profile interrupts: the kernel's built-in callback objects, the records that
//! they write, the ring that holds them, and what starts and stops it all.

mod builtin;
#[cfg(feature = "critical-section")]
mod control;
mod group_mask;
mod record;
mod ring;

pub use builtin::{CacheErrata, TraceCallback};
#[cfg(feature = "critical-section")]
pub use control::{MAX_PMC_SOURCES, TraceControl, TraceError, TraceObjects};
pub use group_mask::{EVENT_TRACE_FLAG_PROFILE, GroupMask, PERF_PMC_PROFILE, PERF_PROFILE};
pub use record::{Detail, Hook, RecordBytes, RecordError, TraceRecord};
pub use ring::{Drain, TraceRing};
