//! Contradictions in a configuration.

use crate::configuration::features::IntelFeature;

/// Reason why no processor can have a configuration.
/// [`Configuration::check`](crate::configuration::Configuration::check) finds contradictions within the configuration
/// of a PMU. The constructors of the facilities, such as
/// [`VirtualBranches::new`](crate::branches::VirtualBranches::new), also find a PMU that lacks what the facility needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum ConfigurationError {
    /// The version of Intel's architectural performance monitoring is not 1–6.
    #[error("no version {0} of architectural performance monitoring")]
    Version(u8),
    /// The configuration has no general counter.
    #[error("no general counter")]
    NoGeneralCounter,
    /// The bitmap of general counters has gaps. CPUID can declare gaps only in leaf 0x23, which the configuration
    /// lacks.
    #[error("general counters {general:#010b} have gaps, without leaf 0x23")]
    GeneralGaps {
        /// Bitmap of the general counters.
        general: u8,
    },
    /// The configuration has a feature that its version cannot have.
    #[error("{} in version {version}: the feature needs version {}", feature.name(), feature.since())]
    FeatureVersion {
        /// The feature.
        feature: IntelFeature,
        /// Version of architectural performance monitoring.
        version: u8,
    },
    /// The configuration has version 6, but lacks CPUID leaf 0x23.
    #[error("version {version} without leaf 0x23")]
    NoExtendedLeaf {
        /// Version of architectural performance monitoring.
        version: u8,
    },
    /// The configuration has version 1 and fixed counters. Fixed counters need version 2 or later.
    #[error("fixed counters in version 1")]
    FixedInVersion1,
    /// The bitmap of fixed counters has gaps. CPUID can declare these gaps only in version 5 or later.
    #[error("fixed counters {fixed:#010b} have gaps in a version below 5")]
    FixedGaps {
        /// Bitmap of the fixed counters.
        fixed: u8,
    },
    /// The width of the general or fixed counters is not 32–64 bits. The value is the width.
    #[error("counters of {0} bits")]
    Width(u8),
    /// The configuration of PerfMonV2 has fewer than 4 or more than 8 counters. The value is the number of counters.
    #[error("PerfMonV2 with {0} counters")]
    AmdCounters(u8),
    /// The processor has [no PMU](crate::configuration::Configuration::Hidden), or the vendor of the PMU is not the
    /// vendor of the branch records or precise records.
    #[error("the PMU is another vendor's, or hidden")]
    OtherVendor,
    /// Architectural branch records need a PMU of version 4 or later. The value is the PMU's version.
    #[error("architectural branch records in version {0} of the PMU")]
    BranchVersion(u8),
    /// AMD's branch records need a PMU with PerfMonV2.
    #[error("AMD's branch records without PerfMonV2")]
    NoPerfMonV2,
    /// AMD: the number of branch records is not 1–16. The value is this number. Intel's architectural records: the
    /// bitmap of depths is 0, or has a depth above 32 records. The value is this bitmap.
    #[error("{0:#x} is no depth of branch records here")]
    BranchDepth(u8),
    /// The legacy format of branch records is not 3–7. The value is the format.
    #[error("the format {0} of branch records is not 3-7")]
    BranchFormat(u8),
    /// The branch records have the call-stack mode, but lack the filter by privilege or the filter by branch kind. The
    /// call-stack mode needs both filters.
    #[error("a call stack without both filters")]
    CallStackWithoutFilters,
    /// The bitmap [`ArchitecturalBranches::counters`](crate::branches::ArchitecturalBranches::counters) has a bit other
    /// than 0–3, or the bit of a counter that the PMU lacks. The value is the bitmap.
    #[error("logged counters {0:#b} are not among the first four")]
    LoggedCounters(u8),
    /// The PMU's version is too low for precise records. Records in the Debug Store need version 2 or later, and
    /// architectural PEBS needs version 6. The value is the PMU's version.
    #[error("precise records in version {0} of the PMU")]
    RecordVersion(u8),
    /// The format of precise records is not 0–6. The value is the format.
    #[error("the format {0} of precise records is not 0-6")]
    RecordFormat(u8),
    /// The field [`baseline`](crate::precise::DebugStoreRecords::baseline) needs format 4 or later. The value is the
    /// format.
    #[error("adaptive records in format {0}")]
    RecordBaseline(u8),
    /// The configuration has counters that cannot write precise records. In formats 0–2, only the first four general
    /// counters can write records. Fixed counters need [`baseline`](crate::precise::DebugStoreRecords::baseline). The
    /// value is the bitmap of the counters that cannot write records.
    #[error("counters {0:#b} cannot write records in this format")]
    RecordCounters(u8),
    /// The field [`metrics`](crate::precise::DebugStoreRecords::metrics) needs
    /// [`baseline`](crate::precise::DebugStoreRecords::baseline) and format 6. The value is the format.
    #[error("metrics in records of format {0}")]
    RecordMetrics(u8),
    /// The field [`groups`](crate::precise::ArchitecturalRecords::groups) has bits set that stand for no group of a
    /// record. The value has only these bits.
    #[error("no groups {0:#x} of architectural records")]
    RecordGroups(u32),
    /// Counter reload needs an Intel PMU of version 6.
    #[error("counter reload needs Intel's version 6 of the PMU")]
    ReloadVersion,
    /// Counter reload is configured for a counter that the PMU lacks.
    #[error("counter reload of a counter that the PMU lacks")]
    ReloadCounters,
    /// Top-down metrics need an Intel PMU with fixed counter 3, which counts issue slots.
    #[error("top-down metrics need fixed counter 3 of Intel's PMU")]
    NoSlots,
}
