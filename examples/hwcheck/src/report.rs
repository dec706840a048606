//! The report: an allow-list of what leaves the machine. Whatever is not a field here is not in it.

use core::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Version of the layout.
pub const SCHEMA: u32 = 1;
/// Greatest length of a report in bytes.
pub const MAX_BYTES: usize = 1 << 20;
/// Greatest number of entries of each list.
pub const MAX_ENTRIES: usize = 1024;
/// Greatest number of disagreements that the tool lists of a claim.
pub const MAX_DISAGREEMENTS: usize = 16;
/// Greatest length of each text in bytes.
pub const MAX_TEXT: usize = 128;

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
    /// The word for it.
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
    /// It could not be tried: see the reason.
    NotTried,
    /// Another owner of the counters wrote meanwhile.
    Disturbed,
    /// An outcome of a later version.
    #[serde(other)]
    Unknown,
}

impl Outcome {
    /// The words for it.
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
    /// The reason for which it was not tried.
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
    /// The processor lacks it.
    Absent,
    /// The counter holds what could not be restored.
    NotRestorable,
    /// User mode may not execute RDPMC.
    RdpmcNotAllowed,
    /// The driver's counter layer refused it.
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
    /// A reason of a later version.
    #[serde(other)]
    Unknown,
}

impl Reason {
    /// The words for it.
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
            Self::Unknown => "a reason of a later version",
        }
    }
}

/// An access that the processor answers otherwise than the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disagreement {
    /// The register's address, or RDPMC's operand.
    pub register: Hex,
    /// Its name in the manual.
    pub name: String,
    /// The instruction.
    pub access: Access,
    /// Value that was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Hex>,
    /// The model's answer.
    pub model: Answer,
    /// The processor's.
    pub processor: Answer,
    /// The manual's section.
    pub manual: String,
}

/// An instruction that accesses a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// RDMSR.
    Rdmsr,
    /// WRMSR.
    Wrmsr,
    /// RDPMC.
    Rdpmc,
}

impl Access {
    /// The instruction's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rdmsr => "RDMSR",
            Self::Wrmsr => "WRMSR",
            Self::Rdpmc => "RDPMC",
        }
    }
}

/// The answer to an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A value.
    Value(u64),
    /// A write was taken.
    Done,
    /// #GP.
    GeneralProtection,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => Hex(*value).fmt(f),
            Self::Done => f.write_str("done"),
            Self::GeneralProtection => f.write_str("#GP"),
        }
    }
}

impl Serialize for Answer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Answer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "done" => Ok(Self::Done),
            "#GP" => Ok(Self::GeneralProtection),
            number => Hex::parse(number).map(|hex| Self::Value(hex.0)),
        }
        .map_err(D::Error::custom)
    }
}

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
    /// The word for it.
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

/// A number that is written in hexadecimal, as text: JSON's own numbers have 53 bits in many readers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hex(pub u64);

impl Hex {
    fn parse(text: &str) -> Result<Self, &'static str> {
        let wrong = "not a hexadecimal number of 64 bits";
        let digits = text.strip_prefix("0x").ok_or(wrong)?;
        let plain = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let value = plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten();
        value.map(Self).ok_or(wrong)
    }
}

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// Reason for which bytes are not a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportError {
    /// Not an ordinary file.
    NoFile,
    /// More than [`MAX_BYTES`].
    TooLong,
    /// Not the JSON of a report: the place and what is wrong there.
    Json(String),
    /// A layout that this version does not know.
    Schema(u32),
    /// A list of more than [`MAX_ENTRIES`], or a text of more than [`MAX_TEXT`].
    TooMuch,
}

impl fmt::Display for ReportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFile => f.write_str("not an ordinary file"),
            Self::TooLong => write!(f, "more than {MAX_BYTES} bytes"),
            // It has the report's own words.
            Self::Json(error) => write!(f, "{}", error.escape_debug()),
            Self::Schema(schema) => write!(f, "schema {schema}; this tool reads {SCHEMA}"),
            Self::TooMuch => f.write_str("a list or a text is too long"),
        }
    }
}

impl core::error::Error for ReportError {}

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

    /// Writes it as [`parse`](Self::parse) reads it, a claim on each line.
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
