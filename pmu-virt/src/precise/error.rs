//! Reasons why a processor cannot have precise records as configured.

use core::fmt;

/// Reason why precise records cannot be combined with a PMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum PreciseConfigurationError {
    /// The processor has [no PMU](crate::Configuration::Hidden), or a PMU that is not Intel's.
    OtherVendor,
    /// The PMU's version is too low. Records in the Debug Store need version 2 or later, and architectural PEBS needs
    /// version 6. The value is the PMU's version.
    Version(u8),
    /// The format of the records is not 0–6. The value is the format.
    Format(u8),
    /// The field [`baseline`](crate::DebugStoreRecords::baseline) needs format 4 or later. The value is the format.
    Baseline(u8),
    /// The configuration has counters that cannot write records. In formats 0–2, only the first four general counters
    /// can write records. Fixed counters need [`baseline`](crate::DebugStoreRecords::baseline). The value is the bitmap
    /// of the counters that cannot write records.
    Counters(u8),
    /// The field [`metrics`](crate::DebugStoreRecords::metrics) needs [`baseline`](crate::DebugStoreRecords::baseline)
    /// and format 6. The value is the format.
    Metrics(u8),
    /// The field [`groups`](crate::ArchitecturalRecords::groups) has bits set that stand for no group of a record. The
    /// value has only these bits.
    Groups(u32),
}

impl fmt::Display for PreciseConfigurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherVendor => f.write_str("the PMU is another vendor's, or hidden"),
            Self::Version(version) => write!(f, "precise records in version {version} of the PMU"),
            Self::Format(format) => write!(f, "the format {format} of precise records is not 0-6"),
            Self::Baseline(format) => write!(f, "adaptive records in format {format}"),
            Self::Counters(bitmap) => {
                write!(f, "counters {bitmap:#b} cannot write records in this format")
            }
            Self::Metrics(format) => write!(f, "metrics in records of format {format}"),
            Self::Groups(bits) => write!(f, "no groups {bits:#x} of architectural records"),
        }
    }
}

impl core::error::Error for PreciseConfigurationError {}
