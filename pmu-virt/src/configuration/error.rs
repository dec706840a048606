//! Reasons why a configuration is refused.

use core::fmt;

/// Reason why a configuration is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum ConfigurationError {
    /// The version is not 1–6.
    Version(u8),
    /// There is no general counter.
    NoGeneralCounter,
    /// The bitmap of general counters has gaps, but the configuration lacks leaf 0x23, without which CPUID cannot
    /// declare gaps.
    GeneralGaps {
        /// Bitmap of the general counters.
        general: u8,
    },
    /// A version below 5 has leaf 0x23.
    ExtendedLeaf {
        /// Version of architectural performance monitoring.
        version: u8,
    },
    /// Version 6 lacks leaf 0x23.
    NoExtendedLeaf {
        /// Version of architectural performance monitoring.
        version: u8,
    },
    /// Unit mask 2, EQ or RDPMC user disable is set in a version below 6.
    SelectFeature {
        /// Version of architectural performance monitoring.
        version: u8,
    },
    /// A configuration of version 1 has fixed counters, which exist only from version 2 on.
    FixedInVersion1,
    /// The bitmap of fixed counters has gaps in a version below 5, whose CPUID cannot declare gaps.
    FixedGaps {
        /// Bitmap of the fixed counters.
        fixed: u8,
    },
    /// The counters' width is outside 32–64 bits. The value is the width.
    Width(u8),
    /// AnyThread is set in a version below 3.
    AnyThread {
        /// Version of architectural performance monitoring.
        version: u8,
    },
    /// A configuration of PerfMonV2 has fewer than 4 or more than 8 counters. The value is their number.
    AmdCounters(u8),
}

impl fmt::Display for ConfigurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => {
                write!(f, "no version {version} of architectural performance monitoring")
            }
            Self::NoGeneralCounter => f.write_str("no general counter"),
            Self::GeneralGaps { general } => {
                write!(f, "general counters {general:#010b} have gaps, without leaf 0x23")
            }
            Self::ExtendedLeaf { version } => write!(f, "leaf 0x23 in version {version}"),
            Self::NoExtendedLeaf { version } => write!(f, "version {version} without leaf 0x23"),
            Self::SelectFeature { version } => {
                write!(f, "unit mask 2, EQ or RDPMC user disable in version {version}")
            }
            Self::FixedInVersion1 => f.write_str("fixed counters in version 1"),
            Self::FixedGaps { fixed } => {
                write!(f, "fixed counters {fixed:#010b} have gaps in a version below 5")
            }
            Self::Width(width) => write!(f, "counters of {width} bits"),
            Self::AnyThread { version } => write!(f, "AnyThread in version {version}"),
            Self::AmdCounters(counters) => write!(f, "PerfMonV2 with {counters} counters"),
        }
    }
}

impl core::error::Error for ConfigurationError {}
