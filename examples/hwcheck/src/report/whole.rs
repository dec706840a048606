//! The report itself: its fields, reading and writing.

use serde::{Deserialize, Serialize};

use crate::report::bounds::{MAX_BYTES, MAX_ENTRIES, MAX_TEXT, ReportError, SCHEMA};
use crate::report::claim::{Claim, Evidence};
use crate::report::hex::Hex;

/// One run of the tool on one processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Version of the layout: [`SCHEMA`].
    pub schema: u32,
    /// Kind of machine that was checked.
    pub machine: MachineKind,
    /// The processor.
    pub processor: Processor,
    /// The digits of the kernel's release, "6.12.0".
    pub kernel: String,
    /// The hypervisor's CPUID signature, where there is one.
    pub hypervisor: Option<String>,
    /// The seed of the programs.
    pub seed: Hex,
    /// The PMU's registers, as they were found.
    pub registers: Vec<Register>,
    /// State of the registers after the run.
    pub restored: Restored,
    /// The claims, each by its id.
    pub claims: Vec<Claim>,
}

/// The kind of machine of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MachineKind {
    /// A processor.
    Hardware,
    /// A hypervisor's processor: a disagreement is the hypervisor's.
    Hypervisor,
    /// The software PMU of this project: nothing is said of any processor.
    Software,
    /// A kind of a later version.
    #[serde(other)]
    Unknown,
}

impl MachineKind {
    /// Returns the kind as a word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hardware => "hardware",
            Self::Hypervisor => "hypervisor",
            Self::Software => "software",
            Self::Unknown => "unknown",
        }
    }
}

/// A processor, by CPUID and its microcode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Processor {
    /// The vendor's twelve characters.
    pub vendor: String,
    /// Family, as manuals print it.
    pub family: u16,
    /// Model, as manuals print it.
    pub model: u8,
    /// Stepping.
    pub stepping: u8,
    /// Brand string.
    pub brand: String,
    /// Microcode revision, where the kernel tells it.
    pub microcode: Option<Hex>,
    /// Leaf 0x1A, EAX bits 31:24, of a hybrid machine: 0x20 Atom, 0x40 Core.
    pub core_type: Option<u8>,
}

/// A register of the PMU as it was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Register {
    /// Its address.
    pub register: Hex,
    /// Its value.
    pub found: Hex,
}

/// The registers after restoring.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restored {
    /// The worker came to its end by itself.
    pub worker_ended_well: bool,
    /// Number of registers that were changed and are as they were found.
    pub restored: u32,
    /// Registers that ended the run: another owner had written them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disturbed: Vec<Hex>,
    /// Registers that another owner wrote meanwhile, which were left alone.
    pub left_alone: Vec<Hex>,
    /// Registers that could not be restored.
    pub failed: Vec<Hex>,
    /// Sysfs' `rdpmc` could not be restored.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub rdpmc_failed: bool,
}

impl Report {
    /// Reads a report that may come from anywhere. Claims, outcomes and reasons that this version does not know
    /// are kept as unknown.
    ///
    /// # Errors
    /// It is no report, or one beyond the bounds.
    pub fn parse(bytes: &[u8]) -> Result<Self, ReportError> {
        /// The one field that every layout has.
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        if bytes.len() > MAX_BYTES {
            return Err(ReportError::TooLong);
        }
        let json = |error: serde_json::Error| ReportError::Json(error.to_string());
        let Version { schema } = serde_json::from_slice(bytes).map_err(json)?;
        if schema != SCHEMA {
            return Err(ReportError::Schema(schema));
        }
        let report: Self = serde_json::from_slice(bytes).map_err(json)?;
        if report.is_bounded() { Ok(report) } else { Err(ReportError::TooMuch) }
    }

    /// Writes the report as [`parse`](Self::parse) reads it, a claim on each line.
    pub fn to_json(&self) -> String {
        let claims = self.claims.iter().filter_map(|claim| serde_json::to_string(claim).ok());
        let claims: Vec<_> = claims.map(|claim| format!("    {claim}")).collect();
        let head = Self { claims: Vec::new(), ..self.clone() };
        let head = serde_json::to_string_pretty(&head).unwrap_or_default();
        // The claims are the last field.
        let head = head.strip_suffix("[]\n}").unwrap_or_default();
        format!("{head}[\n{}\n  ]\n}}\n", claims.join(",\n"))
    }

    fn is_bounded(&self) -> bool {
        let text = |text: &str| text.len() <= MAX_TEXT;
        let list = |length: usize| length <= MAX_ENTRIES;
        text(&self.processor.vendor)
            && text(&self.processor.brand)
            && text(&self.kernel)
            && self.hypervisor.as_deref().is_none_or(text)
            && list(self.registers.len())
            && list(self.restored.disturbed.len())
            && list(self.restored.left_alone.len())
            && list(self.restored.failed.len())
            && list(self.claims.len())
            && self.claims.iter().all(|claim| {
                let Evidence { disagreements, counts, .. } = &claim.evidence;
                text(&claim.id)
                    && list(disagreements.len())
                    && list(counts.len())
                    && disagreements.iter().all(|one| text(&one.name) && text(&one.manual))
            })
    }
}
