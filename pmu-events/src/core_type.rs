//! Core types: the events of each, found by name and by pattern.

use core::fmt;

use pmu_core::{CounterSet, EventSelect};

use crate::event::{Dictionary, PmuEvent, Precise, Record, Shape};
use crate::name::{MAX_NAME, Wanted, distance, matches, odd_character};
use crate::tables::CORE_TYPES;

/// A core type: the events of its counters, and their origin.
///
/// Each core type is a static of its own, for instance [`SKYLAKE`](crate::SKYLAKE): a program that names one links only
/// its table.
///
/// ```
/// use pmu_events::{EventError, SKYLAKE};
/// let event = SKYLAKE.event("inst_retired.any_p")?;
/// assert_eq!(event.name(), "INST_RETIRED.ANY_P");
/// assert_eq!(event.select().select_bits(), 0x00C0);
///
/// let mut loads = SKYLAKE.matching("mem_load_retired.l?_hit")?;
/// assert_eq!(loads.next().unwrap().name(), "MEM_LOAD_RETIRED.L1_HIT");
/// assert_eq!(loads.count(), 2);
///
/// assert_eq!(SKYLAKE.event("inst_retird.any").err(), Some(EventError::Unknown));
/// let [nearest] = SKYLAKE.nearest("inst_retird.any");
/// assert_eq!(nearest.unwrap().name(), "INST_RETIRED.ANY");
/// # Ok::<(), EventError>(())
/// ```
pub struct CoreType {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) published: Option<&'static str>,
    pub(crate) source: &'static str,
    /// Issue slots per cycle, if its top-down metrics count cycles.
    pub(crate) width: u8,
    /// The bits of a select that are the event's number.
    pub(crate) number: u64,
    pub(crate) perf_pmu: &'static str,
    pub(crate) table: Table,
}

/// Table of events from the generator: consecutive records, ascending by name, and a perfect hash of the names. A
/// name's hash selects a bucket, the bucket a seed, and hash and seed a slot, which holds the record's offset.
pub(crate) struct Table {
    seeds: &'static [u8],
    slots: &'static [[u8; 2]],
    records: &'static [u8],
    events: usize,
    shapes: &'static [Shape],
    dictionary: &'static Dictionary,
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
        let (slots, _) = places.as_chunks();
        Self { seeds, slots, records, events, shapes, dictionary }
    }

    #[inline]
    fn find(&self, name: &Wanted<'_>) -> Option<PmuEvent> {
        let seed = *self.seeds.get(name.bucket(self.seeds.len()))?;
        let place = u16::from_le_bytes(*self.slots.get(name.slot(seed, self.slots.len()))?);
        // The offset in an empty slot is beyond the records.
        let (record, _) = Record::read(self.records.get(usize::from(place)..)?, self.shapes)?;
        let event = PmuEvent::new(record, self.dictionary);
        event.is_named(name).then_some(event)
    }
}

impl CoreType {
    /// Finds the core type with this name, in letters of either case: `skylake`, `zen4`, `alderlake_goldencove`.
    ///
    /// # Errors
    /// No core type has this name.
    pub fn named(name: &str) -> Result<&'static Self, UnknownCoreType> {
        let mut all = CORE_TYPES.into_iter();
        all.find(|core_type| core_type.name.eq_ignore_ascii_case(name)).ok_or(UnknownCoreType)
    }

    /// Returns all core types, ascending by name.
    pub fn all() -> impl ExactSizeIterator<Item = &'static Self> + Clone {
        CORE_TYPES.into_iter()
    }

    /// Returns the name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the origin of its events.
    pub const fn source(&self) -> &'static str {
        self.source
    }

    /// Returns the version of its origin.
    pub const fn version(&self) -> &'static str {
        self.version
    }

    /// Returns the day on which that version was published (`2024-04-04`), if the origin states it.
    pub const fn published(&self) -> Option<&'static str> {
        self.published
    }

    /// Returns the name of its PMU in Linux' perf: `cpu`, or `cpu_core` or `cpu_atom` on a hybrid.
    pub const fn perf_pmu(&self) -> &'static str {
        self.perf_pmu
    }

    /// Finds the event with this name, in letters of either case.
    ///
    /// # Context
    /// Any; at most 400 instructions if the event exists.
    ///
    /// # Errors
    /// [`Unknown`](EventError::Unknown), [`TooLong`](EventError::TooLong), [`Character`](EventError::Character).
    pub fn event(&self, name: &str) -> Result<PmuEvent, EventError> {
        match Wanted::new(name, &mut [0; _]) {
            Some(wanted) => self.table.find(&wanted).ok_or_else(|| unknown(name)),
            None => Err(EventError::TooLong),
        }
    }

    /// Returns all of its events, ascending by name.
    pub fn events(&self) -> Events {
        let Table { records, events, shapes, dictionary, .. } = self.table;
        Events { rest: records, left: events, shapes, dictionary }
    }

    /// Returns the counters that can count the event with this encoding, for [`Event::on`](pmu_core::Event::on): the
    /// general ones that the table gives it, and every fixed one, of which the processor's own description knows the
    /// events. Of an encoding that only a fixed counter has (event 0), that counter. `None`: the table has no event of
    /// this number, so that nothing is known. Mode bits and others that select no event are ignored.
    ///
    /// Events that can only be sampled precisely do not confine an encoding that others have, too. For a unit mask or
    /// qualifiers that the table lacks, these are the counters that can count each of the table's events with this
    /// unit mask, or else with this number; where no counter can count each of them, those that can count one.
    ///
    /// ```
    /// use pmu_core::{CounterSet, Event, EventSelect};
    /// // MEM_LOAD_RETIRED.L3_MISS of Sapphire Rapids is confined to counters 0–3.
    /// let select = EventSelect::from_bits(0x20D1);
    /// let counters = pmu_events::SAPPHIRERAPIDS.constraints(select).unwrap_or(CounterSet::ALL);
    /// assert_eq!(counters & CounterSet::GENERAL, CounterSet::from_bits(0b1111));
    /// let event = Event::raw(select).on(counters);
    /// # let _ = event;
    /// ```
    ///
    /// # Context
    /// Task: it looks at each event of the table, up to 2,344.
    pub fn constraints(&self, select: EventSelect) -> Option<CounterSet> {
        const UNIT_MASK: u64 = 0xFF00_0000_FF00;
        /// Edge, any thread, inversion, counter mask.
        const QUALIFIERS: u64 = 0xFFA4_0000;
        let bits = select.select_bits();
        // From the narrowest mask of bits that are an event's.
        let masks = [QUALIFIERS | UNIT_MASK | self.number, UNIT_MASK | self.number, self.number];
        let counters = masks.iter().find_map(|mask| {
            let counted = |precise_only: bool| {
                let mut sets = self.events().filter(|event| {
                    let mut encodings = event.encodings();
                    (event.precise() == Precise::Only) == precise_only
                        && encodings.any(|way| (way.select.select_bits() ^ bits) & mask == 0)
                });
                let first = sets.next()?.counters();
                let both = |(every, any), event: PmuEvent| {
                    (every & event.counters(), any | event.counters())
                };
                let (every, any) = sets.fold((first, first), both);
                Some(if every.is_empty() { any } else { every })
            };
            counted(false).or_else(|| counted(true))
        })?;
        let general = !(counters & CounterSet::GENERAL).is_empty();
        Some(if general { counters | CounterSet::FIXED } else { counters })
    }

    /// Finds the events whose names match a pattern, in letters of either case: `*` stands for any text, `?` for any
    /// character. There may be none, or all.
    ///
    /// # Errors
    /// [`Character`](EventError::Character), [`TooLong`](EventError::TooLong).
    pub fn matching<'p>(&self, pattern: &'p str) -> Result<Matching<'p>, EventError> {
        let wildcard = |c: &(usize, u8)| c.1 != b'*' && c.1 != b'?';
        for (at, _) in pattern.bytes().enumerate().filter(wildcard) {
            if odd_character(pattern.get(at..=at).unwrap_or("\0")).is_some() {
                return Err(EventError::Character { at });
            }
        }
        if pattern.len() > MAX_NAME {
            return Err(EventError::TooLong);
        }
        Ok(Matching { events: self.events(), pattern })
    }

    /// Finds the only event whose name matches a pattern.
    ///
    /// # Errors
    /// As [`matching`](Self::matching); [`Unknown`](EventError::Unknown) if no event matches,
    /// [`Ambiguous`](EventError::Ambiguous) if several do.
    pub fn only_match(&self, pattern: &str) -> Result<PmuEvent, EventError> {
        let mut matching = self.matching(pattern)?;
        let event = matching.next().ok_or(EventError::Unknown)?;
        match matching.count() {
            0 => Ok(event),
            others => Err(EventError::Ambiguous { matches: others + 1 }),
        }
    }

    /// Finds the events whose names are nearest to some text, by edit distance; nearest first, and ascending by name
    /// among equals. None, of a text longer than [`MAX_NAME`].
    ///
    /// # Context
    /// Task: it compares all names, in some hundred thousand to some million steps.
    pub fn nearest<const COUNT: usize>(&self, name: &str) -> [Option<PmuEvent>; COUNT] {
        let mut nearest = [None; COUNT];
        if name.len() > MAX_NAME {
            return nearest;
        }
        let mut distances = [usize::MAX; COUNT];
        for event in self.events() {
            let far = distance(event.name().as_str().as_bytes(), name.as_bytes());
            let place = distances.partition_point(|other| *other <= far);
            if let (Some(behind), Some(others)) =
                (nearest.get_mut(place..), distances.get_mut(place..))
                && !behind.is_empty()
            {
                behind.rotate_right(1);
                others.rotate_right(1);
                behind[0] = Some(event);
                others[0] = far;
            }
        }
        nearest
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

/// Returns the error of a name that was not found.
#[cold]
fn unknown(name: &str) -> EventError {
    odd_character(name).map_or(EventError::Unknown, |at| EventError::Character { at })
}

/// The events of a core type, ascending by name.
#[derive(Clone)]
pub struct Events {
    rest: &'static [u8],
    left: usize,
    shapes: &'static [Shape],
    dictionary: &'static Dictionary,
}

impl Iterator for Events {
    type Item = PmuEvent;

    fn next(&mut self) -> Option<PmuEvent> {
        let (record, rest) = Record::read(self.rest, self.shapes)?;
        self.rest = rest;
        self.left = self.left.saturating_sub(1);
        Some(PmuEvent::new(record, self.dictionary))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Events {}

/// The events of a core type whose names match a pattern, ascending by name.
#[derive(Clone)]
pub struct Matching<'p> {
    events: Events,
    pattern: &'p str,
}

impl Iterator for Matching<'_> {
    type Item = PmuEvent;

    fn next(&mut self) -> Option<PmuEvent> {
        let pattern = self.pattern.as_bytes();
        self.events.find(|event| matches(pattern, event.name().as_str().as_bytes()))
    }
}

/// Reason that a name or a pattern has no event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum EventError {
    /// The core type has no such event: see [`nearest`](CoreType::nearest).
    Unknown,
    /// No event's name contains this character.
    Character {
        /// Byte offset in the name.
        at: usize,
    },
    /// The text is longer than any event's name, [`MAX_NAME`] bytes.
    TooLong,
    /// Several events match; only one was expected.
    Ambiguous {
        /// Number of matching events.
        matches: usize,
    },
    /// The event belongs to another core type of the same processor model: the other kind of a hybrid's cores, or
    /// another stepping.
    OtherCore(&'static CoreType),
}

impl fmt::Display for EventError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("no event has this name"),
            Self::Character { at } => {
                write!(f, "no event's name has the character at byte {at}")
            }
            Self::TooLong => write!(f, "longer than {MAX_NAME} bytes, as no event's name is"),
            Self::Ambiguous { matches } => write!(f, "{matches} events match, not one"),
            Self::OtherCore(other) => {
                write!(f, "an event of {other}, which is another core type of the same model")
            }
        }
    }
}

impl core::error::Error for EventError {}

/// No core type has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct UnknownCoreType;

impl fmt::Display for UnknownCoreType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no core type has this name")
    }
}

impl core::error::Error for UnknownCoreType {}
