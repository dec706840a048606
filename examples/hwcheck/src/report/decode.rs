//! The report of the stick (`examples/kernel/run.sh image`): from the texts of its QR codes, or from its serial line.

use core::fmt;

use crate::report::bounds::{MAX_BYTES, ReportError, SCHEMA};
use crate::report::claim::{Claim, Evidence, Outcome, Reason};
use crate::report::hex::Hex;
use crate::report::whole::{MachineKind, Processor, Report, Restored};

/// Text with which each code begins; and the most codes of a report.
const BEGIN: &str = "PMU1 ";
const MOST_CODES: usize = 9;

/// Reason for which a text is no report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// There is neither a code's text nor a line with the report.
    Nothing,
    /// A code's text is not as the stick makes it.
    Code(String),
    /// The codes are of different reports.
    Different,
    /// The code of this number is missing.
    Missing(usize),
    /// The line is not a report.
    Report(ReportError),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("neither the text of a code nor a line with a report"),
            Self::Code(text) => write!(f, "not the text of a code: {}", text.escape_debug()),
            Self::Different => f.write_str("the codes are of different reports"),
            Self::Missing(number) => write!(f, "code {number} is missing"),
            Self::Report(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for DecodeError {}

/// Returns the report of a text: of the serial line, the last line that is a report; or of QR codes, one on each line,
/// in any order, each once or more often.
///
/// # Errors
/// It is neither, or a code is missing.
///
/// ```
/// use pmu_hwcheck::report::decode::decode;
/// use pmu_hwcheck::report::Outcome;
/// let text = "PMU1 1/1 HARDWARE GENUINEINTEL:6:8F:8 INTERRUPT.NMI:AGREES FREEZE.COUNTERS:ABSENT";
/// let report = decode(text).unwrap();
/// assert_eq!(report.processor.model, 0x8F);
/// assert_eq!((report.claims[0].id.as_str(), report.claims[0].outcome), ("interrupt.nmi", Outcome::Agrees));
/// ```
pub fn decode(text: &str) -> Result<Report, DecodeError> {
    if text.len() > MAX_BYTES {
        return Err(DecodeError::Report(ReportError::TooLong));
    }
    if let Some(line) = text.lines().rev().find(|line| line.trim().starts_with("{\"schema\"")) {
        return Report::parse(line.trim().as_bytes()).map_err(DecodeError::Report);
    }
    let mut codes: Vec<Option<&str>> = Vec::new();
    let mut head = None;
    for line in text.lines().map(str::trim) {
        // A scanner may put words before the text.
        let Some((_, code)) = line.split_once(BEGIN) else { continue };
        let wrong = || DecodeError::Code(line.to_owned());
        let (numbers, rest) = code.split_once(' ').ok_or_else(wrong)?;
        let (number, count) = numbers.split_once('/').ok_or_else(wrong)?;
        let numbers = (number.parse::<usize>().ok(), count.parse::<usize>().ok());
        let (Some(number @ 1..), Some(count @ 1..=MOST_CODES)) = numbers else {
            return Err(wrong());
        };
        let mut words = rest.splitn(3, ' ');
        let (Some(kind), Some(processor), Some(claims)) =
            (words.next(), words.next(), words.next())
        else {
            return Err(wrong());
        };
        if number > count {
            return Err(wrong());
        }
        codes.resize(count.max(codes.len()), None);
        let is_other = *head.get_or_insert((count, kind, processor)) != (count, kind, processor);
        if is_other || codes[number - 1].replace(claims).is_some_and(|before| before != claims) {
            return Err(DecodeError::Different);
        }
    }
    let (_, kind, processor) = head.ok_or(DecodeError::Nothing)?;
    if let Some(missing) = codes.iter().position(Option::is_none) {
        return Err(DecodeError::Missing(missing + 1));
    }
    let wrong = |text: &str| DecodeError::Code(text.to_owned());
    let claims = codes.into_iter().flatten().flat_map(|claims| claims.split(' '));
    let claims = claims.map(|text| claim(text).ok_or_else(|| wrong(text)));
    let report = Report {
        schema: SCHEMA,
        machine: match kind {
            "HARDWARE" => MachineKind::Hardware,
            "HYPERVISOR" => MachineKind::Hypervisor,
            _ => MachineKind::Unknown,
        },
        processor: self::processor(processor).ok_or_else(|| wrong(processor))?,
        kernel: "pmu-kernel".to_owned(),
        hypervisor: None,
        seed: Hex(0),
        registers: Vec::new(),
        restored: Restored { worker_ended_well: true, ..Restored::default() },
        claims: claims.collect::<Result<_, _>>()?,
    };
    // The bounds of every report.
    Report::parse(report.to_json().as_bytes()).map_err(DecodeError::Report)
}

/// Returns the processor of a text: vendor, family, model and stepping.
fn processor(text: &str) -> Option<Processor> {
    let mut fields = text.split(':');
    let vendor = match fields.next()? {
        "GENUINEINTEL" => "GenuineIntel".to_owned(),
        "AUTHENTICAMD" => "AuthenticAMD".to_owned(),
        "HYGONGENUINE" => "HygonGenuine".to_owned(),
        other => other.to_owned(),
    };
    let mut number = || u16::from_str_radix(fields.next()?, 16).ok();
    let (family, model, stepping) = (number()?, number()?, number()?);
    let (model, stepping) = (model.try_into().ok()?, stepping.try_into().ok()?);
    let brand = String::new();
    Some(Processor { vendor, family, model, stepping, brand, microcode: None, core_type: None })
}

/// Returns the claim of a text: an id, and its outcome or the reason why it has none.
fn claim(text: &str) -> Option<Claim> {
    let (id, word) = text.split_once(':')?;
    let not_tried =
        |reason| (Outcome::NotTried, Evidence { reason: Some(reason), ..Evidence::default() });
    let (outcome, evidence) = match word {
        "AGREES" => (Outcome::Agrees, Evidence::default()),
        "DISAGREES" => (Outcome::Disagrees, Evidence::default()),
        "ABSENT" => not_tried(Reason::Absent),
        "DRIVER" => not_tried(Reason::Driver),
        "SKIPPED" => not_tried(Reason::Skipped),
        _ => (Outcome::Unknown, Evidence::default()),
    };
    Some(Claim { id: id.to_ascii_lowercase(), outcome, evidence })
}
