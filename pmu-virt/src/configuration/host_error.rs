//! Reasons why no configuration can be derived from one host, or from two hosts together.

use core::fmt;

use crate::configuration::error::ConfigurationError;

/// Reason why [`Configuration::from_cpuid`](crate::Configuration::from_cpuid) or
/// [`Configuration::intersect`](crate::Configuration::intersect) returns no configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum HostError {
    /// The vendor in CPUID leaf 0 is unknown.
    Vendor,
    /// CPUID declares no PMU.
    NoPmu,
    /// The host has a general counter or a fixed counter with the number 8 or above. The value is the bitmap of all the
    /// host's general counters, or of all the host's fixed counters.
    Counters(u32),
    /// The host's PMU has a property that a [`VirtualPmu`](crate::VirtualPmu) cannot have.
    Configuration(ConfigurationError),
    /// The two hosts have different vendors. Or neither host [has a PMU](crate::Configuration::Hidden), and the two
    /// hosts answer accesses to PMU registers differently.
    NothingInCommon,
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vendor => f.write_str("neither Intel's kind of processor nor AMD's"),
            Self::NoPmu => f.write_str("the processor has no PMU"),
            Self::Counters(bitmap) => {
                write!(f, "counters {bitmap:#b}: the model has those from 0 to 7 of a kind")
            }
            Self::Configuration(error) => error.fmt(f),
            Self::NothingInCommon => f.write_str("these processors have no PMU in common"),
        }
    }
}

impl core::error::Error for HostError {}
