//! The form of the generated tables: what they consist of, and how it is read.
//!
//! Uses [names](crate::name) alone, and looks nothing up.

use core::fmt;

use crate::name::EventName;
use crate::name::hash::{MAX_TOKEN, SHORT_TOKENS, TOKENS};

/// Table of events from the generator: consecutive records, ascending by name, and a perfect hash of the names. A
/// name's hash selects a bucket, the bucket a seed, and hash and seed a slot, which holds the record's offset.
pub(crate) struct Table {
    pub(crate) seeds: &'static [u8],
    pub(crate) slots: &'static [[u8; 2]],
    pub(crate) records: &'static [u8],
    pub(crate) events: usize,
    pub(crate) shapes: &'static [Shape],
    pub(crate) dictionary: &'static Dictionary,
}

impl Table {
    /// Returns the table with these numbers of events, of buckets, and of slots.
    pub(crate) const fn new(
        bytes: &'static [u8],
        [events, buckets, slots]: [usize; 3],
        shapes: &'static [Shape],
        dictionary: &'static Dictionary,
    ) -> Self {
        let (seeds, rest) = bytes.split_at(buckets);
        let (places, records) = rest.split_at(2 * slots);
        // Pairs of bytes, not numbers: what `include_bytes!` yields has no alignment.
        let (slots, _) = places.as_chunks();
        Self { seeds, slots, records, events, shapes, dictionary }
    }
}

/// A microarchitecture of cores, such as `skylake` or `zen4`, with its name, its events, and the source of the events.
///
/// Each core type is a static, for instance [`SKYLAKE`](crate::SKYLAKE). A program contains only the tables of the
/// statics that the program uses.
///
/// ```
/// use pmu_events::{EventError, SKYLAKE};
/// let event = SKYLAKE.event("inst_retired.any_p")?;
/// assert_eq!(event.name(), "INST_RETIRED.ANY_P");
/// assert_eq!(event.select().select_bits(), 0x00C0);
/// println!("{}, from {}, version {}", SKYLAKE.name(), SKYLAKE.source(), SKYLAKE.version());
/// # Ok::<(), EventError>(())
/// ```
pub struct CoreType {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) published: Option<&'static str>,
    pub(crate) source: &'static str,
    /// The bits of a select that are the event's number.
    pub(crate) number: u64,
    pub(crate) perf_pmu: &'static str,
    pub(crate) table: Table,
}

impl CoreType {
    /// Returns the name of the core type, such as `skylake` or `alderlake_goldencove`.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the file from which the core type's events were taken: a file of Intel's perfmon repository, or of
    /// Linux' perf.
    pub const fn source(&self) -> &'static str {
        self.source
    }

    /// Returns the version of the [`source`](Self::source) of the core type's events: the version of Intel's event
    /// list, or of Linux.
    pub const fn version(&self) -> &'static str {
        self.version
    }

    /// Returns the date on which Intel published this [`version`](Self::version) of the event list, such as
    /// `2024-04-04`. Returns `None` if the list has no date.
    pub const fn published(&self) -> Option<&'static str> {
        self.published
    }

    /// Returns the name that Linux' perf gives to the PMU of cores of this type: `cpu`; on a hybrid, `cpu_core` or
    /// `cpu_atom`.
    ///
    /// ```
    /// // Linux has the number of the PMU, the `type` that perf_event_open takes, in a file.
    /// let pmu = pmu_events::ALDERLAKE_GRACEMONT.perf_pmu();
    /// let number = format!("/sys/bus/event_source/devices/{pmu}/type");
    /// assert_eq!(number, "/sys/bus/event_source/devices/cpu_atom/type");
    /// ```
    pub const fn perf_pmu(&self) -> &'static str {
        self.perf_pmu
    }
}

/// Compares two core types by their names.
impl PartialEq for CoreType {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for CoreType {}

impl fmt::Debug for CoreType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Display for CoreType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for CoreType {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "{=str}", self.name);
    }
}

/// Processors with the same core type: a family and ranges of models and steppings.
pub(crate) struct Model {
    pub(crate) vendor: [u8; 12],
    pub(crate) family: u16,
    /// First model and last.
    pub(crate) models: [u8; 2],
    /// First stepping and last.
    pub(crate) steppings: [u8; 2],
    /// A hybrid's: type and native model in EAX of leaf 0x1A.
    pub(crate) core: Option<u32>,
    pub(crate) core_type: &'static CoreType,
}

impl Model {
    pub(crate) fn is_of(&self, vendor: [u8; 12], family: u16, model: u8, stepping: u8) -> bool {
        let within = |[first, last]: [u8; 2], number| (first..=last).contains(&number);
        self.vendor == vendor
            && self.family == family
            && within(self.models, model)
            && within(self.steppings, stepping)
    }
}

/// The tokens of a vendor's names; the last ones may be empty.
#[derive(Debug)]
pub(crate) struct Dictionary([Token; TOKENS]);

impl Dictionary {
    /// Creates the dictionary of some texts, of at most [`MAX_TOKEN`] bytes each.
    pub(crate) const fn new(texts: &[&str]) -> Self {
        let mut tokens = [Token::new(""); TOKENS];
        let mut place = 0;
        while place < texts.len() {
            tokens[place] = Token::new(texts[place]);
            place += 1;
        }
        Self(tokens)
    }

    /// Returns the tokens that these bytes encode.
    #[inline]
    pub(crate) fn tokens(
        &'static self,
        bytes: &'static [u8],
    ) -> impl Iterator<Item = &'static Token> {
        let Self(tokens) = self;
        let mut bytes = bytes.iter();
        core::iter::from_fn(move || {
            let mut place = usize::from(*bytes.next()?);
            if place >= SHORT_TOKENS {
                place = SHORT_TOKENS + (place - SHORT_TOKENS) * 256 + usize::from(*bytes.next()?);
            }
            tokens.get(place)
        })
    }
}

/// A token: some characters that names consist of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    pub(crate) spelled: u128,
    /// Ones in the bits that must be the same: in letters, all bits but that of the case.
    pub(crate) mask: u128,
    pub(crate) len: u8,
}

impl Token {
    const fn new(text: &str) -> Self {
        let mut spelled = [0; MAX_TOKEN];
        let mut mask = [0; MAX_TOKEN];
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            spelled[at] = bytes[at];
            // In ASCII, bit 5 is the case of a letter, which a name that is looked up need not share.
            mask[at] = if bytes[at].is_ascii_alphabetic() { !0x20 } else { !0 };
            at += 1;
        }
        Self {
            spelled: u128::from_le_bytes(spelled),
            mask: u128::from_le_bytes(mask),
            len: bytes.len() as u8,
        }
    }

    /// Appends the token to a name.
    pub(crate) fn push_to(&self, name: &mut EventName) {
        let text = self.spelled.to_le_bytes();
        name.push(text.get(..usize::from(self.len)).unwrap_or_default());
    }
}

/// Precise sampling of an event by Intel's PEBS: impossible, possible or required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Precise {
    /// The event cannot be sampled precisely.
    No,
    /// The event can be sampled precisely.
    Possible,
    /// The event must be sampled precisely. Without precise sampling, the count of the event has no meaning.
    Only,
}

/// The properties that many events share.
#[derive(Debug)]
pub(crate) struct Shape {
    /// Bits 63:16 of the select.
    pub(crate) select: u64,
    /// A [`CounterSet`](pmu_core::CounterSet)'s bits.
    pub(crate) counters: u64,
    /// Bits 15:0 in which the select of each further encoding differs from the first one's.
    pub(crate) others: &'static [u16],
    /// The MSR of each encoding, if any.
    pub(crate) registers: &'static [u16],
    pub(crate) precise: Precise,
    /// Set if the record refers to [`ERRATA`](crate::tables::ERRATA).
    pub(crate) has_erratum: bool,
    pub(crate) needs_pair: bool,
}

/// An event of a table, in its encoded form:
///
/// | bytes | |
/// |---|---|
/// | 1 | place of its shape |
/// | 2 | event, unit mask |
/// | 1 | where the shape has errata: their place |
/// | 1, n | where the shape has registers: the number of bytes of the MSR's value, and those |
/// | 1, n | the number of bytes of its name's tokens, and those |
#[derive(Clone, Copy)]
pub(crate) struct Record {
    pub(crate) select: u64,
    pub(crate) shape: &'static Shape,
    /// Value of the MSR, without leading zeros.
    pub(crate) value: &'static [u8],
    /// Index in [`ERRATA`](crate::tables::ERRATA).
    pub(crate) erratum: Option<u8>,
    pub(crate) name: &'static [u8],
}

impl Record {
    /// Reads the record at the beginning of `bytes`, and returns it with the rest.
    #[inline]
    pub(crate) fn read(
        bytes: &'static [u8],
        shapes: &'static [Shape],
    ) -> Option<(Self, &'static [u8])> {
        // Checked to the end, though the generator has written the bytes: nothing in a library may panic.
        let ([shape, event, unit_mask], mut rest) = bytes.split_first_chunk()?;
        let shape = shapes.get(usize::from(*shape))?;
        let mut erratum = None;
        if shape.has_erratum {
            let (place, behind) = rest.split_first()?;
            (erratum, rest) = (Some(*place), behind);
        }
        let mut value: &[u8] = &[];
        if !shape.registers.is_empty() {
            let (len, behind) = rest.split_first()?;
            let (bytes, behind) = behind.split_at_checked(usize::from(*len))?;
            (value, rest) = (bytes, behind);
        }
        let (len, behind) = rest.split_first()?;
        let (name, behind) = behind.split_at_checked(usize::from(*len))?;
        let select = shape.select | u64::from(*unit_mask) << 8 | u64::from(*event);
        Some((Self { select, shape, value, erratum, name }, behind))
    }
}

/// Formula of a metric for some core types, as text.
///
/// The text consists of numbers, names of events and of other metrics, `+ - * /`, parentheses, `max(a, b)`,
/// `min(a, b)`, `d_ratio(a, b)`, which is 0 if `b` is 0, and `a if b < c else d`. An event's name may be followed by
/// fields of its select, such as `:cmask=1:edge=1`.
pub(crate) struct Formula {
    /// Name of the metric.
    pub(crate) metric: &'static str,
    /// Names of the core types, separated by spaces.
    pub(crate) core_types: &'static str,
    pub(crate) text: &'static str,
}

impl Formula {
    /// Returns whether the formula is that of a metric for a core type.
    pub(crate) fn is_of(&self, metric: &str, core_type: &str) -> bool {
        // By whole names: `skylake` is the beginning of `skylakex`.
        self.metric == metric && self.core_types.split(' ').any(|name| name == core_type)
    }
}
