//! Errors of a sampler.

use core::fmt;

use pmu_core::{ExtendedEntryError, MsrFault};

use crate::ibs::sampling::IbsSamplingError;

/// Error of an [`IbsSampler`](crate::ibs::IbsSampler).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum IbsError {
    /// The memory belongs to another sampler that was not shut down.
    MemoryInUse,
    /// Firmware assigned no entry of the local vector table (`IBS_CTL` bit 8), so the unit cannot interrupt.
    NoInterrupt,
    /// The platform cannot use the entry of the local vector table that firmware assigned.
    Entry(ExtendedEntryError),
    /// The unit does not support the request.
    Sampling(IbsSamplingError),
    /// The sampler was shut down.
    ShutDown,
    /// The unit is [suspended](pmu_core::CounterSession::lend_with) together with the counters.
    Lent,
    /// An access to a register of the unit failed. The unit does not sample.
    Access(MsrFault),
    /// An access to a register of the unit failed, so the unit could not be stopped and may still sample.
    Faulted(MsrFault),
}

impl fmt::Display for IbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MemoryInUse => {
                f.write_str("the memory belongs to a sampler that was not shut down")
            }
            Self::NoInterrupt => {
                f.write_str("firmware assigned no interrupt to instruction-based sampling")
            }
            Self::Entry(error) => error.fmt(f),
            Self::Sampling(error) => error.fmt(f),
            Self::ShutDown => f.write_str("the sampler was shut down"),
            Self::Lent => f.write_str("the sampling unit is lent"),
            Self::Access(fault) => write!(f, "nothing is sampled: {fault}"),
            Self::Faulted(fault) => write!(f, "the sampling cannot be stopped: {fault}"),
        }
    }
}

impl core::error::Error for IbsError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Entry(error) => Some(error),
            Self::Sampling(error) => Some(error),
            Self::Access(fault) | Self::Faulted(fault) => Some(fault),
            _ => None,
        }
    }
}

impl From<IbsSamplingError> for IbsError {
    fn from(error: IbsSamplingError) -> Self {
        Self::Sampling(error)
    }
}
