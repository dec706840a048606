//! Profile sources: the `KPROFILE_SOURCE` enumeration and the rows of an interface's table.

use core::fmt;

use crate::counters::registers::select::EventSelect;

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
/// use pmu_core::EventSelect;
/// use pmu_core::profile::ProfileSource;
/// let row = ProfileSource::new(0x1C, "ProfileLLCReference", EventSelect::from_bits(0x4F2E)).declared_by(3);
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
    /// select.
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
    /// [counter unit](crate::CounterUnit::set_generic) of its own processor.
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

    /// Returns the event select, without the bits that enable the counter and choose privilege levels.
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
