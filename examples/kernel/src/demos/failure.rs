//! The reasons why a run ends early.

use core::fmt;

use pmu::PmuError;
use pmu::core::access::AccessFault;
use pmu::core::branch_recording::BranchError;
use pmu::core::error::{CounterError, EventsError};
use pmu::core::profile::InterfaceError;
use pmu::intel::debug_store::ControlAreaError;
use pmu_kprofile::trace::TraceError;
use pmu_kprofile::{CreateError, ProfileError};

use crate::machine::serial::End;

/// Reason why a run ends early.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Failure {
    /// `Pmu` refused.
    Pmu(PmuError),
    /// The interface refused.
    Interface(InterfaceError),
    /// The counters refused.
    Counters(CounterError),
    /// The branch records refused.
    Branches(BranchError),
    /// The switch of a thread's events.
    Switch(EventsError),
    /// A profile object could not be created.
    Create(CreateError),
    /// A profile could not be started or stopped.
    Profile(ProfileError),
    /// Tracing could not be configured.
    Trace(TraceError),
    /// A Debug Store area could not be created.
    Area(ControlAreaError),
    /// A register faulted.
    Fault(AccessFault),
    /// The outcome is not the expected one.
    Wrong(&'static str),
}

impl Failure {
    /// Returns the state in which the machine ends.
    pub fn end(self) -> End {
        if let Self::Wrong(_) = self { End::Wrong } else { End::Error }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pmu(error) => error.fmt(f),
            Self::Interface(error) => error.fmt(f),
            Self::Counters(error) => error.fmt(f),
            Self::Branches(error) => error.fmt(f),
            Self::Switch(error) => error.fmt(f),
            Self::Create(error) => error.fmt(f),
            Self::Profile(error) => error.fmt(f),
            Self::Trace(error) => error.fmt(f),
            Self::Area(error) => error.fmt(f),
            Self::Fault(fault) => fault.fmt(f),
            Self::Wrong(what) => f.write_str(what),
        }
    }
}

macro_rules! from {
    ($($error:ty => $variant:ident;)*) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        })*
    };
}
from! {
    PmuError => Pmu;
    InterfaceError => Interface;
    CounterError => Counters;
    BranchError => Branches;
    CreateError => Create;
    ProfileError => Profile;
    TraceError => Trace;
    ControlAreaError => Area;
    AccessFault => Fault;
    EventsError => Switch;
}
