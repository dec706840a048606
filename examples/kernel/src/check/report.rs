//! The report: JSON with the fields of `hwcheck`'s, and short texts for QR codes.

use core::arch::x86_64::{__cpuid, CpuidResult};
use core::fmt::{self, Write};

use crate::check::claim::{Outcome, Verdict};
use crate::check::list::CLAIMS;

/// The most characters of a QR code's text: those of version 10 with medium correction, in alphanumeric mode.
pub const MOST_CHARACTERS: usize = 311;

/// Outcomes of all claims, in their order.
pub type Outcomes = [Outcome; CLAIMS.len()];

/// A processor, by CPUID.
#[derive(Clone, Copy, Debug)]
pub struct Processor {
    vendor: [u8; 12],
    brand: [u8; 48],
    hypervisor: Option<[u8; 12]>,
    family: u32,
    model: u32,
    stepping: u32,
}

impl Processor {
    /// Reads CPUID.
    pub fn of_this() -> Self {
        let words = |words: [u32; 3]| {
            let mut bytes = [0; 12];
            for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
                place.copy_from_slice(&word.to_le_bytes());
            }
            bytes
        };
        let CpuidResult { ebx, ecx, edx, .. } = __cpuid(0);
        let (one, above) = (__cpuid(1), __cpuid(0x4000_0000));
        let base = one.eax >> 8 & 0xF;
        let mut brand = [0; 48];
        if __cpuid(0x8000_0000).eax >= 0x8000_0004 {
            for (place, leaf) in brand.chunks_exact_mut(16).zip(0x8000_0002..) {
                let CpuidResult { eax, ebx, ecx, edx } = __cpuid(leaf);
                for (place, word) in place.chunks_exact_mut(4).zip([eax, ebx, ecx, edx]) {
                    place.copy_from_slice(&word.to_le_bytes());
                }
            }
        }
        Self {
            vendor: words([ebx, edx, ecx]),
            brand,
            hypervisor: (one.ecx >> 31 != 0).then(|| words([above.ebx, above.ecx, above.edx])),
            family: if base == 0xF { base + (one.eax >> 20 & 0xFF) } else { base },
            model: one.eax >> 4 & 0xF
                | if matches!(base, 6 | 0xF) { one.eax >> 12 & 0xF0 } else { 0 },
            stepping: one.eax & 0xF,
        }
    }

    /// Returns the name of a kind of machine, as in a report.
    fn kind(&self) -> &'static str {
        if self.hypervisor.is_some() { "hypervisor" } else { "hardware" }
    }
}

/// Text of bytes, as JSON has it: without what would need an escape.
struct Plain<'b>(&'b [u8]);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.trim_ascii();
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        let plain = |byte: &u8| (b' '..0x7F).contains(byte) && !matches!(byte, b'"' | b'\\');
        text[..end]
            .trim_ascii()
            .iter()
            .filter(|b| plain(b))
            .try_for_each(|b| f.write_char((*b).into()))
    }
}

/// Writes the report as one line of JSON.
///
/// # Errors
/// Those of `to`.
pub fn json(processor: &Processor, outcomes: &Outcomes, to: &mut impl Write) -> fmt::Result {
    let Processor { vendor, brand, hypervisor, family, model, stepping } = processor;
    write!(
        to,
        r#"{{"schema":1,"machine":"{}","processor":{{"vendor":"{}","family":{family},"model":{model},"stepping":{stepping},"brand":"{}","microcode":null,"core_type":null}},"kernel":"pmu-kernel {}","hypervisor":"#,
        processor.kind(),
        Plain(vendor),
        Plain(brand),
        env!("CARGO_PKG_VERSION"),
    )?;
    match hypervisor {
        Some(name) => write!(to, r#""{}""#, Plain(name))?,
        None => to.write_str("null")?,
    }
    to.write_str(
        r#","seed":"0x0","registers":[],"restored":{"worker_ended_well":true,"restored":0,"left_alone":[],"failed":[]},"claims":["#,
    )?;
    for (place, ((id, _), outcome)) in CLAIMS.iter().zip(outcomes).enumerate() {
        let comma = if place == 0 { "" } else { "," };
        write!(to, r#"{comma}{{"id":"{id}","outcome":"{}""#, outcome.verdict.name())?;
        if let Verdict::NotTried(reason) = outcome.verdict {
            write!(to, r#","evidence":{{"reason":"{}"}}"#, reason.name())?;
        }
        to.write_char('}')?;
    }
    to.write_str("]}\n")
}

/// A text of bounded length.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    bytes: [u8; MOST_CHARACTERS],
    length: usize,
}

impl Text {
    /// No text.
    pub const EMPTY: Self = Self { bytes: [0; MOST_CHARACTERS], length: 0 };

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..self.length]).unwrap_or("")
    }
}

impl Write for Text {
    /// In capitals: the alphanumeric mode of QR codes has no others.
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        let place = self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        place.make_ascii_uppercase();
        self.length = end;
        Ok(())
    }
}

/// The most codes of a report.
pub const MOST_CODES: usize = 8;

/// Returns the texts of the QR codes, and how many there are. Each begins with `PMU1`, its number and how many there
/// are, the kind of machine, and the processor: vendor, family, model and stepping in hexadecimal. Then follow ids,
/// each with its verdict.
pub fn codes(processor: &Processor, outcomes: &Outcomes) -> ([Text; MOST_CODES], usize) {
    let mut codes = [Text::EMPTY; MOST_CODES];
    // Their number has one digit, so that its length is known.
    let count = fill(processor, outcomes, 0, &mut codes);
    fill(processor, outcomes, count, &mut codes);
    (codes, count)
}

fn fill(
    processor: &Processor,
    outcomes: &Outcomes,
    count: usize,
    codes: &mut [Text; MOST_CODES],
) -> usize {
    let Processor { vendor, family, model, stepping, .. } = processor;
    let mut number = 0;
    for ((id, _), outcome) in CLAIMS.iter().zip(outcomes) {
        let word = outcome.verdict.word();
        loop {
            if number != 0 {
                // A text is written as a whole, or not.
                let mut longer = codes[number - 1];
                if write!(longer, " {id}:{word}").is_ok() {
                    codes[number - 1] = longer;
                    break;
                }
            }
            if number == MOST_CODES {
                return number;
            }
            codes[number] = Text::EMPTY;
            number += 1;
            let begins = write!(
                codes[number - 1],
                "PMU1 {number}/{count} {} {}:{family:X}:{model:X}:{stepping:X}",
                processor.kind(),
                Plain(vendor),
            );
            if begins.is_err() {
                return number;
            }
        }
    }
    number
}
