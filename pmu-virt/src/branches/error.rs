//! Reasons why a processor cannot have branch records as configured.

use core::fmt;

/// Reason why a PMU cannot have branch records of the requested configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum BranchConfigurationError {
    /// The processor has [no PMU](crate::Configuration::Hidden), or a PMU of a different vendor than the branch
    /// records.
    OtherVendor,
    /// Architectural branch records need a PMU of version 4 or later. The value is the PMU's version.
    Version(u8),
    /// AMD's branch records need a PMU with PerfMonV2.
    NoPerfMonV2,
    /// The number of AMD's records is not 1–16, or the bitmap of architectural depths is 0 or has a depth above 32
    /// records. The value is the number or the bitmap.
    Depth(u8),
    /// The legacy format is not 3–7. The value is the format.
    Format(u8),
    /// The configuration has the call stack, but lacks the filter by privilege or the filter by kind. The call stack
    /// needs both filters.
    CallStackWithoutFilters,
    /// The bitmap [`ArchitecturalBranches::counters`](crate::ArchitecturalBranches::counters) has a counter that the
    /// PMU lacks, or that is not among the first four. The value is the bitmap.
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
