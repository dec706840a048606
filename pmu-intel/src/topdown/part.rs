//! The parts into which issue slots are divided.

use core::fmt;

/// One part of a processor's issue slots. Each slot belongs to exactly one of the four parts of level 1. Each part of
/// level 2 belongs to one part of level 1. [`TopDownCounts`](crate::topdown::TopDownCounts) describes how exact each
/// part's count is.
///
/// Source: A. Yasin, "A Top-Down Method for Performance Analysis and Counters Architecture", ISPASS 2014; Intel SDM
/// vol. 3B, "Performance Metrics".
///
/// ```
/// use pmu_intel::topdown::TopDownPart;
/// assert_eq!(TopDownPart::LEVEL_1.map(|part| part.parent()), [None; 4]);
/// assert_eq!(TopDownPart::MemoryBound.parent(), Some(TopDownPart::BackendBound));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum TopDownPart {
    /// Slots with operations that retired.
    Retiring,
    /// Slots that were lost to operations that did not retire, or to the recovery from wrong speculation.
    BadSpeculation,
    /// Slots that stayed empty because the front end delivered too few operations.
    FrontendBound,
    /// Slots that stayed empty because the back end could not accept operations.
    BackendBound,
    /// Slots of instructions that need many operations: the part of [`Retiring`](Self::Retiring) at level 2.
    HeavyOperations,
    /// Slots that were lost to mispredicted branches: the part of [`BadSpeculation`](Self::BadSpeculation) at level 2.
    BranchMispredicts,
    /// Slots of cycles in which the front end delivered no operation: the part of
    /// [`FrontendBound`](Self::FrontendBound) at level 2.
    FetchLatency,
    /// Slots that were lost because the back end waited for memory: the part of [`BackendBound`](Self::BackendBound) at
    /// level 2.
    MemoryBound,
}

impl TopDownPart {
    /// The parts of level 1, in the order of their bytes in `MSR_PERF_METRICS`.
    pub const LEVEL_1: [Self; 4] =
        [Self::Retiring, Self::BadSpeculation, Self::FrontendBound, Self::BackendBound];

    /// The parts of level 2, in the order of their bytes in `MSR_PERF_METRICS`.
    pub const LEVEL_2: [Self; 4] =
        [Self::HeavyOperations, Self::BranchMispredicts, Self::FetchLatency, Self::MemoryBound];

    /// Returns the part of level 1 to which a part of level 2 belongs; `None` for a part of level 1.
    ///
    /// ```
    /// use pmu_intel::topdown::TopDownPart;
    /// assert_eq!(TopDownPart::MemoryBound.parent(), Some(TopDownPart::BackendBound));
    /// assert_eq!(TopDownPart::BackendBound.parent(), None);
    /// ```
    pub fn parent(self) -> Option<Self> {
        (self as usize).checked_sub(4).and_then(|byte| Self::LEVEL_1.get(byte)).copied()
    }
}

impl fmt::Display for TopDownPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Retiring => "retiring",
            Self::BadSpeculation => "bad speculation",
            Self::FrontendBound => "front-end bound",
            Self::BackendBound => "back-end bound",
            Self::HeavyOperations => "heavy operations",
            Self::BranchMispredicts => "branch mispredicts",
            Self::FetchLatency => "fetch latency",
            Self::MemoryBound => "memory bound",
        })
    }
}
