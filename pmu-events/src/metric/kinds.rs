//! The metrics by their names.

use core::fmt;

/// A ratio of event counts that has a name of its own, such as instructions per cycle or a top-down share.
///
/// Four of the metrics are the shares of top-down level 1: each issue slot of a thread belongs to exactly one of them
/// (A. Yasin, "A Top-Down Method for Performance Analysis and Counters Architecture", ISPASS 2014). On Intel cores up
/// to Cascade Lake, and on AMD Zen cores, the number of slots is computed from the cycles of the thread. This number is
/// correct only while the other thread of the core is idle.
///
/// ```
/// use pmu_events::{Metric, SKYLAKE};
/// let ipc = SKYLAKE.metric(Metric::InstructionsPerCycle)?;
/// let needs: Vec<_> = ipc.events().map(|event| event.name().to_string()).collect();
/// assert_eq!(needs, ["INST_RETIRED.ANY", "CPU_CLK_UNHALTED.THREAD"]);
/// let counted = |name: &str| if name == "INST_RETIRED.ANY" { Some(3_000) } else { Some(2_000) };
/// assert_eq!(ipc.ratio(counted)?.times(100), Some(150));
/// # Ok::<(), pmu_events::MetricError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Metric {
    /// Retired instructions per unhalted cycle of the thread.
    InstructionsPerCycle,
    /// Mispredicted branches per thousand retired instructions. On Nehalem and Westmere, executed mispredicted branches
    /// are counted; on all other core types, retired mispredicted branches.
    BranchMissesPerThousand,
    /// Share of issue slots whose operations retired.
    Retiring,
    /// Share of issue slots that were lost to operations that did not retire, or to the recovery from wrong
    /// speculation.
    BadSpeculation,
    /// Share of issue slots for which the front end delivered no operation.
    FrontendBound,
    /// Share of issue slots in which the back end accepted no operation.
    BackendBound,
}

impl Metric {
    /// All metrics, in the order of their declaration.
    pub const ALL: [Self; 6] = [
        Self::InstructionsPerCycle,
        Self::BranchMissesPerThousand,
        Self::Retiring,
        Self::BadSpeculation,
        Self::FrontendBound,
        Self::BackendBound,
    ];
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::InstructionsPerCycle => "instructions per cycle",
            Self::BranchMissesPerThousand => "branch misses per thousand instructions",
            Self::Retiring => "top-down: retiring",
            Self::BadSpeculation => "top-down: bad speculation",
            Self::FrontendBound => "top-down: front-end bound",
            Self::BackendBound => "top-down: back-end bound",
        })
    }
}
