//! Event tracing: writes trace records on profile interrupts and on context switches.
//!
//! - `trace_callback`, `cache_errata`: the callbacks that Windows' kernel has built in; begin here
//! - `switches` (feature `critical-section`): the built-in callback for context switches
//! - `control`, with `trace_objects` (feature `critical-section`) and `group_mask`: starts and stops all tracing
//! - `interval_services`: sets intervals, and traces them
//! - `traced_pmc`, with `counter_sets` and `once_list`: selects the counters whose values the records contain
//! - `ring`, `ring_slot`, `drain`, `record_bytes`: a ring into which one processor's interrupts write records, and
//!   which a task drains
//! - `record`, `event`, `extended`, `header`, `bytes`: records as bytes, and the events that they describe
//! - `error`: the error of records and of starting and stopping traces
//!
//! This module may use every other module except `index` and `compat`. No other module uses `trace`.

pub(crate) mod bytes;
pub(crate) mod cache_errata;
#[cfg(feature = "critical-section")]
pub(crate) mod control;
pub(crate) mod counter_sets;
pub(crate) mod drain;
pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod extended;
pub(crate) mod group_mask;
pub(crate) mod header;
pub(crate) mod interval_services;
mod once_list;
pub(crate) mod record;
pub(crate) mod record_bytes;
pub(crate) mod ring;
mod ring_slot;
#[cfg(feature = "critical-section")]
pub(crate) mod switches;
pub(crate) mod trace_callback;
#[cfg(feature = "critical-section")]
pub(crate) mod trace_objects;
pub(crate) mod traced_pmc;

pub use bytes::Utf16;
pub use cache_errata::CacheErrata;
#[cfg(feature = "critical-section")]
pub use control::TraceControl;
pub use counter_sets::CounterSets;
pub use drain::Drain;
pub use error::TraceError;
pub use event::*;
pub use extended::{Extended, MAX_PMC_SOURCES, MAX_PMC_VALUES};
pub use group_mask::*;
pub use header::{PEBS_INDEX_FLAG, PMC_COUNT_MASK, RECORD_VERSION};
pub use interval_services::IntervalServices;
pub use record::Record;
pub use record_bytes::RecordBytes;
pub use ring::{StackRing, SwitchRing, TraceRing};
#[cfg(feature = "critical-section")]
pub use switches::SwitchTrace;
pub use trace_callback::TraceCallback;
#[cfg(feature = "critical-section")]
pub use trace_objects::TraceObjects;
pub use traced_pmc::{LoggerFacts, MAX_TRACED_COUNTERS, MAX_TRACED_HOOKS, TracedPmc};
