//! Counts of a workload.

use serde::{Deserialize, Serialize};

/// The counts of a counter over several runs of a workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Count {
    /// The workload.
    pub workload: WorkloadName,
    /// Number of times that its body was executed.
    pub iterations: u64,
    /// The known number, from least to greatest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<[u64; 2]>,
    /// The least count of all runs.
    pub least: u64,
    /// The greatest.
    pub greatest: u64,
    /// Number of runs.
    pub runs: u32,
    /// Number of runs that counted more than the least.
    pub runs_with_more: u32,
    /// Interrupts that the kernel counted on this processor meanwhile.
    pub interrupts: u64,
}

/// The name of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkloadName {
    /// A loop with hand-counted instructions, branches and taken branches.
    Loop,
    /// Branches that no predictor knows.
    Random,
    /// A pointer chase through more memory than the caches hold.
    Chase,
    /// Reads that cross cache lines.
    Misaligned,
    /// Floating point, locked, string and cache-control instructions.
    Mixed,
    /// A workload of a later version.
    #[serde(other)]
    Unknown,
}

impl WorkloadName {
    /// Returns the workload's name as a word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loop => "loop",
            Self::Random => "random",
            Self::Chase => "chase",
            Self::Misaligned => "misaligned",
            Self::Mixed => "mixed",
            Self::Unknown => "unknown",
        }
    }
}
