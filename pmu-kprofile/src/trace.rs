//! Event tracing: writes trace records on profile interrupts and on context switches.
//!
//! - `callbacks`: the callbacks that Windows' kernel has built in; begin here
//! - `objects` (feature `critical-section`): the objects of these callbacks, and the records of context switches
//! - `control` (feature `critical-section`), with `group_mask`: starts and stops all tracing
//! - `interval_services`: sets intervals, and traces them
//! - `traced_pmc`: selects the counters whose values the records contain
//! - `ring`: a ring into which one processor's interrupts write records, and which a task drains
//! - `record`, `event`: records as bytes, and the events that they describe
//!
//! This module may use every other module except `index` and `compat`. No other module uses `trace`.

pub(crate) mod callbacks;
#[cfg(feature = "critical-section")]
pub(crate) mod control;
pub(crate) mod error;
pub(crate) mod group_mask;
pub(crate) mod interval_services;
#[cfg(feature = "critical-section")]
pub(crate) mod objects;
pub(crate) mod record;
pub(crate) mod ring;
pub(crate) mod traced_pmc;

pub use callbacks::{CacheErrata, TraceCallback};
#[cfg(feature = "critical-section")]
pub use control::TraceControl;
pub use error::TraceError;
pub use event::*;
pub use group_mask::*;
pub use interval_services::IntervalServices;
#[cfg(feature = "critical-section")]
pub use objects::SwitchTrace;
#[cfg(feature = "critical-section")]
pub use objects::TraceObjects;
pub use record::{
    Extended, MAX_PMC_SOURCES, MAX_PMC_VALUES, PEBS_INDEX_FLAG, PMC_COUNT_MASK, RECORD_VERSION,
    Record, RecordBytes, Utf16,
};
pub use ring::{Drain, StackRing, SwitchRing, TraceRing};
pub use traced_pmc::{CounterSets, LoggerFacts, MAX_TRACED_COUNTERS, MAX_TRACED_HOOKS, TracedPmc};

/// The events that trace records describe. The type of each event has the members of the event's record.
///
/// Each event has a line in `table`. This module may use `record` and `error`.
pub(crate) mod event {
    pub(crate) mod records;
    pub(crate) mod sample;
    pub(crate) mod table;

    pub use records::*;
    pub use sample::*;
    pub use table::*;
}
