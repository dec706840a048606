//! The error of trace records and of tracing.

use core::fmt;

use pmu_core::profile::{KProfileSource, NtStatus};

use crate::registry::control::ProfileError;
use crate::trace::event::records::CONTEXT_SWITCH_HOOK;
use crate::trace::record::MAX_PMC_SOURCES;

/// Reason why bytes are not a trace record, why a record could not be encoded, or why tracing was not configured,
/// started or stopped.
///
/// If an object cannot be stopped because of a [`Hardware`](ProfileError::Hardware) error, the requested change of
/// tracing is still made. After any other error, tracing is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum TraceError {
    /// There are fewer bytes than the length in the record's header, or the record is too short for the members of its
    /// event.
    TooShort,
    /// The marker in the record's header is this number, not the marker of a performance record.
    Marker(u32),
    /// The hook id of the record is this number, not the hook id of the expected event.
    Hook(u16),
    /// The record would have this number of elements, which is more than a record can have.
    TooMany(usize),
    /// The buffer is too small for the record.
    NoRoom {
        /// Number of bytes needed. A record has at most 0xFFFF bytes. If `needed` is higher, no buffer is large enough.
        needed: usize,
    },
    /// This version of Windows does not trace the events of this flag. [`PERF_PROFILE`](crate::trace::PERF_PROFILE)
    /// needs Windows XP or later. [`PERF_PMC_PROFILE`](crate::trace::PERF_PMC_PROFILE) needs Windows 8 or later.
    NotTraced(u32),
    /// No source was given.
    NoSource,
    /// More than [`MAX_PMC_SOURCES`] sources were given. The value is the number of sources.
    TooManySources(usize),
    /// This source was given twice.
    DuplicateSource(KProfileSource),
    /// PMC interrupts of this source cannot be traced: the hardware does not support the source, the source is
    /// `ProfileTime`, or the source's number is above 32,767.
    UnsupportedSource(KProfileSource),
    /// The sources of PMC interrupts cannot be changed while PMC interrupts are traced.
    Busy,
    /// The tracing of PMC interrupts was requested, but no sources are configured.
    NotConfigured,
    /// The records of this Windows version have no PEBS index: the version is before Windows 8.
    NoPebsIndex,
    /// The PEBS index cannot be recorded for the requested events. The only event that can be requested is
    /// [`CONTEXT_SWITCH_HOOK`]. This event requires [`TraceObjects`](crate::trace::TraceObjects) that were created by
    /// [`with_switches`](crate::trace::TraceObjects::with_switches).
    PebsHook,
    /// An object could not be started or stopped.
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

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort => f.write_str("the record is cut off"),
            Self::Marker(marker) => write!(f, "marker {marker:#010X} is no performance record's"),
            Self::Hook(hook) => write!(f, "hook {hook:#06X} is another event's"),
            Self::TooMany(count) => write!(f, "{count} are more than a record can have"),
            Self::NoRoom { needed } => write!(f, "there is no room for {needed} bytes"),
            Self::NotTraced(flag) => write!(f, "this version does not trace {flag:#010X}"),
            Self::NoSource => f.write_str("no source is given"),
            Self::TooManySources(n) => write!(f, "{n} sources; at most {MAX_PMC_SOURCES} can be"),
            Self::DuplicateSource(source) => write!(f, "{source} is given twice"),
            Self::UnsupportedSource(source) => write!(f, "{source} cannot be traced"),
            Self::Busy => f.write_str("PMC interrupts are being traced"),
            Self::NotConfigured => f.write_str("no PMC sources are configured"),
            Self::NoPebsIndex => f.write_str("this version has no PEBS index"),
            Self::PebsHook => write!(
                f,
                "only context switches, hook {CONTEXT_SWITCH_HOOK:#06X}, can have the PEBS index"
            ),
            Self::Profile(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for TraceError {}

impl From<ProfileError> for TraceError {
    fn from(error: ProfileError) -> Self {
        Self::Profile(error)
    }
}
