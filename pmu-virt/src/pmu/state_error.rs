//! Reasons why a state is refused.

use core::fmt;

use crate::configuration::any_vendor::Configuration;
use crate::configuration::error::ConfigurationError;

/// Reason why a [`PmuState`](crate::PmuState) is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum StateError {
    /// The state's configuration has fields that contradict each other.
    Configuration(ConfigurationError),
    /// The state's configuration differs from the guest's configuration. The value is the state's configuration.
    OtherConfiguration(Configuration),
    /// No register at this address belongs to the [saved state](crate::RegisterInfo::is_state) of the PMU.
    NoRegister(u32),
    /// The value of a register has reserved bits set.
    Impossible {
        /// The register's address.
        address: u32,
        /// The reserved bits that are set.
        bits: u64,
    },
    /// An interrupt is pending in a PMU without a counter.
    NoInterrupt,
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configuration(error) => error.fmt(f),
            Self::OtherConfiguration(other) => write!(f, "state of another PMU: {other:?}"),
            Self::NoRegister(address) => write!(f, "no register {address:#X} holds state"),
            Self::Impossible { address, bits } => {
                write!(f, "register {address:#X} has no bits {bits:#X}")
            }
            Self::NoInterrupt => f.write_str("an interrupt is pending, and there is no counter"),
        }
    }
}

impl core::error::Error for StateError {}
