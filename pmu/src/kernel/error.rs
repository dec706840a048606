//! The error of the operations of `Pmu`.

use core::fmt;

use pmu_core::branch_recording::BranchError;
use pmu_core::profile::InterfaceError;
use pmu_core::{CounterError, EventsError, NoFacility};
use pmu_kprofile::{CreateError, ProfileError};

use crate::per_processor::Busy;
use crate::perf::errno;

/// Reason why an operation of [`Pmu`](crate::Pmu) failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum PmuError {
    /// [`processor_up`](crate::Pmu::processor_up) was not called on this processor, or the call failed.
    NotUp,
    /// [`processor_up`](crate::Pmu::processor_up) was already called on this processor.
    IsUp,
    /// The processor is suspended: [`processor_suspended`](crate::Pmu::processor_suspended) was called, and
    /// [`processor_resumed`](crate::Pmu::processor_resumed) was not called yet.
    Suspended,
    /// The event belongs to the processor of this number, and the operation must be called there.
    OtherProcessor(usize),
    /// This processor's session is in use, or the [`Pmu`](crate::Pmu) has no slot for this processor.
    Session(Busy),
    /// A profile source could not be started or stopped, or `Pmu` could not take or release ownership of the
    /// processor's counters.
    Interface(InterfaceError),
    /// An event could not be opened, started, stopped or read.
    Counters(CounterError),
    /// A group of events could not be opened, started or read, or some events of a thread could not be switched in or
    /// out.
    Events(EventsError),
    /// The profile object could not be created.
    Create(CreateError),
    /// The profile could not be started or stopped.
    Profile(ProfileError),
    /// The processor has no branch records, or an operation on its branch records failed.
    Branches(BranchError),
    /// The processor has no precise records that it can use, or does not divide issue slots.
    Facility(NoFacility),
}

impl PmuError {
    /// Returns the `errno` value with which Linux' `perf_event_open` and `ioctl` refuse the operation, as a positive
    /// number: that of [`perf::errno`](crate::perf::errno()) for an error of the counters; `ENODEV` (19) for a
    /// processor that is not up; `EBUSY` (16) for a session or for branch records that are in use, lent or suspended;
    /// `EIO` (5) for branch records whose registers fail; `EOPNOTSUPP` (95) for hardware that the processor lacks;
    /// otherwise `EINVAL` (22).
    ///
    /// Source: `perf_event_open(2)`, "Errors".
    ///
    /// ```
    /// # use pmu::PmuError;
    /// # use pmu::core::CounterError;
    /// assert_eq!(PmuError::NotUp.errno(), 19);
    /// assert_eq!(PmuError::from(CounterError::NoCounterForEvent).errno(), 22);
    /// ```
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Counters(reason) | Self::Interface(InterfaceError::Counters(reason)) => {
                errno(*reason)
            }
            Self::Events(error) => errno(error.reason),
            Self::NotUp | Self::Session(Busy::NoPlace { .. }) => 19,
            Self::Suspended | Self::IsUp | Self::Session(_) => 16,
            Self::Branches(BranchError::MemoryInUse | BranchError::Lent) => 16,
            Self::Branches(
                BranchError::Access(_) | BranchError::Faulted(_) | BranchError::Xsaves(_),
            ) => 5,
            Self::Branches(_) | Self::Facility(_) => 95,
            Self::OtherProcessor(_) | Self::Interface(_) | Self::Create(_) | Self::Profile(_) => 22,
        }
    }
}

macro_rules! from {
    ($($variant:ident $error:ty,)*) => {
        $(impl From<$error> for PmuError {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        })*
    };
}

from! {
    Session Busy,
    Interface InterfaceError,
    Counters CounterError,
    Events EventsError,
    Create CreateError,
    Profile ProfileError,
    Branches BranchError,
    Facility NoFacility,
}

impl fmt::Display for PmuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotUp => f.write_str("this processor's counters were not taken"),
            Self::IsUp => f.write_str("this processor's counters were taken before"),
            Self::Suspended => f.write_str("this processor's counters are suspended"),
            Self::OtherProcessor(number) => write!(f, "the event is processor {number}'s"),
            Self::Session(error) => error.fmt(f),
            Self::Interface(error) => error.fmt(f),
            Self::Counters(error) => error.fmt(f),
            Self::Events(error) => error.fmt(f),
            Self::Create(error) => error.fmt(f),
            Self::Profile(error) => error.fmt(f),
            Self::Branches(error) => error.fmt(f),
            Self::Facility(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for PmuError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::NotUp | Self::IsUp | Self::Suspended | Self::OtherProcessor(_) => None,
            Self::Session(error) => Some(error),
            Self::Interface(error) => Some(error),
            Self::Counters(error) => Some(error),
            Self::Events(error) => Some(error),
            Self::Create(error) => Some(error),
            Self::Profile(error) => Some(error),
            Self::Branches(error) => Some(error),
            Self::Facility(error) => Some(error),
        }
    }
}
