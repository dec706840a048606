//! Reasons why bytes are refused.

use core::fmt;

use crate::configuration::error::ConfigurationError;
use crate::pmu::state_error::StateError;

/// Reason for which bytes are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum BytesError {
    /// Too few bytes, or too many: their number.
    Length(usize),
    /// A layout of a later release, or of none.
    Version(u16),
    /// An impossible byte, at or after this place.
    Malformed {
        /// The place from 0.
        at: usize,
    },
    /// There is no such PMU.
    Configuration(ConfigurationError),
    /// No guest could have reached this state.
    State(StateError),
    /// A register's value is missing.
    Missing(u32),
}

impl fmt::Display for BytesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(length) => write!(f, "{length} bytes are not the length of this"),
            Self::Version(version) => write!(f, "bytes of version {version}, not 1"),
            Self::Malformed { at } => write!(f, "a byte at {at} or after cannot be"),
            Self::Configuration(error) => error.fmt(f),
            Self::State(error) => error.fmt(f),
            Self::Missing(address) => write!(f, "no value of register {address:#X}"),
        }
    }
}

impl core::error::Error for BytesError {}
