//! Contradictions in a configuration.

use core::fmt;

/// Contradiction that [`Configuration::check`](crate::Configuration::check) finds in a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum ConfigurationError {
    /// The version of Intel's architectural performance monitoring is not 1–6.
    Version(u8),
    /// The configuration has no general counter.
    NoGeneralCounter,
    /// The bitmap of general counters has gaps. CPUID can declare gaps only in leaf 0x23, which the configuration
    /// lacks.
    GeneralGaps {
        /// Bitmap of the general counters.
        general: u8,
    },
    /// The configuration has CPUID leaf 0x23. Leaf 0x23 needs version 5 or later.
    ExtendedLeaf {
        /// Version of architectural performance monitoring.
        version: u8,
    },
    /// The configuration has version 6, but lacks CPUID leaf 0x23.
    NoExtendedLeaf {
        /// Version of architectural performance monitoring.
        version: u8,
    },
    /// The configuration has unit mask 2, EQ or RDPMC user disable. Each of these three features needs version 6.
    SelectFeature {
        /// Version of architectural performance monitoring.
        version: u8,
    },
    /// The configuration has version 1 and fixed counters. Fixed counters need version 2 or later.
    FixedInVersion1,
    /// The bitmap of fixed counters has gaps. CPUID can declare these gaps only in version 5 or later.
    FixedGaps {
        /// Bitmap of the fixed counters.
        fixed: u8,
    },
    /// The width of the general or fixed counters is not 32–64 bits. The value is the width.
    Width(u8),
    /// The configuration has AnyThread. AnyThread needs version 3 or later.
    AnyThread {
        /// Version of architectural performance monitoring.
        version: u8,
    },
    /// The configuration of PerfMonV2 has fewer than 4 or more than 8 counters. The value is the number of counters.
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
