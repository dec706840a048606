//! The error of starting and stopping profiles.

use core::fmt;

use pmu_core::frame::ProcessorNumber;
use pmu_core::profile::{InterfaceError, NtStatus};
use pmu_core::windows::Rules;

/// Reason why a profile was not started, or was not stopped, on at least one of its processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum ProfileError {
    /// The object is already started.
    AlreadyStarted,
    /// The object is not started.
    NotStarted,
    /// The object is started on another [`Profiles`](crate::Profiles).
    OnAnotherList,
    /// The rules of the object (Windows version and pointer width) differ from the rules of the
    /// [`Profiles`](crate::Profiles).
    OtherRules {
        /// The rules of the object.
        object: Rules,
        /// The rules of the [`Profiles`](crate::Profiles).
        lists: Rules,
    },
    /// No further profile can be started. The [`Profiles`](crate::Profiles) already has `N` started objects, or the
    /// limit of the Windows version is reached.
    AtLimit,
    /// The kernel could not look up the handle, or could not prepare the buffer. The value is the status of this
    /// failure: see [`Profiles::try_start_service`](crate::Profiles::try_start_service).
    Caller(NtStatus),
    /// Nothing was changed: retry later. Another task may be starting or stopping a profile. Or a dispatch is still
    /// under way that began before the last start or stop.
    Busy,
    /// The call came from an interrupt or a callback; only task context may start and stop profiles.
    WrongContext,
    /// None of the object's processors is active.
    NoProcessor,
    /// This processor is active and is to be profiled, but its index is too high: it must be below the parameter `P` of
    /// the [`Profiles`](crate::Profiles). Nothing is started on the processor, because its interrupts would not be
    /// dispatched.
    ProcessorBeyondLists(ProcessorNumber),
    /// Starting or stopping a source failed on a processor.
    ///
    /// If starting an object fails, the start is undone. If undoing the start also fails, this error tells where the
    /// undoing failed. If a stop or an update of processors fails, the call continues with the other sources and
    /// processors, and returns the first failure.
    Hardware {
        /// The processor on which the operation failed.
        processor: ProcessorNumber,
        /// The reason of the failure.
        error: InterfaceError,
    },
}

impl ProfileError {
    /// Returns the status with which Windows reports this error; `None` if Windows has no status for it.
    pub const fn status(&self) -> Option<NtStatus> {
        match self {
            Self::AlreadyStarted | Self::OnAnotherList => Some(NtStatus::PROFILING_NOT_STOPPED),
            Self::NotStarted => Some(NtStatus::PROFILING_NOT_STARTED),
            Self::AtLimit => Some(NtStatus::PROFILING_AT_LIMIT),
            Self::Caller(status) => Some(*status),
            Self::OtherRules { .. }
            | Self::WrongContext
            | Self::Busy
            | Self::NoProcessor
            | Self::ProcessorBeyondLists(_) => None,
            Self::Hardware { error, .. } => error.status(),
        }
    }
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyStarted => f.write_str("the profile is already started"),
            Self::NotStarted => f.write_str("the profile is not started"),
            Self::OnAnotherList => f.write_str("the profile is started on other lists"),
            Self::OtherRules { object, lists } => {
                write!(f, "the profile was created for {object}, and the lists are for {lists}")
            }
            Self::AtLimit => f.write_str("as many profiles are started as there can be"),
            Self::Caller(status) => write!(f, "the caller is refused: {status:?}"),
            Self::Busy => {
                f.write_str("another task starts or stops profiles, or an interrupt is dispatched")
            }
            Self::WrongContext => f.write_str("only task context may start and stop profiles"),
            Self::NoProcessor => f.write_str("none of the profile's processors is active"),
            Self::ProcessorBeyondLists(processor) => {
                write!(f, "the lists are for fewer processors than {processor}")
            }
            Self::Hardware { processor, error } => write!(f, "processor {processor}: {error}"),
        }
    }
}

impl core::error::Error for ProfileError {}
