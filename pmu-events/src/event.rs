//! An event of a core type, with its encodings and constraints.

use core::fmt;

use pmu_core::{CounterSet, Event, EventSelect, MsrAddress};

use crate::name::{EventName, MAX_TOKEN, ROOM, SHORT_TOKENS, TOKENS, Wanted};
use crate::tables::ERRATA;

/// An event of a core type: its encodings, and the counters that can count it.
///
/// ```
/// use pmu_core::{CounterSet, Event};
/// let event = pmu_events::SKYLAKE.event("offcore_response.demand_data_rd.any_response")?;
/// let [first, second] = [0, 1].map(|place| event.encodings().nth(place).unwrap());
/// assert_eq!(first.select.select_bits(), 0x01B7);
/// assert_eq!(first.extra.map(|extra| (extra.register, extra.value)), Some((0x1A6, 0x10001)));
/// assert_eq!(second.select.select_bits(), 0x01BB); // the same, by the other register
/// assert_eq!(second.extra.map(|extra| extra.register), Some(0x1A7));
///
/// // For the counter layer: on the counters that can count it.
/// let slots = pmu_events::ICELAKE.event("TOPDOWN.SLOTS")?;
/// assert!(slots.is_fixed_only());
/// assert_eq!(slots.counters(), CounterSet::fixed(0b1000));
/// let slots: Event = slots.into();
/// # let _ = slots;
/// # Ok::<(), pmu_events::EventError>(())
/// ```
#[derive(Clone, Copy)]
pub struct PmuEvent {
    record: Record,
    dictionary: &'static Dictionary,
}

impl PmuEvent {
    pub(crate) const fn new(record: Record, dictionary: &'static Dictionary) -> Self {
        Self { record, dictionary }
    }

    /// Returns the name, as its origin spells it.
    pub fn name(&self) -> EventName {
        let mut name = EventName::EMPTY;
        for token in self.dictionary.tokens(self.record.name) {
            token.push_to(&mut name);
        }
        name
    }

    /// Returns the event select: event, unit mask with its extension, and qualifiers, without mode bits and the bits
    /// that make it run. Of several encodings, this is the first. Where only a fixed counter counts the event, no
    /// counter has this select: it is the encoding that the vendor's list gives.
    pub const fn select(&self) -> EventSelect {
        EventSelect::from_bits(self.record.select)
    }

    /// Returns the counters that can count it; a processor of the core type may lack some of them. AMD's events are on
    /// all general counters.
    pub const fn counters(&self) -> CounterSet {
        CounterSet::from_bits(self.record.shape.counters)
    }

    /// Returns whether it happens more than 15 times per cycle, so that it counts right only on a pair of counters:
    /// retired floating-point operations of AMD's Zen. The counter layer makes no pairs, and
    /// [refuses](pmu_core::CounterError::NeedsCounterPair) the event unless the caller vouches that it happens [less
    /// often](Event::at_most_15_per_cycle).
    pub const fn needs_counter_pair(&self) -> bool {
        self.record.shape.needs_pair
    }

    /// Returns whether only a fixed counter counts it, whatever its select.
    pub const fn is_fixed_only(&self) -> bool {
        self.record.shape.counters & CounterSet::GENERAL.bits() == 0
    }

    /// Returns its encodings: one, or one per MSR if several MSRs can serve it. All count the same.
    pub fn encodings(&self) -> impl ExactSizeIterator<Item = Encoding> + Clone {
        let Record { select, shape, value, .. } = self.record;
        let value = value.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
        (0..shape.others.len() + 1).map(move |place| {
            let other = place.checked_sub(1).and_then(|place| shape.others.get(place)).copied();
            let register = shape.registers.get(place).copied();
            Encoding {
                select: EventSelect::from_bits(select ^ u64::from(other.unwrap_or(0))),
                extra: register.map(|register| ExtraMsr { register: register.into(), value }),
            }
        })
    }

    /// Returns the MSR that refines the event, and its value. Of several encodings, this is the first one's.
    pub fn extra(&self) -> Option<ExtraMsr> {
        self.encodings().next().and_then(|encoding| encoding.extra)
    }

    /// Returns whether the event can or must be sampled precisely.
    pub const fn precise(&self) -> Precise {
        self.record.shape.precise
    }

    /// Returns the numbers of the vendor's errata about the event: `SKL091;SKL044`.
    pub fn errata(&self) -> Option<&'static str> {
        self.record.erratum.and_then(|place| ERRATA.get(usize::from(place)).copied())
    }

    /// Returns the configuration with which Linux' perf opens the event (`config` of type `PERF_TYPE_RAW`), and the
    /// extra MSR's value (`config1`).
    ///
    /// The configuration is the select, except that perf opens fixed counters 0 and 1 by the numbers of the same events
    /// on general counters, 0xC0 and 0x3C. Source: the constraints in Linux' `arch/x86/events/intel/core.c`.
    pub fn perf_config(&self) -> (u64, u64) {
        let qualifiers = self.record.select & !0xFFFF;
        let config = match (self.is_fixed_only(), self.record.select & 0xFFFF) {
            (true, 0x0100) => qualifiers | 0x00C0,
            (true, 0x0200) => qualifiers | 0x003C,
            _ => self.record.select,
        };
        (config, self.extra().map_or(0, |extra| extra.value))
    }

    /// Returns whether this is its name, in letters of either case.
    #[inline]
    pub(crate) fn is_named(&self, name: &Wanted<'_>) -> bool {
        let mut at = 0;
        for token in self.dictionary.tokens(self.record.name) {
            if (name.window(at) ^ token.spelled) & token.mask != 0 {
                return false;
            }
            at = (at + usize::from(token.len)) % ROOM;
        }
        at == name.len()
    }
}

/// Converts to an event of the counter layer: at every privilege level, on the counters that can count it, with each of
/// its encodings and their [extra registers](Event::with_extra).
///
/// Take the event from the [`Processor`](crate::Processor) that is to count it: on another core type the same select
/// may be another event, which the counters cannot know.
impl From<PmuEvent> for Event {
    fn from(event: PmuEvent) -> Self {
        let plain = Self::raw(event.select()).on(event.counters());
        event.encodings().enumerate().fold(plain, |plain, (place, Encoding { select, extra })| {
            match extra.and_then(|extra| Some((extra.address()?, extra.value))) {
                Some((register, value)) if place == 0 => plain.with_extra(register, value),
                Some((register, _)) => plain.or_with_extra(select.select_bits() as u16, register),
                None => plain,
            }
        })
    }
}

impl fmt::Debug for PmuEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.name(), self.select())
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for PmuEvent {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "{} ({})", self.name(), self.select());
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for EventName {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "{=str}", self.as_str());
    }
}

/// One way to count an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Encoding {
    /// Event select, without mode bits and the bits that make it run.
    pub select: EventSelect,
    /// MSR that refines the event.
    pub extra: Option<ExtraMsr>,
}

/// An MSR that refines an event beyond its select, and the value for it. Events that need different values of it cannot
/// be counted at the same time.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ExtraMsr {
    /// Address of the register: `OFFCORE_RSP_0` and `_1` (0x1A6, 0x1A7), `PEBS_LD_LAT_THRESHOLD` (0x3F6),
    /// `PEBS_FRONTEND` (0x3F7), or off-module response (0x3E0–0x3E3).
    pub register: u32,
    /// Value of the register.
    pub value: u64,
}

impl ExtraMsr {
    /// Returns the register as the counter layer takes it. Every register of the tables is one of these.
    pub const fn address(&self) -> Option<MsrAddress> {
        match self.register {
            0x1A6 | 0x1A7 | 0x3E0..=0x3E3 | 0x3F6 | 0x3F7 => {
                // SAFETY: masks and thresholds of events (SDM vol. 4); none holds an address.
                Some(unsafe { MsrAddress::new(self.register) })
            }
            _ => None,
        }
    }
}

impl fmt::Debug for ExtraMsr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MSR {:#X} = {:#X}", self.register, self.value)
    }
}

/// Support of an event for precise sampling (PEBS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Precise {
    /// The event cannot be sampled precisely.
    No,
    /// The event can be sampled precisely.
    Possible,
    /// The event must be sampled precisely; otherwise it has no meaning.
    Only,
}

/// The properties that many events share.
#[derive(Debug)]
pub(crate) struct Shape {
    /// Bits 63:16 of the select.
    pub(crate) select: u64,
    /// A [`CounterSet`]'s bits.
    pub(crate) counters: u64,
    /// Bits 15:0 in which the select of each further encoding differs from the first one's.
    pub(crate) others: &'static [u16],
    /// The MSR of each encoding, if any.
    pub(crate) registers: &'static [u16],
    pub(crate) precise: Precise,
    /// Set if the record refers to [`ERRATA`].
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
    select: u64,
    shape: &'static Shape,
    /// Value of the MSR, without leading zeros.
    value: &'static [u8],
    /// Index in [`ERRATA`].
    erratum: Option<u8>,
    name: &'static [u8],
}

impl Record {
    /// Reads the record at the beginning of `bytes`, and returns it with the rest.
    #[inline]
    pub(crate) fn read(
        bytes: &'static [u8],
        shapes: &'static [Shape],
    ) -> Option<(Self, &'static [u8])> {
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
    fn tokens(&'static self, bytes: &'static [u8]) -> impl Iterator<Item = &'static Token> {
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

/// Some characters of names.
#[derive(Clone, Copy, Debug)]
struct Token {
    spelled: u128,
    /// Ones in the bits that must be the same: of letters, all but the one that tells their case.
    mask: u128,
    len: u8,
}

impl Token {
    const fn new(text: &str) -> Self {
        let mut spelled = [0; MAX_TOKEN];
        let mut mask = [0; MAX_TOKEN];
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            spelled[at] = bytes[at];
            mask[at] = if bytes[at].is_ascii_alphabetic() { !0x20 } else { !0 };
            at += 1;
        }
        Self {
            spelled: u128::from_le_bytes(spelled),
            mask: u128::from_le_bytes(mask),
            len: bytes.len() as u8,
        }
    }

    /// Appends it to a name.
    fn push_to(&self, name: &mut EventName) {
        let text = self.spelled.to_le_bytes();
        name.push(text.get(..usize::from(self.len)).unwrap_or_default());
    }
}
