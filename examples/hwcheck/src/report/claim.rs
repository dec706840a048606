//! Claims, each with its outcome and the evidence for it.

use serde::{Deserialize, Serialize};

use crate::report::count::Count;
use crate::report::disagreement::Disagreement;

/// Greatest number of disagreements that the tool lists of a claim.
pub const MAX_DISAGREEMENTS: usize = 16;

/// The result of one claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Its stable id.
    pub id: String,
    /// Outcome of the claim.
    pub outcome: Outcome,
    /// Evidence for the outcome.
    #[serde(default, skip_serializing_if = "Evidence::is_empty")]
    pub evidence: Evidence,
}

/// The outcome of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Every access was answered as the model does.
    Agrees,
    /// Some were answered otherwise.
    Disagrees,
    /// The count was the hand-counted number.
    Exact,
    /// It was another.
    Inexact,
    /// A source counts.
    Counts,
    /// A source counted nothing under every workload.
    Silent,
    /// A source counts, but not the known number of what its name says.
    SomethingElse,
    /// The claim could not be tried: see the reason.
    NotTried,
    /// Another owner of the counters wrote meanwhile.
    Disturbed,
    /// An outcome of a later version.
    #[serde(other)]
    Unknown,
}

impl Outcome {
    /// Returns the outcome in words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::Disagrees => "disagrees",
            Self::Exact => "exact",
            Self::Inexact => "inexact",
            Self::Counts => "counts",
            Self::Silent => "silent",
            Self::SomethingElse => "something else",
            Self::NotTried => "not tried",
            Self::Disturbed => "disturbed",
            Self::Unknown => "unknown",
        }
    }
}

/// The evidence for an outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// Number of answers that were compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compared: Option<u64>,
    /// The disagreements, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disagreements: Vec<Disagreement>,
    /// Number of disagreeing answers after them that are not listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unlisted: u32,
    /// Number of answers that disagreed, and agreed when the same was done again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unrepeated: u32,
    /// The counts, by workload.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counts: Vec<Count>,
    /// The reason why the claim was not tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Evidence {
    /// Lists a disagreement, unless one of this register and instruction is listed, or [`MAX_DISAGREEMENTS`] are.
    pub fn list(&mut self, new: Disagreement) {
        let listed = &mut self.disagreements;
        if listed.iter().any(|one| (one.register, one.access) == (new.register, new.access)) {
            return;
        }
        if listed.len() < MAX_DISAGREEMENTS {
            listed.push(new);
        } else {
            self.unlisted = self.unlisted.saturating_add(1);
        }
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The reason for which a claim was not tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// It needs writes, and the run was to make none.
    ReadOnly,
    /// The processor lacks the claim's registers or event.
    Absent,
    /// The counter holds what could not be restored.
    NotRestorable,
    /// User mode may not execute RDPMC.
    RdpmcNotAllowed,
    /// The driver's counter layer refused the counters or the event.
    Driver,
    /// The worker ended before.
    WorkerEnded,
    /// An access failed before, and not by #GP: the kernel forbids it, or the device is gone.
    Unreachable,
    /// Another owner of the counters was noticed before.
    DisturbedBefore,
    /// It is for bare metal.
    BareMetal,
    /// The command line said so.
    Skipped,
    /// Too few samples came.
    FewSamples,
    /// A reason of a later version.
    #[serde(other)]
    Unknown,
}

impl Reason {
    /// Returns the reason in words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "the run was to write nothing",
            Self::Absent => "the processor lacks it",
            Self::NotRestorable => "what its registers hold could not be restored",
            Self::RdpmcNotAllowed => "RDPMC is not allowed in user mode",
            Self::Driver => "the driver refused it",
            Self::WorkerEnded => "the worker had ended",
            Self::Unreachable => {
                "an access to a register had failed: the kernel refused it, or the device was gone"
            }
            Self::DisturbedBefore => "another owner of the counters had been noticed",
            Self::BareMetal => "it is for bare metal",
            Self::Skipped => "the command line said so",
            Self::FewSamples => "too few samples came",
            Self::Unknown => "a reason of a later version",
        }
    }
}
