//! Reasons why a processor cannot have branch records as configured.

use core::fmt;

/// Reason why a PMU cannot have branch records of the requested configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum BranchConfigurationError {
    /// The processor has [no PMU](crate::Configuration::Hidden), or the vendor of the PMU is not the vendor of the
    /// branch records.
    OtherVendor,
    /// Architectural branch records need a PMU of version 4 or later. The value is the PMU's version.
    Version(u8),
    /// AMD's branch records need a PMU with PerfMonV2.
    NoPerfMonV2,
    /// AMD: the number of records is not 1–16. The value is this number. Intel's architectural records: the bitmap of
    /// depths is 0, or has a depth above 32 records. The value is this bitmap.
    Depth(u8),
    /// The legacy format is not 3–7. The value is the format.
    Format(u8),
    /// The configuration has the call-stack mode, but lacks the filter by privilege or the filter by branch kind. The
    /// call-stack mode needs both filters.
    CallStackWithoutFilters,
    /// The bitmap [`ArchitecturalBranches::counters`](crate::ArchitecturalBranches::counters) has a bit other than 0–3,
    /// or the bit of a counter that the PMU lacks. The value is the bitmap.
    Counters(u8),
}

impl fmt::Display for BranchConfigurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherVendor => f.write_str("the PMU is another vendor's, or hidden"),
            Self::Version(version) => {
                write!(f, "architectural branch records in version {version} of the PMU")
            }
            Self::NoPerfMonV2 => f.write_str("AMD's branch records without PerfMonV2"),
            Self::Depth(depth) => write!(f, "{depth:#x} is no depth of branch records here"),
            Self::Format(format) => write!(f, "the format {format} of branch records is not 3-7"),
            Self::CallStackWithoutFilters => f.write_str("a call stack without both filters"),
            Self::Counters(bitmap) => {
                write!(f, "logged counters {bitmap:#b} are not among the first four")
            }
        }
    }
}

impl core::error::Error for BranchConfigurationError {}
