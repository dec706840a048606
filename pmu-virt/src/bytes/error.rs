//! Reasons why bytes are refused.

use core::fmt;

use crate::configuration::error::ConfigurationError;
use crate::pmu::state_error::StateError;

/// Reason why bytes cannot be decoded as a state or a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum BytesError {
    /// The number of bytes is wrong. The value is the number of bytes that were given.
    Length(usize),
    /// The bytes have a layout version that this release does not know. The value is the version.
    Version(u16),
    /// A byte has an impossible value. The index of this byte is `at` or higher.
    Malformed {
        /// Lowest index at which the impossible byte can be. The first byte has index 0.
        at: usize,
    },
    /// The configuration contradicts itself.
    Configuration(ConfigurationError),
    /// The bytes hold a state that no guest could have reached.
    State(StateError),
    /// The bytes lack the value of a register. The value is the register's address.
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
