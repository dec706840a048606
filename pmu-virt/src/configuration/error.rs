//! Contradictions in a configuration.

use core::fmt;

/// Reason why no processor can have a configuration. [`Configuration::check`](crate::Configuration::check) finds
/// contradictions within the configuration of a PMU. The constructors of the facilities, such as
/// [`VirtualBranches::new`](crate::branches::VirtualBranches::new), also find a PMU that lacks what the facility needs.
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
    /// The processor has [no PMU](crate::Configuration::Hidden), or the vendor of the PMU is not the vendor of the
    /// branch records or precise records.
    OtherVendor,
    /// Architectural branch records need a PMU of version 4 or later. The value is the PMU's version.
    BranchVersion(u8),
    /// AMD's branch records need a PMU with PerfMonV2.
    NoPerfMonV2,
    /// AMD: the number of branch records is not 1–16. The value is this number. Intel's architectural records: the
    /// bitmap of depths is 0, or has a depth above 32 records. The value is this bitmap.
    BranchDepth(u8),
    /// The legacy format of branch records is not 3–7. The value is the format.
    BranchFormat(u8),
    /// The branch records have the call-stack mode, but lack the filter by privilege or the filter by branch kind. The
    /// call-stack mode needs both filters.
    CallStackWithoutFilters,
    /// The bitmap [`ArchitecturalBranches::counters`](crate::branches::ArchitecturalBranches::counters) has a bit other
    /// than 0–3, or the bit of a counter that the PMU lacks. The value is the bitmap.
    LoggedCounters(u8),
    /// The PMU's version is too low for precise records. Records in the Debug Store need version 2 or later, and
    /// architectural PEBS needs version 6. The value is the PMU's version.
    RecordVersion(u8),
    /// The format of precise records is not 0–6. The value is the format.
    RecordFormat(u8),
    /// The field [`baseline`](crate::precise::DebugStoreRecords::baseline) needs format 4 or later. The value is the
    /// format.
    RecordBaseline(u8),
    /// The configuration has counters that cannot write precise records. In formats 0–2, only the first four general
    /// counters can write records. Fixed counters need [`baseline`](crate::precise::DebugStoreRecords::baseline). The
    /// value is the bitmap of the counters that cannot write records.
    RecordCounters(u8),
    /// The field [`metrics`](crate::precise::DebugStoreRecords::metrics) needs
    /// [`baseline`](crate::precise::DebugStoreRecords::baseline) and format 6. The value is the format.
    RecordMetrics(u8),
    /// The field [`groups`](crate::precise::ArchitecturalRecords::groups) has bits set that stand for no group of a
    /// record. The value has only these bits.
    RecordGroups(u32),
    /// Counter reload needs an Intel PMU of version 6.
    ReloadVersion,
    /// Counter reload is configured for a counter that the PMU lacks.
    ReloadCounters,
    /// Top-down metrics need an Intel PMU with fixed counter 3, which counts issue slots.
    NoSlots,
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
            Self::OtherVendor => f.write_str("the PMU is another vendor's, or hidden"),
            Self::BranchVersion(version) => {
                write!(f, "architectural branch records in version {version} of the PMU")
            }
            Self::NoPerfMonV2 => f.write_str("AMD's branch records without PerfMonV2"),
            Self::BranchDepth(depth) => write!(f, "{depth:#x} is no depth of branch records here"),
            Self::BranchFormat(format) => {
                write!(f, "the format {format} of branch records is not 3-7")
            }
            Self::CallStackWithoutFilters => f.write_str("a call stack without both filters"),
            Self::LoggedCounters(bitmap) => {
                write!(f, "logged counters {bitmap:#b} are not among the first four")
            }
            Self::RecordVersion(version) => {
                write!(f, "precise records in version {version} of the PMU")
            }
            Self::RecordFormat(format) => {
                write!(f, "the format {format} of precise records is not 0-6")
            }
            Self::RecordBaseline(format) => write!(f, "adaptive records in format {format}"),
            Self::RecordCounters(bitmap) => {
                write!(f, "counters {bitmap:#b} cannot write records in this format")
            }
            Self::RecordMetrics(format) => write!(f, "metrics in records of format {format}"),
            Self::RecordGroups(bits) => write!(f, "no groups {bits:#x} of architectural records"),
            Self::ReloadVersion => f.write_str("counter reload needs Intel's version 6 of the PMU"),
            Self::ReloadCounters => f.write_str("counter reload of a counter that the PMU lacks"),
            Self::NoSlots => f.write_str("top-down metrics need fixed counter 3 of Intel's PMU"),
        }
    }
}

impl core::error::Error for ConfigurationError {}
