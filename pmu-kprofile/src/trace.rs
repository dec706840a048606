//! Event tracing: writes trace records on profile interrupts and on context switches.
//!
//! - `callbacks`: the callbacks that Windows' kernel has built in; begin here
//! - `control` (feature `critical-section`), with `group_mask`: the objects of these callbacks, the records of context
//!   switches, and the control that starts and stops both
//! - `interval_services`: sets intervals, and traces them
//! - `traced_pmc`: selects the counters whose values the records contain
//! - `ring`: a ring into which one processor's interrupts write records, and which a task drains
//! - `record`, `event`: records as bytes, and the events that they describe
//!
//! This module may use every other module except `index` and `compat`. No other module uses `trace`.

pub(crate) mod callbacks;
#[cfg(feature = "critical-section")]
pub(crate) mod control;
pub(crate) mod group_mask;
pub(crate) mod interval_services;
pub(crate) mod record;
pub(crate) mod ring;
pub(crate) mod traced_pmc;

pub use callbacks::{CacheErrata, TraceCallback};
#[cfg(feature = "critical-section")]
pub use control::{SwitchTrace, TraceControl, TraceObjects};
pub use event::*;
pub use group_mask::*;
pub use interval_services::IntervalServices;
pub use record::{
    Extended, MAX_PMC_SOURCES, MAX_PMC_VALUES, PEBS_INDEX_FLAG, PMC_COUNT_MASK, RECORD_VERSION,
    Record, RecordBytes, Utf16,
};
pub use ring::{Drain, StackRing, SwitchRing, TraceRing};
pub use traced_pmc::{CounterSets, LoggerFacts, MAX_TRACED_COUNTERS, MAX_TRACED_HOOKS, TracedPmc};

/// The events that trace records describe. The type of each event has the members of the event's record.
///
/// Each event has a line in `table`. This module may use `record`.
pub(crate) mod event {
    pub(crate) mod records;
    pub(crate) mod sample;
    pub(crate) mod table;

    pub use records::*;
    pub use sample::*;
    pub use table::*;
}

use pmu_core::profile::{KProfileSource, NtStatus};

use crate::registry::control::ProfileError;

/// Reason why bytes are not a trace record, why a record could not be encoded, or why tracing was not configured,
/// started or stopped.
///
/// If an object cannot be stopped because of a [`Hardware`](ProfileError::Hardware) error, the requested change of
/// tracing is still made. After any other error, tracing is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum TraceError {
    /// There are fewer bytes than the length in the record's header, or the record is too short for the members of its
    /// event.
    #[error("the record is cut off")]
    TooShort,
    /// The marker in the record's header is this number, not the marker of a performance record.
    #[error("marker {0:#010X} is no performance record's")]
    Marker(u32),
    /// The hook id of the record is this number, not the hook id of the expected event.
    #[error("hook {0:#06X} is another event's")]
    Hook(u16),
    /// The record would have this number of elements, which is more than a record can have.
    #[error("{0} are more than a record can have")]
    TooMany(usize),
    /// The buffer is too small for the record.
    #[error("there is no room for {needed} bytes")]
    NoRoom {
        /// Number of bytes needed. A record has at most 0xFFFF bytes. If `needed` is higher, no buffer is large enough.
        needed: usize,
    },
    /// This version of Windows does not trace the events of this flag. [`PERF_PROFILE`]
    /// needs Windows XP or later. [`PERF_PMC_PROFILE`] needs Windows 8 or later.
    #[error("this version does not trace {0:#010X}")]
    NotTraced(u32),
    /// No source was given.
    #[error("no source is given")]
    NoSource,
    /// More than [`MAX_PMC_SOURCES`] sources were given. The value is the number of sources.
    #[error("{0} sources; at most {MAX_PMC_SOURCES} can be")]
    TooManySources(usize),
    /// This source was given twice.
    #[error("{0} is given twice")]
    DuplicateSource(KProfileSource),
    /// PMC interrupts of this source cannot be traced: the hardware does not support the source, the source is
    /// `ProfileTime`, or the source's number is above 32,767.
    #[error("{0} cannot be traced")]
    UnsupportedSource(KProfileSource),
    /// The sources of PMC interrupts cannot be changed while PMC interrupts are traced.
    #[error("PMC interrupts are being traced")]
    Busy,
    /// The tracing of PMC interrupts was requested, but no sources are configured.
    #[error("no PMC sources are configured")]
    NotConfigured,
    /// The records of this Windows version have no PEBS index: the version is before Windows 8.
    #[error("this version has no PEBS index")]
    NoPebsIndex,
    /// The PEBS index cannot be recorded for the requested events. The only event that can be requested is
    /// [`CONTEXT_SWITCH_HOOK`]. This event requires `TraceObjects` that were created by
    /// `with_switches` (feature `critical-section`).
    #[error("only context switches, hook {CONTEXT_SWITCH_HOOK:#06X}, can have the PEBS index")]
    PebsHook,
    /// An object could not be started or stopped.
    #[error("{0}")]
    Profile(ProfileError),
}

impl TraceError {
    /// Returns the status that Windows returns for this error; `None` if Windows has no status for this error.
    pub const fn status(&self) -> Option<NtStatus> {
        match self {
            Self::NoSource
            | Self::TooManySources(_)
            | Self::DuplicateSource(_)
            | Self::PebsHook => Some(NtStatus::INVALID_PARAMETER),
            Self::NotTraced(_) | Self::UnsupportedSource(_) | Self::NoPebsIndex => {
                Some(NtStatus::NOT_SUPPORTED)
            }
            Self::TooShort
            | Self::Marker(_)
            | Self::Hook(_)
            | Self::TooMany(_)
            | Self::NoRoom { .. }
            | Self::Busy
            | Self::NotConfigured => None,
            Self::Profile(error) => error.status(),
        }
    }
}

impl From<ProfileError> for TraceError {
    fn from(error: ProfileError) -> Self {
        Self::Profile(error)
    }
}
