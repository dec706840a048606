//! The formats of precise records, and the layout of each.

use bitfield_struct::bitfield;

use crate::precise::record::Words;

/// Format of a processor's precise records.
///
/// For PEBS with a Debug Store, bits 11:8 of `IA32_PERF_CAPABILITIES` give the number of the format. In formats 4 and
/// later, bit 14 (`PEBS_BASELINE`) says whether the records are adaptive. If bit 14 is clear, each record consists of
/// the basic group only. CPUID leaf 0x23 declares architectural PEBS. See SDM vol. 3B, "Processor Event Based Sampling
/// (PEBS) Facility".
///
/// ```
/// use pmu_intel::precise::PreciseFormat;
/// assert_eq!(PreciseFormat::of_number(1), Some(PreciseFormat::Nehalem));
/// assert_eq!(PreciseFormat::Nehalem.record_size(), Some(0xB0));
/// assert_eq!(PreciseFormat::Adaptive.record_size(), None); // Each record tells its own size.
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PreciseFormat {
    /// Records in 32-bit words, on a processor without DTES64: flags, the next instruction's address, and registers.
    Bits32,
    /// Format 0: flags, the next instruction's address, and registers.
    Core,
    /// Format 1: the contents of format 0, the overflow status, and the address, source and latency of a memory access.
    Nehalem,
    /// Format 2: the contents of format 1, the sampled instruction's own address, and the transaction's state (TSX).
    Haswell,
    /// Format 3: the contents of format 2, and the time-stamp counter. Instead of the overflow status, a record has the
    /// counters that caused the record.
    Skylake,
    /// Formats 4 to 6: `MSR_PEBS_DATA_CFG` selects the groups of fields for the records of all counters.
    Adaptive,
    /// Architectural PEBS: each counter's CFG_C register selects the groups of fields for the records of this counter.
    /// A record has one or more fragments.
    Architectural,
}

impl PreciseFormat {
    /// Returns the format that has this number in bits 11:8 of `IA32_PERF_CAPABILITIES`, for a Debug Store with 64-bit
    /// words. Returns `None` if this crate does not know the number.
    ///
    /// ```
    /// use pmu_intel::precise::PreciseFormat;
    /// assert_eq!(PreciseFormat::of_number(3), Some(PreciseFormat::Skylake));
    /// assert_eq!(PreciseFormat::of_number(5), Some(PreciseFormat::Adaptive));
    /// assert_eq!(PreciseFormat::of_number(15), None);
    /// ```
    pub const fn of_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Core),
            1 => Some(Self::Nehalem),
            2 => Some(Self::Haswell),
            3 => Some(Self::Skylake),
            4..=6 => Some(Self::Adaptive),
            _ => None,
        }
    }

    /// Returns the size of a precise record of this format in bytes, or `None` if the size varies between records.
    ///
    /// ```
    /// use pmu_intel::precise::PreciseFormat;
    /// assert_eq!(PreciseFormat::Core.record_size(), Some(144)); // 18 words
    /// assert_eq!(PreciseFormat::Architectural.record_size(), None);
    /// ```
    pub const fn record_size(self) -> Option<usize> {
        match self {
            Self::Bits32 => Some(40),
            Self::Core => Some(0x90),
            Self::Nehalem => Some(0xB0),
            Self::Haswell => Some(0xC0),
            Self::Skylake => Some(0xC8),
            Self::Adaptive | Self::Architectural => None,
        }
    }

    /// Returns whether precise records of this format have the address of the sampled instruction itself. Records of
    /// other formats only have the address of the next instruction.
    ///
    /// ```
    /// use pmu_intel::precise::PreciseFormat;
    /// assert!(PreciseFormat::Haswell.has_own_address() && !PreciseFormat::Nehalem.has_own_address());
    /// ```
    pub const fn has_own_address(self) -> bool {
        !matches!(self, Self::Bits32 | Self::Core | Self::Nehalem)
    }
}

/// A group of data in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Basic,
    Memory,
    Registers,
    Vectors,
    Branches,
    Counters,
}

/// The value of the counters' header by which the metrics and their slots follow the counters; 0: they do not.
const METRICS: u64 = 3;

/// Returns the size in words of the counters' group at the beginning of these words: two words of masks, then the
/// values. Returns `None` if the masks cannot be read or name metrics that are not known.
#[inline(never)] // 400 bytes of the Hermit-like glue, at `opt-level` 3.
pub(crate) fn counters_words(group: Words<'_>) -> Option<usize> {
    let (masks, metrics) = (group.get(0)?, group.get(1)? & 0xFFFF_FFFF);
    let metrics = match metrics {
        0 => 0,
        METRICS => 2,
        _ => return None,
    };
    Some(2 + masks.count_ones() as usize + metrics)
}

/// First word of an adaptive record's basic group (SDM vol. 3B, "Adaptive PEBS", table "Basic Info Group"). The groups
/// are at the places that they have in `MSR_PEBS_DATA_CFG`.
#[bitfield(u64)]
pub(crate) struct AdaptiveHeader {
    memory: bool,
    registers: bool,
    vectors: bool,
    branches: bool,
    counters: bool,
    metrics: bool,
    #[bits(18)]
    unknown: u32,
    /// Number of branch records, minus 1.
    branch_count: u8,
    pub(crate) retire_latency: u16,
    /// Size of the record in bytes.
    size: u16,
}

/// The sizes of the groups in words.
const BASIC: usize = 4;
const MEMORY: usize = 4;
const REGISTERS: usize = 18;
const VECTORS: usize = 32;
const BRANCH: usize = 3;

impl AdaptiveHeader {
    /// Returns the size of the record in words, or `None` if no record can have its size.
    pub(crate) fn words(self) -> Option<usize> {
        let size = usize::from(self.size());
        (size.is_multiple_of(8) && size >= 8 * BASIC).then_some(size / 8)
    }

    /// Returns whether the groups of a record are known, and fill the record exactly.
    pub(crate) fn is_consistent(self, record: Words<'_>) -> bool {
        let counters = self.find(record, Group::Counters);
        let after = match counters {
            Some(Some(counters)) => self.first_of_counters() + counters.len(),
            Some(None) => self.first_of_counters(),
            None => return false,
        };
        self.unknown() == 0 && after == record.len()
    }

    /// Returns the words of a group: `Some(None)` if the record has no such group, and `None` if the group does not fit
    /// in the record.
    pub(crate) fn find<'a>(self, record: Words<'a>, wanted: Group) -> Option<Option<Words<'a>>> {
        let mut first = 0;
        for (group, words) in self.groups() {
            if group == wanted {
                let found = record.range(first, words)?;
                return Some((words != 0).then_some(found));
            }
            first += words;
        }
        if wanted != Group::Counters || !self.counters() && !self.metrics() {
            return Some(None);
        }
        let rest = record.after(first);
        Some(Some(rest.range(0, counters_words(rest)?)?))
    }

    fn first_of_counters(self) -> usize {
        self.groups().iter().map(|(_, words)| words).sum()
    }

    /// Returns the groups in front of the counters in their order, with their sizes in words.
    fn groups(self) -> [(Group, usize); 5] {
        let of = |exists: bool, words| if exists { words } else { 0 };
        let branches = BRANCH * (usize::from(self.branch_count()) + 1);
        [
            (Group::Basic, BASIC),
            (Group::Memory, of(self.memory(), MEMORY)),
            (Group::Registers, of(self.registers(), REGISTERS)),
            (Group::Vectors, of(self.vectors(), VECTORS)),
            (Group::Branches, of(self.branches(), branches)),
        ]
    }
}
