//! Errors of operations on a profile interface.

use core::fmt;

use crate::counters::error::CounterError;
use crate::frame::ProcessorNumber;
use crate::interval::IntervalError;
use crate::platform::PlatformError;
use crate::profile::source::KProfileSource;
use crate::profile::status::NtStatus;

/// Error of an operation on a profile interface.
///
/// A failed operation changes nothing. The only exception is the error [`CounterError::Faulted`]. After an error of
/// [`initialize`](crate::profile::ProfileInterface::initialize), no counter runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum InterfaceError {
    /// The interface or this processor does not support the source.
    UnsupportedSource(KProfileSource),
    /// Every counter that could count the source is in use.
    NoFreeCounter(KProfileSource),
    /// The source already runs on this processor.
    AlreadyStarted(KProfileSource),
    /// The source does not run on this processor.
    NotStarted(KProfileSource),
    /// The interval is outside the source's limits.
    Interval(IntervalError),
    /// The platform has no profile timer, or the timer cannot run at the interval.
    Platform(PlatformError),
    /// Within the time that the embedder waits, the processor did not answer a request to start or stop a source. After
    /// an unanswered start, the source does not run on that processor. If the processor handles the request later, the
    /// source is stopped again. After an unanswered stop, the source stops when the processor handles the request.
    NoAnswer(ProcessorNumber),
    /// The processor has no session, because the kernel has not taken the processor's counters, or has released them.
    NoSession(ProcessorNumber),
    /// An operation on the processor's counters failed, or the processor cannot count the event of an added source.
    Counters(CounterError),
    /// A source with this value exists already.
    Exists(KProfileSource),
    /// The [`AddedSources`](crate::profile::AddedSources) have no free slot.
    Full {
        /// Number of sources for which the [`AddedSources`](crate::profile::AddedSources) have room.
        room: usize,
    },
    /// The event of an added source does not interrupt, because it has no period.
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

impl fmt::Display for InterfaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnsupportedSource(source) => write!(f, "{source} is not supported"),
            Self::NoFreeCounter(source) => write!(f, "no free counter for {source}"),
            Self::AlreadyStarted(source) => write!(f, "{source} is already started"),
            Self::NotStarted(source) => write!(f, "{source} is not started"),
            Self::Interval(error) => error.fmt(f),
            Self::Platform(error) => error.fmt(f),
            Self::NoAnswer(processor) => write!(f, "processor {processor} does not answer"),
            Self::NoSession(processor) => write!(f, "processor {processor} has no session"),
            Self::Counters(error) => error.fmt(f),
            Self::Exists(source) => write!(f, "{source} was added before"),
            Self::Full { room } => write!(f, "room for {room} added sources, and no more"),
            Self::NoPeriod => f.write_str("an event without a period does not interrupt"),
        }
    }
}

impl core::error::Error for InterfaceError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Counters(error) => error.source(),
            _ => None,
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
