//! Reasons why one host, or two, have no configuration.

use core::fmt;

use crate::configuration::error::ConfigurationError;

/// Reason why one host, or two, have no configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum HostError {
    /// Neither of Intel's kind nor of AMD's.
    Vendor,
    /// CPUID tells of no PMU.
    NoPmu,
    /// More counters of a kind than the model has, or others than the first eight: the bitmap.
    Counters(u32),
    /// The model does not support this PMU.
    Configuration(ConfigurationError),
    /// Different vendors, or processors that hide their PMUs in different ways.
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
