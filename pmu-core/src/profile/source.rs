//! Profile sources: the `KPROFILE_SOURCE` enumeration and the rows of an interface's table.

use core::fmt;

use crate::counters::registers::counter::EventSelect;
use crate::interval::IntervalLimits;

/// A value of `KPROFILE_SOURCE`: the number of a profile source. A profile source counts an event, or measures time,
/// and raises a profile interrupt after each interval.
///
/// Values 0x00–0x17 are common to all processors and have constants here. Values from 0x19 on belong to the profile
/// interface in use, so the same value can mean different events on different processors. `ProfileMaximum`, 0x18, is
/// the number of values common to all processors, and is not itself a source.
///
/// Source: WDM.H, `KPROFILE_SOURCE`.
///
/// ```
/// use pmu_core::profile::KProfileSource;
/// let cycles = KProfileSource::TOTAL_CYCLES;
/// assert_eq!((cycles.value(), cycles.general_name()), (0x13, Some("ProfileTotalCycles")));
/// // 0x18 is no source, and the values above belong to an interface.
/// assert_eq!(KProfileSource::new(0x18), None);
/// assert_eq!(KProfileSource::new(0x19).map(KProfileSource::is_general), Some(false));
/// ```
///
/// # Limitations
/// A source has one interval on the whole machine, as in Windows. A profile of an event has a period of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct KProfileSource(u32);

macro_rules! general_sources {
    ($($value:literal $constant:ident $name:literal $meaning:literal)*) => {
        impl KProfileSource {
            $(#[doc = $meaning] pub const $constant: Self = Self($value);)*
        }

        const GENERAL_NAMES: [&str; KProfileSource::MAXIMUM as usize] = [$($name),*];
    };
}

general_sources! {
    0x00 TIME "ProfileTime" "A periodic timer. The source's interval is in units of 100 ns."
    0x01 ALIGNMENT_FIXUP "ProfileAlignmentFixup" "Alignment faults that the kernel fixed up. No hardware counter counts these faults."
    0x02 TOTAL_ISSUES "ProfileTotalIssues" "Instructions. The name says issued; the Emon and Amd64 interfaces count retired instructions."
    0x03 PIPELINE_DRY "ProfilePipelineDry" "Cycles with nothing to issue."
    0x04 LOAD_INSTRUCTIONS "ProfileLoadInstructions" "Load instructions."
    0x05 PIPELINE_FROZEN "ProfilePipelineFrozen" "Cycles in which the pipeline could not advance."
    0x06 BRANCH_INSTRUCTIONS "ProfileBranchInstructions" "Branch instructions."
    0x07 TOTAL_NONISSUES "ProfileTotalNonissues" "Cycles without an issue."
    0x08 DCACHE_MISSES "ProfileDcacheMisses" "Data-cache misses."
    0x09 ICACHE_MISSES "ProfileIcacheMisses" "Instruction-cache misses."
    0x0A CACHE_MISSES "ProfileCacheMisses" "Misses of the last-level cache."
    0x0B BRANCH_MISPREDICTIONS "ProfileBranchMispredictions" "Mispredicted branches."
    0x0C STORE_INSTRUCTIONS "ProfileStoreInstructions" "Store instructions."
    0x0D FP_INSTRUCTIONS "ProfileFpInstructions" "Floating-point instructions."
    0x0E INTEGER_INSTRUCTIONS "ProfileIntegerInstructions" "Integer instructions."
    0x0F TWO_ISSUE "Profile2Issue" "Cycles in which two instructions issued."
    0x10 THREE_ISSUE "Profile3Issue" "Cycles in which three instructions issued."
    0x11 FOUR_ISSUE "Profile4Issue" "Cycles in which four instructions issued."
    0x12 SPECIAL_INSTRUCTIONS "ProfileSpecialInstructions" "Special instructions."
    0x13 TOTAL_CYCLES "ProfileTotalCycles" "Processor cycles."
    0x14 ICACHE_ISSUES "ProfileIcacheIssues" "Instruction-cache fetches."
    0x15 DCACHE_ACCESSES "ProfileDcacheAccesses" "Data-cache accesses."
    0x16 MEMORY_BARRIER_CYCLES "ProfileMemoryBarrierCycles" "Cycles waiting at memory barriers."
    0x17 LOAD_LINKED_ISSUES "ProfileLoadLinkedIssues" "Load-linked instructions."
}

impl KProfileSource {
    /// `ProfileMaximum`: the number of sources that are [the same on every processor](Self::is_general). This value
    /// itself is not a source.
    pub const MAXIMUM: u32 = 0x18;

    /// Returns the source with this value; `None` if the value is [`MAXIMUM`](Self::MAXIMUM), which is not a source.
    pub const fn new(value: u32) -> Option<Self> {
        if value == Self::MAXIMUM { None } else { Some(Self(value)) }
    }

    /// Returns the source's value in Windows' enumeration `KPROFILE_SOURCE`.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Returns whether the value means the same event on every processor (0x00–0x17).
    pub const fn is_general(self) -> bool {
        self.0 < Self::MAXIMUM
    }

    /// Returns the name in WDM.H of a source that is [the same on every processor](Self::is_general). Returns `None`
    /// for a processor-specific source, whose name is in the interface's table.
    ///
    /// ```
    /// # use pmu_core::profile::KProfileSource;
    /// assert_eq!(KProfileSource::TIME.general_name(), Some("ProfileTime"));
    /// let specific = KProfileSource::new(0x19).unwrap();
    /// assert_eq!(specific.general_name(), None); // Its name is in the table of the processor's interface.
    /// ```
    pub fn general_name(self) -> Option<&'static str> {
        GENERAL_NAMES.get(self.0 as usize).copied()
    }

    /// Returns the sources that are [the same on every processor](Self::is_general), in ascending order of their
    /// values.
    pub fn general() -> impl ExactSizeIterator<Item = Self> {
        (0..Self::MAXIMUM).map(Self)
    }
}

impl fmt::Debug for KProfileSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.general_name() {
            Some(name) => write!(f, "{name} ({:#04X})", self.0),
            None => write!(f, "profile source {:#04X}", self.0),
        }
    }
}

impl fmt::Display for KProfileSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl TryFrom<u32> for KProfileSource {
    type Error = NotASource;

    fn try_from(value: u32) -> Result<Self, NotASource> {
        Self::new(value).ok_or(NotASource)
    }
}

/// Error: the given value is 0x18, `ProfileMaximum`, which is not a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct NotASource;

impl fmt::Display for NotASource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProfileMaximum (0x18) is the number of general sources, not a source")
    }
}

impl core::error::Error for NotASource {}

/// One row of a profile interface's table of sources.
///
/// ```
/// use pmu_core::profile::ProfileSource;
/// use pmu_core::registers::EventSelect;
/// let row = ProfileSource::new(0x1C, "ProfileLLCReference", EventSelect::from_bits(0x3_4F2E)).declared_by(3);
/// assert_eq!((row.source().value(), row.windows_name(), row.event_bit()), (0x1C, "LLCReference", Some(3)));
/// assert!(row.is_named("ProfileLLCReference") && row.is_named("LLCReference"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ProfileSource {
    source: KProfileSource,
    name: &'static str,
    windows_spelling: Option<&'static str>,
    select: EventSelect,
    event_bit: Option<u8>,
    canonical: Option<KProfileSource>,
}

impl ProfileSource {
    /// Creates a row of an interface's table of sources, from the source's value, its documented name and its event
    /// select. The select has bits 16 and 17, by which it counts in user mode and in the kernel: one without them
    /// counts nothing. The driver adds those that enable the counter and its interrupt.
    ///
    /// # Panics
    /// At compile time, if the value is `ProfileMaximum`.
    pub const fn new(value: u32, name: &'static str, select: EventSelect) -> Self {
        let source = source(value);
        Self { source, name, windows_spelling: None, select, event_bit: None, canonical: None }
    }

    /// Sets the name that Windows reports for the source. By default, this is the documented name without the `Profile`
    /// prefix.
    pub const fn spelled(mut self, windows: &'static str) -> Self {
        self.windows_spelling = Some(windows);
        self
    }

    /// Restricts the source to processors that have a certain architectural event. `event_bit` is the number of this
    /// event's bit in EBX of CPUID leaf 0x0A. The interface checks the boot processor. For the first eight
    /// architectural events, a [`Session`](crate::profile::Session) also checks the
    /// [generic events](crate::CounterUnit::generic) of its own processor.
    pub const fn declared_by(mut self, event_bit: u8) -> Self {
        self.event_bit = Some(event_bit);
        self
    }

    /// Declares that this row and the row with the value `canonical` are two names of one source. The names share an
    /// interval. Each name can run on a counter of its own.
    ///
    /// # Panics
    /// At compile time, if the value is `ProfileMaximum`.
    pub const fn another_name_of(mut self, canonical: u32) -> Self {
        self.canonical = Some(source(canonical));
        self
    }

    /// Returns the source of this row.
    pub const fn source(&self) -> KProfileSource {
        self.source
    }

    /// Returns the documented name, with its `Profile` prefix.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the name that Windows reports. Returns `None` if Windows reports the documented name without the
    /// `Profile` prefix.
    pub const fn windows_spelling(&self) -> Option<&'static str> {
        self.windows_spelling
    }

    /// Returns the string that Windows itself reports for this source.
    pub fn windows_name(&self) -> &'static str {
        let unprefixed = || self.name().strip_prefix("Profile").unwrap_or(self.name());
        self.windows_spelling().unwrap_or_else(unprefixed)
    }

    /// Returns whether the source has this name. `name` is the documented name or the name that Windows reports. Case
    /// matters.
    pub fn is_named(&self, name: &str) -> bool {
        self.name() == name || self.windows_name() == name
    }

    /// Returns the event select, without the bits that enable the counter and its interrupt.
    pub const fn select(&self) -> EventSelect {
        self.select
    }

    /// Returns the number of the bit in EBX of CPUID leaf 0x0A that declares the source's event. Returns `None` if the
    /// source does not depend on this leaf.
    pub const fn event_bit(&self) -> Option<u8> {
        self.event_bit
    }

    /// If this row is a second name of a source, returns that source. Otherwise returns `None`.
    pub const fn canonical(&self) -> Option<KProfileSource> {
        self.canonical
    }
}

const fn source(value: u32) -> KProfileSource {
    match KProfileSource::new(value) {
        Some(source) => source,
        None => panic!("ProfileMaximum is not a source"),
    }
}

/// The sources of a profile interface as rows of a table, with an index that finds a row by value or by name.
#[derive(Clone, Copy, Debug)]
pub struct SourceTable {
    rows: &'static [ProfileSource],
    general: &'static [u8; KProfileSource::MAXIMUM as usize],
    generals: u16,
    names: &'static [Named],
}

impl SourceTable {
    /// Creates a table from `rows` and their index.
    pub const fn new<const SLOTS: usize>(
        rows: &'static [ProfileSource],
        index: &'static SourceIndex<SLOTS>,
    ) -> Self {
        assert!(rows.len() == index.rows as usize);
        Self { rows, general: &index.general, generals: index.generals, names: &index.names }
    }

    /// Returns the rows, ascending by value. The first row is `ProfileTime`.
    pub const fn rows(&self) -> &'static [ProfileSource] {
        self.rows
    }

    /// Returns the index of a source's row.
    #[inline]
    pub fn row(&self, source: KProfileSource) -> Option<usize> {
        let row = match source.value().checked_sub(FIRST_SPECIFIC) {
            None => usize::from(*self.general.get(source.value() as usize)?),
            Some(specific) => specific as usize + usize::from(self.generals),
        };
        (row < self.rows.len()).then_some(row)
    }

    /// As [`row`](Self::row), and linked once: each operation on a source asks.
    #[inline(never)] // 144 bytes of the glue.
    pub(crate) fn row_by_call(&self, source: KProfileSource) -> Option<usize> {
        self.row(source)
    }

    /// Returns the index of the row with this name. `name` is the documented name or the name that Windows reports.
    /// Case matters.
    pub fn row_named(&self, name: &str) -> Option<usize> {
        let mask = self.names.len().checked_sub(1)?;
        let (hash, tag) = hash_of(name.as_bytes());
        let mut slot = hash & mask;
        loop {
            let there = self.names.get(slot)?;
            if there.row == NONE {
                return None;
            }
            let row = usize::from(there.row);
            if there.tag == tag && self.rows.get(row)?.is_named(name) {
                return Some(row);
            }
            slot = (slot + 1) & mask;
        }
    }
}

/// The index of a [`SourceTable`], computed at compile time by the vendor crates.
///
/// The hash of a name, without the prefix `Profile`, leads to the name's row. `SLOTS` is a power of two, and at least
/// twice the number of names: each row has one, and one more if it is [`spelled`](ProfileSource::spelled).
#[derive(Debug)]
pub struct SourceIndex<const SLOTS: usize> {
    /// The row of each general source, or [`NONE`].
    general: [u8; KProfileSource::MAXIMUM as usize],
    /// Number of general sources at the beginning of the table. Those of the interface follow, with consecutive values.
    generals: u16,
    rows: u16,
    /// Rows by the hashes of their names, or in the next free slot.
    names: [Named; SLOTS],
}

/// The absence of a row.
const NONE: u8 = u8::MAX;

/// The row of a name, and a part of the name's hash, which avoids most comparisons with other names.
#[derive(Clone, Copy, Debug)]
struct Named {
    tag: u8,
    row: u8,
}

/// The first source that belongs to one interface alone.
const FIRST_SPECIFIC: u32 = KProfileSource::MAXIMUM + 1;

const PREFIX: &str = "Profile";

impl<const SLOTS: usize> SourceIndex<SLOTS> {
    /// Creates the index of the table `rows`. `rows` begins with the sources that are
    /// [the same on every processor](KProfileSource::is_general), in ascending order of their values. The interface's
    /// own sources follow, from 0x19 on, with consecutive values. Rows in any other order do not compile.
    pub const fn new(rows: &[ProfileSource]) -> Self {
        assert!(SLOTS.is_power_of_two() && rows.len() < NONE as usize);
        let mut index = Self {
            general: [NONE; KProfileSource::MAXIMUM as usize],
            generals: 0,
            rows: rows.len() as u16,
            names: [Named { tag: 0, row: NONE }; SLOTS],
        };
        let (mut row, mut names) = (0, 0);
        while row < rows.len() {
            let (source, name) = (rows[row].source(), rows[row].name());
            let windows_spelling = rows[row].windows_spelling();
            if source.is_general() {
                assert!(index.generals as usize == row, "a general source behind others");
                index.general[source.value() as usize] = row as u8;
                index.generals += 1;
            } else {
                let value = FIRST_SPECIFIC as usize + row - index.generals as usize;
                assert!(source.value() as usize == value, "a gap between the values");
            }
            index.insert(name, row as u8);
            names += 1;
            if let Some(spelling) = windows_spelling {
                index.insert(spelling, row as u8);
                names += 1;
            }
            row += 1;
        }
        assert!(names * 2 <= SLOTS, "too few slots");
        index
    }

    const fn insert(&mut self, name: &str, row: u8) {
        let (hash, tag) = hash_of(name.as_bytes());
        let mut slot = hash % SLOTS;
        while self.names[slot].row != NONE {
            slot = (slot + 1) % SLOTS;
        }
        self.names[slot] = Named { tag, row };
    }
}

/// Returns the hash of a name, which selects its first slot, and its tag; the same with and without the prefix.
const fn hash_of(name: &[u8]) -> (usize, u8) {
    let mut rest = match name.split_at_checked(PREFIX.len()) {
        Some((prefix, rest)) if equal(prefix, PREFIX.as_bytes()) => rest,
        _ => name,
    };
    let mut hash = 0;
    while let Some((word, after)) = rest.split_first_chunk() {
        hash = mix(hash, u64::from_le_bytes(*word));
        rest = after;
    }
    let mut tail = rest.len() as u64;
    while let Some((byte, after)) = rest.split_first() {
        tail = tail << 8 | *byte as u64;
        rest = after;
    }
    hash = mix(hash, tail);
    ((hash >> 32) as usize, (hash >> 56) as u8)
}

/// Does one step of a multiplicative hash, by a constant near 2⁶⁴ divided by the golden ratio (Knuth, The Art of
/// Computer Programming, vol. 3, §6.4).
const fn mix(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

const fn equal(a: &[u8], b: &[u8]) -> bool {
    let mut same = a.len() == b.len();
    let mut at = 0;
    while same && at < a.len() {
        same = a[at] == b[at];
        at += 1;
    }
    same
}

/// Degree of certainty that a source works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Availability {
    /// The source is not in the interface's table, or the processor declares the source's event unavailable.
    Unsupported,
    /// CPUID declares the source. No counter was accessed.
    Declared,
    /// This processor can count the source on counters that kept written values.
    Verified,
}

/// Information on a source: `HAL_PROFILE_SOURCE_INFORMATION_EX`, in which an [`Availability`] replaces the boolean
/// `Supported`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SourceInformation {
    /// Source that was queried.
    pub source: KProfileSource,
    /// Availability of the source.
    pub availability: Availability,
    /// Present interval; 0 if the source is unsupported.
    pub interval: u32,
    /// Unit, default and limits of the interval.
    pub limits: IntervalLimits,
}

impl SourceInformation {
    /// Returns whether the source can be started.
    pub fn is_supported(&self) -> bool {
        self.availability != Availability::Unsupported
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maximum_is_not_a_source() {
        assert_eq!(KProfileSource::new(0x18), None);
        assert_eq!(KProfileSource::try_from(0x18), Err(NotASource));
        assert_eq!(KProfileSource::new(0x19).map(KProfileSource::value), Some(0x19));
        assert_eq!(KProfileSource::new(u32::MAX).map(KProfileSource::value), Some(u32::MAX));
    }

    #[test]
    fn only_general_sources_have_a_general_name() {
        assert_eq!(KProfileSource::general().len(), 0x18);
        assert!(KProfileSource::general().all(|s| s.is_general() && s.general_name().is_some()));
        assert_eq!(KProfileSource::new(0x19).unwrap().general_name(), None);
    }
}
