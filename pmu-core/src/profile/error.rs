//! The errors of profile sources, and the status with which Windows reports them.

use core::fmt;

use crate::counters::error::{CounterError, EventsError};
use crate::frame::ProcessorNumber;
use crate::interval::IntervalError;
use crate::platform::PlatformError;
use crate::profile::source::KProfileSource;

/// Error of an operation on a profile interface.
///
/// A failed operation changes nothing. The only exception is the error [`CounterError::StateUnknown`]. After an error
/// of [`Session::take`](crate::profile::Session::take), no counter runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum InterfaceError {
    /// The interface or this processor does not support the source.
    #[error("{0} is not supported")]
    UnsupportedSource(KProfileSource),
    /// Every counter that could count the source is in use.
    #[error("no free counter for {0}")]
    NoFreeCounter(KProfileSource),
    /// The source already runs on this processor.
    #[error("{0} is already started")]
    AlreadyStarted(KProfileSource),
    /// The source does not run on this processor.
    #[error("{0} is not started")]
    NotStarted(KProfileSource),
    /// The interval is outside the source's limits.
    #[error("{0}")]
    Interval(IntervalError),
    /// The platform has no profile timer, or the timer cannot run at the interval.
    #[error("{0}")]
    Platform(PlatformError),
    /// Within the time that the embedder waits, the processor did not answer a request to start or stop a source. After
    /// an unanswered start, the source does not run on that processor. If the processor handles the request later, the
    /// source is stopped again. After an unanswered stop, the source stops when the processor handles the request.
    #[error("processor {0} does not answer")]
    NoAnswer(ProcessorNumber),
    /// The processor has no session, because the kernel has not taken the processor's counters, or has released them.
    #[error("processor {0} has no session")]
    NoSession(ProcessorNumber),
    /// An operation on the processor's counters failed, or the processor cannot count the event of an added source.
    #[error(transparent)]
    Counters(CounterError),
    /// A source with this value exists already.
    #[error("{0} was added before")]
    Exists(KProfileSource),
    /// The [`AddedSources`](crate::profile::AddedSources) have no free slot.
    #[error("room for {room} added sources, and no more")]
    Full {
        /// Number of sources for which the [`AddedSources`](crate::profile::AddedSources) have room.
        room: usize,
    },
    /// The event of an added source has no period, so it does not interrupt; or it is sampled at a
    /// [frequency](crate::Event::at_frequency), so its period changes, and a source's interval does not.
    #[error("a source's event needs a period of its own, and no frequency")]
    NoPeriod,
}

impl InterfaceError {
    /// Returns the status with which Windows reports this error; `None` if Windows has no status for this error.
    ///
    /// ```
    /// # use pmu_core::profile::{InterfaceError, NtStatus};
    /// /// The result of a system service.
    /// fn result(outcome: Result<(), InterfaceError>) -> NtStatus {
    ///     match outcome {
    ///         Ok(()) => NtStatus::SUCCESS,
    ///         Err(error) => error.status().unwrap_or(NtStatus::NOT_SUPPORTED),
    ///     }
    /// }
    /// # let _ = result;
    /// ```
    pub const fn status(&self) -> Option<NtStatus> {
        match self {
            Self::UnsupportedSource(_) => Some(NtStatus::NOT_SUPPORTED),
            Self::NoFreeCounter(_)
            | Self::Counters(
                CounterError::NoFreeCounter | CounterError::InsufficientMemory { .. },
            ) => Some(NtStatus::INSUFFICIENT_RESOURCES),
            Self::AlreadyStarted(_) => Some(NtStatus::PROFILING_NOT_STOPPED),
            Self::NotStarted(_) => Some(NtStatus::PROFILING_NOT_STARTED),
            // Windows' call to set an interval always succeeds, and Windows does not have the other errors.
            Self::Interval(_)
            | Self::Platform(_)
            | Self::NoAnswer(_)
            | Self::NoSession(_)
            | Self::Counters(_)
            | Self::Exists(_)
            | Self::Full { .. }
            | Self::NoPeriod => None,
        }
    }
}

impl From<IntervalError> for InterfaceError {
    fn from(error: IntervalError) -> Self {
        Self::Interval(error)
    }
}

impl From<PlatformError> for InterfaceError {
    fn from(error: PlatformError) -> Self {
        Self::Platform(error)
    }
}

impl From<CounterError> for InterfaceError {
    fn from(error: CounterError) -> Self {
        Self::Counters(error)
    }
}

impl From<EventsError> for InterfaceError {
    fn from(error: EventsError) -> Self {
        Self::Counters(error.reason)
    }
}

/// An `NTSTATUS` value, with its name. Source: [MS-ERREF] §2.3.1.
///
/// ```
/// use pmu_core::profile::NtStatus;
/// let status = NtStatus::PROFILING_AT_LIMIT;
/// assert_eq!((status.value(), status.name()), (0xC000_00D3, "STATUS_PROFILING_AT_LIMIT"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct NtStatus(u32);

macro_rules! statuses {
    ($($constant:ident = $value:literal $name:literal;)*) => {
        impl NtStatus {
            $(#[doc = concat!("`", $name, "`, ", stringify!($value), ".")]
            pub const $constant: Self = Self($value);)*

            /// All status values that have a constant here. Windows' profiling calls return these values.
            pub const ALL: &[Self] = &[$(Self::$constant),*];

            /// Returns the name of the status in NTSTATUS.H.
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($value => $name,)*
                    _ => "(unnamed)",
                }
            }
        }
    };
}

statuses! {
    SUCCESS = 0x0000_0000 "STATUS_SUCCESS";
    DATATYPE_MISALIGNMENT = 0x8000_0002 "STATUS_DATATYPE_MISALIGNMENT";
    BUFFER_OVERFLOW = 0x8000_0005 "STATUS_BUFFER_OVERFLOW";
    NOT_IMPLEMENTED = 0xC000_0002 "STATUS_NOT_IMPLEMENTED";
    INVALID_INFO_CLASS = 0xC000_0003 "STATUS_INVALID_INFO_CLASS";
    INFO_LENGTH_MISMATCH = 0xC000_0004 "STATUS_INFO_LENGTH_MISMATCH";
    ACCESS_VIOLATION = 0xC000_0005 "STATUS_ACCESS_VIOLATION";
    INVALID_HANDLE = 0xC000_0008 "STATUS_INVALID_HANDLE";
    INVALID_PARAMETER = 0xC000_000D "STATUS_INVALID_PARAMETER";
    NO_MEMORY = 0xC000_0017 "STATUS_NO_MEMORY";
    INVALID_SYSTEM_SERVICE = 0xC000_001C "STATUS_INVALID_SYSTEM_SERVICE";
    ACCESS_DENIED = 0xC000_0022 "STATUS_ACCESS_DENIED";
    BUFFER_TOO_SMALL = 0xC000_0023 "STATUS_BUFFER_TOO_SMALL";
    OBJECT_TYPE_MISMATCH = 0xC000_0024 "STATUS_OBJECT_TYPE_MISMATCH";
    PRIVILEGE_NOT_HELD = 0xC000_0061 "STATUS_PRIVILEGE_NOT_HELD";
    INSUFFICIENT_RESOURCES = 0xC000_009A "STATUS_INSUFFICIENT_RESOURCES";
    MEMORY_NOT_ALLOCATED = 0xC000_00A0 "STATUS_MEMORY_NOT_ALLOCATED";
    PROFILING_NOT_STARTED = 0xC000_00B7 "STATUS_PROFILING_NOT_STARTED";
    PROFILING_NOT_STOPPED = 0xC000_00B8 "STATUS_PROFILING_NOT_STOPPED";
    NOT_SUPPORTED = 0xC000_00BB "STATUS_NOT_SUPPORTED";
    PROFILING_AT_LIMIT = 0xC000_00D3 "STATUS_PROFILING_AT_LIMIT";
    INVALID_PARAMETER_7 = 0xC000_00F5 "STATUS_INVALID_PARAMETER_7";
    ADDRESS_ALREADY_EXISTS = 0xC000_020A "STATUS_ADDRESS_ALREADY_EXISTS";
    WMI_INSTANCE_NOT_FOUND = 0xC000_0296 "STATUS_WMI_INSTANCE_NOT_FOUND";
    WMI_ALREADY_ENABLED = 0xC000_0303 "STATUS_WMI_ALREADY_ENABLED";
}

impl NtStatus {
    /// Returns the status as a number.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Returns whether the status has the severity success or informational, as `NT_SUCCESS` does. For a warning such
    /// as [`BUFFER_OVERFLOW`](Self::BUFFER_OVERFLOW) the result is `false`.
    ///
    /// ```
    /// # use pmu_core::profile::NtStatus;
    /// assert!(NtStatus::SUCCESS.is_success());
    /// assert!(!NtStatus::BUFFER_OVERFLOW.is_success()); // a warning
    /// ```
    pub const fn is_success(self) -> bool {
        self.0 < 0x8000_0000
    }
}

impl fmt::Debug for NtStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:#010X})", self.name(), self.0)
    }
}
