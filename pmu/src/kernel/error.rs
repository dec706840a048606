//! The error of the operations of `Pmu`.

use core::fmt;

use pmu_core::branch_recording::BranchError;
use pmu_core::profile::{AddSourceError, InterfaceError};
use pmu_core::thread::SwitchError;
use pmu_core::{CounterError, GroupError};
use pmu_intel::precise::NoPrecise;
use pmu_intel::topdown::NoTopDown;
use pmu_kprofile::{CreateError, ProfileError};

use crate::per_processor::Busy;

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
    /// This processor's session is in use, or the [`Pmu`](crate::Pmu) has no slot for this processor.
    Session(Busy),
    /// A profile source could not be started or stopped, or `Pmu` could not take or release ownership of the
    /// processor's counters.
    Interface(InterfaceError),
    /// An event could not be opened, started, stopped or read.
    Counters(CounterError),
    /// A group of events could not be opened, started or read.
    Group(GroupError),
    /// At a context switch, some events of a thread could not be switched in or out.
    Switch(SwitchError),
    /// The event cannot be a profile source.
    Source(AddSourceError),
    /// The profile object could not be created.
    Create(CreateError),
    /// The profile could not be started or stopped.
    Profile(ProfileError),
    /// The processor has no branch records, or an operation on its branch records failed.
    Branches(BranchError),
    /// The processor has no precise records that it can use.
    Precise(NoPrecise),
    /// The processor does not divide issue slots.
    TopDown(NoTopDown),
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
    Group GroupError,
    Switch SwitchError,
    Source AddSourceError,
    Create CreateError,
    Profile ProfileError,
    Branches BranchError,
    Precise NoPrecise,
    TopDown NoTopDown,
}

impl fmt::Display for PmuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotUp => f.write_str("this processor's counters were not taken"),
            Self::IsUp => f.write_str("this processor's counters were taken before"),
            Self::Suspended => f.write_str("this processor's counters are suspended"),
            Self::Session(error) => error.fmt(f),
            Self::Interface(error) => error.fmt(f),
            Self::Counters(error) => error.fmt(f),
            Self::Group(error) => error.fmt(f),
            Self::Switch(error) => error.fmt(f),
            Self::Source(error) => error.fmt(f),
            Self::Create(error) => error.fmt(f),
            Self::Profile(error) => error.fmt(f),
            Self::Branches(error) => error.fmt(f),
            Self::Precise(error) => error.fmt(f),
            Self::TopDown(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for PmuError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::NotUp | Self::IsUp | Self::Suspended => None,
            Self::Session(error) => Some(error),
            Self::Interface(error) => Some(error),
            Self::Counters(error) => Some(error),
            Self::Group(error) => Some(error),
            Self::Switch(error) => Some(error),
            Self::Source(error) => Some(error),
            Self::Create(error) => Some(error),
            Self::Profile(error) => Some(error),
            Self::Branches(error) => Some(error),
            Self::Precise(error) => Some(error),
            Self::TopDown(error) => Some(error),
        }
    }
}
