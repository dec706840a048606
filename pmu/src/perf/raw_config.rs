//! Raw configurations of events, and their texts.

use core::fmt;
use core::str::FromStr;

use pmu_core::EventSelect;

use crate::perf::error::PerfError;

/// Raw configuration of perf: the bits of an event select, without bits 16, 17, 20 and 22, which perf itself sets.
///
/// As a text, the configuration is written in one of two ways. The first way is hexadecimal, as in `r01c0`, with the
/// event in the low byte and the unit mask in the next byte. The second way is terms, as in
/// `cpu/event=0xc0,umask=0x1/`. A term of one bit may be written without a value, as in `cpu/event=0xc0,inv/`. As in
/// perf, `cpu/r1a8/` and `cpu/config=0x1a8/` mean the same as `r1a8`. The names and bits of the terms are the same as
/// in the Linux kernel's `format` files in sysfs:
///
/// | term | bits |
/// |---|---|
/// | `event` | 7:0, and 35:32 on AMD's processors |
/// | `umask` | 15:8, and 47:40 on Intel's processors with a second unit mask |
/// | `edge`, `pc`, `any`, `inv` | 18, 19, 21, 23 |
/// | `cmask` | 31:24 |
/// | `eq` | 36 |
///
/// A processor's event selects may lack some of these bits. Opening an event fails if its configuration has a bit that
/// the processor's event selects lack. The parser also accepts Intel's terms `in_tx` (bit 32) and `in_tx_cp` (bit 33).
/// [`terms`](Self::terms) writes bits 32 and 33 as high bits of `event`. This text is correct for AMD's processors, but
/// perf on Intel's processors refuses it. The hexadecimal form, such as `r1000001c0`, is correct for both vendors.
///
/// ```
/// use pmu::perf::RawConfig;
/// let config: RawConfig = "cpu/event=0xc0,umask=0x1,cmask=4,inv,edge/".parse()?;
/// assert_eq!(config.bits(), 0x0484_01C0);
/// assert_eq!(config.to_string(), "r48401c0");
/// assert_eq!(config.terms().to_string(), "cpu/event=0xc0,umask=0x1,edge,inv,cmask=0x4/");
/// assert_eq!("r01c0".parse::<RawConfig>()?.bits(), 0x01C0);
/// # Ok::<(), pmu::perf::PerfError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RawConfig(u64);

/// Term of a raw configuration: its name, and its fields' lowest bits and widths, the value's low bits first.
pub(crate) struct Term {
    name: &'static str,
    fields: &'static [(u32, u32)],
}

/// Terms in the order in which they are written. The last two are only read, because the first one has their bits, too.
const TERMS: [Term; 10] = [
    Term { name: "event", fields: &[(0, 8), (32, 4)] },
    Term { name: "umask", fields: &[(8, 8), (40, 8)] },
    Term { name: "edge", fields: &[(18, 1)] },
    Term { name: "pc", fields: &[(19, 1)] },
    Term { name: "any", fields: &[(21, 1)] },
    Term { name: "inv", fields: &[(23, 1)] },
    Term { name: "cmask", fields: &[(24, 8)] },
    Term { name: "eq", fields: &[(36, 1)] },
    Term { name: "in_tx", fields: &[(32, 1)] },
    Term { name: "in_tx_cp", fields: &[(33, 1)] },
];

const WRITTEN: usize = 8;

impl Term {
    fn is_flag(&self) -> bool {
        matches!(self.fields, [(_, 1)])
    }

    /// Returns the configuration bits of this value; `None` if it is too great.
    fn of(&self, value: u64) -> Option<u64> {
        let mut left = value;
        let bits = self.fields.iter().fold(0, |bits, (lowest, width)| {
            let low = left & ((1 << width) - 1);
            left >>= width;
            bits | low << lowest
        });
        (left == 0).then_some(bits)
    }

    /// Returns the term's value in a configuration.
    fn value(&self, bits: u64) -> u64 {
        let fields = self.fields.iter().rev();
        fields
            .fold(0, |value, (lowest, width)| value << width | bits >> lowest & ((1 << width) - 1))
    }

    /// Returns the mask of the term's bits.
    fn mask(&self) -> u64 {
        self.fields.iter().fold(0, |bits, (lowest, width)| bits | ((1 << width) - 1) << lowest)
    }
}

impl RawConfig {
    /// Creates a configuration from its bits.
    ///
    /// # Errors
    /// [`Bits`](PerfError::Bits): some of `bits` belong to no term.
    ///
    /// ```
    /// use pmu::perf::{PerfError, RawConfig};
    /// assert_eq!(RawConfig::new(0x01C0)?.select().select_bits(), 0x01C0);
    /// // Bit 22 enables a counter, which perf does itself.
    /// assert_eq!(RawConfig::new(0x40_01C0), Err(PerfError::Bits(1 << 22)));
    /// # Ok::<(), PerfError>(())
    /// ```
    pub fn new(bits: u64) -> Result<Self, PerfError> {
        let others = TERMS.iter().fold(bits, |left, term| left & !term.mask());
        if others == 0 { Ok(Self(bits)) } else { Err(PerfError::Bits(others)) }
    }

    /// Returns the configuration as a value of perf's field `config`.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the configuration as an event select. In this event select, the bits for privilege levels are clear.
    pub const fn select(self) -> EventSelect {
        EventSelect::from_bits(self.0)
    }

    /// Returns a value whose `Display` writes the configuration as terms: `cpu/event=0xc0,umask=0x1/`. Terms with the
    /// value 0 are omitted, except `event`.
    pub const fn terms(self) -> RawTerms {
        RawTerms(self)
    }

    /// Parses the terms between the slashes.
    fn of_terms(text: &str, start: usize) -> Result<Self, PerfError> {
        let (mut config, mut at) = (0, start);
        for part in text.split(',') {
            config |= Self::term(part, at).ok_or(PerfError::Term { at })??.0;
            at += part.len() + 1;
        }
        Ok(Self(config))
    }

    /// Parses one term; `None` if there is none of its name.
    pub(crate) fn term(part: &str, at: usize) -> Option<Result<Self, PerfError>> {
        let (name, value) = part.split_once('=').map_or((part, None), |(n, v)| (n, Some(v)));
        let invalid = PerfError::Value { at: at + name.len() + usize::from(value.is_some()) };
        let value = value.map(number);
        Some(match (TERMS.iter().find(|term| term.name == name), value) {
            (Some(term), Some(value)) => {
                value.and_then(|value| term.of(value)).map(Self).ok_or(invalid)
            }
            (Some(term), None) if term.is_flag() => Ok(Self(term.mask())),
            (Some(_), None) => Err(invalid),
            (None, Some(value)) if name == "config" => value.ok_or(invalid).and_then(Self::new),
            (None, None) if name.starts_with('r') => Self::of_raw(name, at),
            _ => return None,
        })
    }

    /// Returns whether a name is `r` and hexadecimal digits. Units may have other names with an `r`.
    pub(crate) fn is_raw(name: &str) -> bool {
        !matches!(Self::of_raw(name, 0), Err(PerfError::Term { .. } | PerfError::Value { .. }))
    }

    /// Parses `r` and hexadecimal digits, with or without a leading `0x`.
    pub(crate) fn of_raw(text: &str, at: usize) -> Result<Self, PerfError> {
        let digits = text.strip_prefix('r').ok_or(PerfError::Term { at })?;
        let digits = digits.strip_prefix("0x").unwrap_or(digits);
        Self::new(hexadecimal(digits).ok_or(PerfError::Value { at: at + 1 })?)
    }
}

/// Parses a number as perf's terms have it: decimal, or hexadecimal after `0x`.
pub(crate) fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => hexadecimal(digits),
        // `parse` would take a sign.
        None => text.bytes().all(|c| c.is_ascii_digit()).then(|| text.parse().ok())?,
    }
}

fn hexadecimal(digits: &str) -> Option<u64> {
    let plain = digits.bytes().all(|c| c.is_ascii_hexdigit());
    plain.then(|| u64::from_str_radix(digits, 16).ok())?
}

impl FromStr for RawConfig {
    type Err = PerfError;

    /// Parses a text such as `r01c0`, or terms between `cpu/` and `/`.
    fn from_str(text: &str) -> Result<Self, PerfError> {
        match text.strip_prefix("cpu/") {
            Some(terms) => {
                let unclosed = PerfError::Term { at: text.len() };
                Self::of_terms(terms.strip_suffix('/').ok_or(unclosed)?, "cpu/".len())
            }
            None => Self::of_raw(text, 0),
        }
    }
}

/// Writes `r01c0`.
impl fmt::Display for RawConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{:04x}", self.0)
    }
}

/// A [`RawConfig`] that `Display` writes as terms: see [`RawConfig::terms`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RawTerms(RawConfig);

impl fmt::Display for RawTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, term) in TERMS.iter().take(WRITTEN).enumerate() {
            let value = term.value(self.0.0);
            let separator = if place == 0 { "cpu/" } else { "," };
            match value {
                0 if place != 0 => {}
                1 if term.is_flag() => write!(f, "{separator}{}", term.name)?,
                _ => write!(f, "{separator}{}={value:#x}", term.name)?,
            }
        }
        f.write_str("/")
    }
}
