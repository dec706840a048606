//! One precise record, whose groups are read on demand.

use core::sync::atomic::{AtomicU64, Ordering};

use pmu_core::CounterSet;

use crate::precise::fragment::{FragmentHeader, without_branches_header, without_vectors_header};
use crate::precise::groups::{
    CounterValues, GeneralRegister, GeneralRegisters, MemoryInfo, RecordBranches, VectorRegisters,
};
use crate::precise::layout::{AdaptiveHeader, Group, PreciseFormat};

/// One precise record: the state of the processor at one sampled instruction.
///
/// A record consists of groups. Each method reads a group from the buffer during the call, and returns `None` if the
/// record does not have the group. [`PreciseRecords`](crate::precise::PreciseRecords) has checked that all groups fit
/// in the record. If the processor still writes to the buffer, a record is valid only until the processor writes the
/// next records.
#[derive(Clone, Copy, Debug)]
pub struct PreciseRecord<'a> {
    format: PreciseFormat,
    words: Words<'a>,
    shown: Shown,
}

/// Places of words in the records of formats 0 to 3.
const NEXT_ADDRESS: usize = 1;
const STATUS: usize = 0x90 / 8;
const MEMORY: usize = 0x98 / 8;
const OWN_ADDRESS: usize = 0xB0 / 8;
const TIME: usize = 0xC0 / 8;

impl<'a> PreciseRecord<'a> {
    pub(crate) const fn new(format: PreciseFormat, words: Words<'a>) -> Self {
        Self { format, words, shown: Shown::ALL }
    }

    /// Limits this precise record to the requested privilege levels: levels above 0 if `user` is set, and level 0 if
    /// `kernel` is set. The returned record has no addresses of data or branches at levels that were not requested.
    /// Returns `None` if the sampled instruction or the next instruction is at a level that was not requested.
    ///
    /// ```
    /// use pmu_intel::precise::{PreciseFormat, PreciseRecords};
    /// /// Returns the sampled addresses that user mode may see.
    /// fn for_user_mode(format: PreciseFormat, buffer: &[u8]) -> impl Iterator<Item = u64> {
    ///     let records = PreciseRecords::from_bytes(format, buffer);
    ///     records.filter_map(|record| record.limited_to(true, false)?.address())
    /// }
    /// # let _ = for_user_mode(PreciseFormat::Adaptive, &[]).count();
    /// ```
    pub fn limited_to(self, user: bool, kernel: bool) -> Option<Self> {
        self.levels(user, kernel).map(|shown| self.showing(shown))
    }

    /// Returns the privilege levels that [`limited_to`](Self::limited_to) leaves of the record.
    pub(crate) fn levels(&self, user: bool, kernel: bool) -> Option<Shown> {
        let shown = Shown { user: user && self.shown.user, kernel: kernel && self.shown.kernel };
        let shows = |address: Option<u64>| address.is_none_or(|address| shown.shows(address));
        (shows(self.address()) && shows(self.next_address())).then_some(shown)
    }

    pub(crate) const fn showing(self, shown: Shown) -> Self {
        Self { shown, ..self }
    }

    /// Returns the format of this precise record.
    pub const fn format(&self) -> PreciseFormat {
        self.format
    }

    /// Returns the size of this precise record in bytes. A record of architectural PEBS can consist of several
    /// fragments. The size includes all of them.
    pub const fn size(&self) -> usize {
        self.words.len() * 8
    }

    /// Returns the address of the sampled instruction itself, or `None` in PEBS [formats](PreciseFormat) before 2.
    pub fn address(&self) -> Option<u64> {
        match self.format {
            PreciseFormat::Bits32 | PreciseFormat::Core | PreciseFormat::Nehalem => None,
            PreciseFormat::Haswell | PreciseFormat::Skylake => self.words.get(OWN_ADDRESS),
            PreciseFormat::Adaptive => self.group(Group::Basic)?.get(1),
            PreciseFormat::Architectural => self.group(Group::Basic)?.get(0),
        }
    }

    /// Returns the address of the instruction that the processor executed after the sampled instruction. In PEBS
    /// [formats](PreciseFormat) before 2, this address is the only instruction address in a record.
    pub fn next_address(&self) -> Option<u64> {
        match self.format {
            PreciseFormat::Bits32 => Some(self.words.get(0)? >> 32),
            PreciseFormat::Adaptive | PreciseFormat::Architectural => {
                self.registers()?.get(GeneralRegister::Rip)
            }
            _ => self.words.get(NEXT_ADDRESS),
        }
    }

    /// Returns the counters whose overflow caused this precise record, or `None` in PEBS [format](PreciseFormat) 0.
    ///
    /// In formats 1 and 2, the processor copies the overflow status into the record. The copied status can be 0, and
    /// can include counters that do not write records.
    pub fn counters(&self) -> Option<CounterSet> {
        let bits = match self.format {
            PreciseFormat::Bits32 | PreciseFormat::Core => None,
            PreciseFormat::Nehalem | PreciseFormat::Haswell | PreciseFormat::Skylake => {
                self.words.get(STATUS)
            }
            PreciseFormat::Adaptive => self.group(Group::Basic)?.get(2),
            PreciseFormat::Architectural => self.group(Group::Basic)?.get(1),
        };
        bits.map(CounterSet::from_bits)
    }

    /// Returns the value of the time-stamp counter (TSC) when the processor wrote this precise record.
    pub fn time(&self) -> Option<u64> {
        match self.format {
            PreciseFormat::Skylake => self.words.get(TIME),
            PreciseFormat::Adaptive => self.group(Group::Basic)?.get(3),
            PreciseFormat::Architectural => self.group(Group::Basic)?.get(2),
            _ => None,
        }
    }

    /// Returns the number of cycles from the retirement of the previous instruction to the retirement of the sampled
    /// instruction.
    ///
    /// In adaptive records, this number is valid only if bit 17 of `IA32_PERF_CAPABILITIES` (`PEBS_TIMING_INFO`) is
    /// set. See [`PreciseUnit::records_retire_latency`](crate::precise::PreciseUnit).
    pub fn retire_latency(&self) -> Option<u16> {
        match self.format {
            PreciseFormat::Adaptive => {
                Some(AdaptiveHeader::from_bits(self.words.get(0)?).retire_latency())
            }
            PreciseFormat::Architectural => {
                let word = self.group(Group::Basic)?.get(3)?;
                (word >> 16 & 1 != 0).then_some(word as u16)
            }
            _ => None,
        }
    }

    /// Returns the group with the sampled instruction's access to memory. Records of PEBS [formats](PreciseFormat) 1 to
    /// 3 always have this group. In these records, the group is meaningful only if the sampled event counts accesses to
    /// memory.
    pub fn memory(&self) -> Option<MemoryInfo> {
        let info = match self.format {
            PreciseFormat::Bits32 | PreciseFormat::Core => return None,
            PreciseFormat::Nehalem => MemoryInfo::of_words(self.words, [MEMORY, 1, 2], None),
            PreciseFormat::Haswell | PreciseFormat::Skylake => {
                MemoryInfo::of_words(self.words, [MEMORY, 1, 2], Some(0xB8 / 8))
            }
            PreciseFormat::Adaptive => {
                MemoryInfo::of_words(self.group(Group::Memory)?, [0, 1, 2], Some(3))
            }
            PreciseFormat::Architectural => {
                MemoryInfo::of_words(self.group(Group::Memory)?, [0, 5, 6], Some(7))
            }
        };
        info.map(|info| info.showing(self.shown))
    }

    /// Returns the general registers, with their values after the sampled instruction.
    pub fn registers(&self) -> Option<GeneralRegisters<'a>> {
        let words = match self.format {
            PreciseFormat::Adaptive | PreciseFormat::Architectural => {
                self.group(Group::Registers)?
            }
            _ => self.words,
        };
        Some(GeneralRegisters::new(self.format, words))
    }

    /// Returns the vector registers in this precise record.
    pub fn vectors(&self) -> Option<VectorRegisters<'a>> {
        let words = self.group(Group::Vectors)?;
        match self.format {
            PreciseFormat::Architectural => {
                let header = self.fragment_with(Group::Vectors)?.0;
                Some(VectorRegisters::new(header.vectors(), without_vectors_header(words)))
            }
            _ => Some(VectorRegisters::new([true, false, false, false, false], words)),
        }
    }

    /// Returns the last branches before this precise record, the newest first. The result leaves out branches from or
    /// to privilege levels that the sampled event does not count.
    pub fn branches(&self) -> Option<RecordBranches<'a>> {
        let words = self.group(Group::Branches)?;
        let words = match self.format {
            PreciseFormat::Architectural => without_branches_header(words),
            _ => words,
        };
        Some(RecordBranches::new(words, self.shown))
    }

    /// Returns the values that counters and the top-down metrics had at the sampled instruction.
    pub fn counter_values(&self) -> Option<CounterValues<'a>> {
        CounterValues::new(self.group(Group::Counters)?)
    }

    /// Returns the words of a group. A record of formats 0 to 3 has no groups.
    fn group(&self, group: Group) -> Option<Words<'a>> {
        match self.format {
            PreciseFormat::Adaptive => {
                AdaptiveHeader::from_bits(self.words.get(0)?).find(self.words, group)?
            }
            PreciseFormat::Architectural => Some(self.fragment_with(group)?.1),
            _ => None,
        }
    }

    /// Returns the header of the first fragment that has a group, and the group's words.
    fn fragment_with(&self, group: Group) -> Option<(FragmentHeader, Words<'a>)> {
        let mut rest = self.words;
        loop {
            let header = FragmentHeader::from_bits(rest.get(0)?);
            let fragment = rest.range(0, header.words()?)?;
            if let Some(words) = header.find(fragment, group) {
                return Some((header, words));
            }
            rest = rest.after(fragment.len());
        }
    }
}

/// Iterator over the precise records in a buffer, the oldest first.
///
/// The buffer's content is not trusted. If a record's fields contradict each other, or if this crate does not know one
/// of the record's groups, the iterator drops the record and [counts](Self::malformed) it. If the size in a record is
/// impossible, the iterator cannot find the next record, and drops the rest of the buffer. Whatever the buffer
/// contains, the iterator terminates, allocates nothing, and does not panic.
///
/// ```
/// use pmu_intel::precise::{PreciseFormat, PreciseRecords};
/// // An adaptive record of the basic group only: its size in bits 63:48, the address, counter 0, the time.
/// let words: [u64; 4] = [32 << 48, 0x40_1000, 1, 5_000];
/// let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
/// let mut records = PreciseRecords::from_bytes(PreciseFormat::Adaptive, &bytes);
/// let record = records.next().unwrap();
/// assert_eq!((record.address(), record.time()), (Some(0x40_1000), Some(5_000)));
/// assert!(records.next().is_none() && records.malformed() == 0);
/// ```
///
/// # Context
/// Any context, including interrupt and NMI.
#[derive(Clone, Debug)]
pub struct PreciseRecords<'a> {
    format: PreciseFormat,
    rest: Words<'a>,
    malformed: u32,
}

impl<'a> PreciseRecords<'a> {
    /// Returns the precise records in a copy of a buffer. `bytes` starts at the first byte of the buffer.
    pub const fn from_bytes(format: PreciseFormat, bytes: &'a [u8]) -> Self {
        Self::new(format, Words::Bytes(bytes))
    }

    /// Returns the precise records in a buffer to which a processor writes.
    ///
    /// ```
    /// use core::sync::atomic::AtomicU64;
    /// use pmu_intel::precise::{PreciseFormat, PreciseRecords};
    /// static BUFFER: [AtomicU64; 512] = [const { AtomicU64::new(0) }; 512];
    /// // The processor wrote one record of format 3.
    /// let written = &BUFFER[..0xC8 / 8];
    /// assert_eq!(PreciseRecords::from_words(PreciseFormat::Skylake, written).count(), 1);
    /// ```
    pub const fn from_words(format: PreciseFormat, words: &'a [AtomicU64]) -> Self {
        Self::new(format, Words::Shared(words))
    }

    pub(crate) const fn new(format: PreciseFormat, rest: Words<'a>) -> Self {
        Self { format, rest, malformed: 0 }
    }

    /// Returns the number of precise records that this iterator has dropped so far. If the iterator had to drop the
    /// rest of the buffer, this rest counts as one record.
    pub const fn malformed(&self) -> u32 {
        self.malformed
    }

    /// Returns the number of bytes that are not read yet.
    pub(crate) fn remaining(&self) -> usize {
        8 * self.rest.len()
    }

    /// Takes `count` words off the rest.
    fn take(&mut self, count: usize) -> Option<Words<'a>> {
        let taken = self.rest.range(0, count)?;
        self.rest = self.rest.after(count);
        Some(taken)
    }

    /// Drops the rest.
    fn give_up(&mut self) -> Next<'a> {
        self.rest = Words::Bytes(&[]);
        Next::Malformed
    }

    fn advance(&mut self) -> Next<'a> {
        if self.rest.is_empty() {
            return Next::End;
        }
        match self.format {
            PreciseFormat::Adaptive => self.adaptive(),
            PreciseFormat::Architectural => self.architectural(),
            format => {
                let size = format.record_size().unwrap_or(0) / 8;
                match self.take(size) {
                    Some(words) => Next::Record(PreciseRecord::new(format, words)),
                    None => self.give_up(),
                }
            }
        }
    }

    fn adaptive(&mut self) -> Next<'a> {
        let header = self.rest.get(0).map(AdaptiveHeader::from_bits);
        let words = header.and_then(|header| self.take(header.words()?));
        let Some((header, words)) = header.zip(words) else { return self.give_up() };
        if header.is_consistent(words) {
            Next::Record(PreciseRecord::new(self.format, words))
        } else {
            Next::Malformed
        }
    }

    /// Takes all fragments of one record.
    fn architectural(&mut self) -> Next<'a> {
        let (mut count, mut is_consistent) = (0, true);
        loop {
            let fragment = self.rest.after(count);
            let Some(header) = fragment.get(0).map(FragmentHeader::from_bits) else {
                // The last fragment says that another one follows.
                return self.give_up();
            };
            if header.is_end() && count == 0 {
                self.rest = Words::Bytes(&[]);
                return Next::End;
            }
            if header.begins() && count != 0 {
                // Another record begins where the rest of this one was announced.
                is_consistent = false;
                break;
            }
            let words = header.words().and_then(|words| fragment.range(0, words));
            let Some(words) = words else { return self.give_up() };
            is_consistent &= header.is_consistent(words) && (header.begins() || count != 0);
            count += words.len();
            if !header.is_continued() || count == words.len() && !header.begins() {
                break;
            }
        }
        match self.take(count) {
            Some(words) if is_consistent => Next::Record(PreciseRecord::new(self.format, words)),
            _ => Next::Malformed,
        }
    }
}

/// Result of a step of the iterator.
enum Next<'a> {
    Record(PreciseRecord<'a>),
    Malformed,
    End,
}

impl<'a> Iterator for PreciseRecords<'a> {
    type Item = PreciseRecord<'a>;

    fn next(&mut self) -> Option<PreciseRecord<'a>> {
        loop {
            match self.advance() {
                Next::Record(record) => return Some(record),
                Next::Malformed => self.malformed = self.malformed.saturating_add(1),
                Next::End => return None,
            }
        }
    }
}

/// Words of a buffer: lent memory, to which a processor writes records, or a copy of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Words<'a> {
    /// Memory to which a processor may write meanwhile.
    Shared(&'a [AtomicU64]),
    /// Bytes in the processor's order, little-endian.
    Bytes(&'a [u8]),
}

impl<'a> Words<'a> {
    /// Returns the number of whole words.
    pub(crate) const fn len(&self) -> usize {
        match self {
            Self::Shared(words) => words.len(),
            Self::Bytes(bytes) => bytes.len() / 8,
        }
    }

    /// Returns whether there is neither a word nor a part of one.
    pub(crate) const fn is_empty(&self) -> bool {
        match self {
            Self::Shared(words) => words.is_empty(),
            Self::Bytes(bytes) => bytes.is_empty(),
        }
    }

    /// Returns the word with this number.
    pub(crate) fn get(&self, number: usize) -> Option<u64> {
        match self {
            Self::Shared(words) => Some(words.get(number)?.load(Ordering::Relaxed)),
            Self::Bytes(bytes) => {
                let first = number.checked_mul(8)?;
                Some(u64::from_le_bytes(*bytes.get(first..)?.first_chunk()?))
            }
        }
    }

    /// Returns `count` words from the word `first` on, if all of them exist.
    pub(crate) fn range(&self, first: usize, count: usize) -> Option<Self> {
        let end = first.checked_add(count)?;
        match self {
            Self::Shared(words) => Some(Self::Shared(words.get(first..end)?)),
            Self::Bytes(bytes) => {
                let bytes = bytes.get(first.checked_mul(8)?..end.checked_mul(8)?)?;
                Some(Self::Bytes(bytes))
            }
        }
    }

    /// Returns all words from the word `first` on, and none if there is no such word.
    pub(crate) fn after(&self, first: usize) -> Self {
        match self {
            Self::Shared(words) => Self::Shared(words.get(first..).unwrap_or_default()),
            Self::Bytes(bytes) => {
                Self::Bytes(bytes.get(first.saturating_mul(8)..).unwrap_or_default())
            }
        }
    }
}

/// Privilege levels that an event counts, and of which its records may show addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) user: bool,
    pub(crate) kernel: bool,
}

impl Shown {
    pub(crate) const ALL: Self = Self { user: true, kernel: true };

    /// Returns whether an address may be shown. The upper half of the address space is the kernel's.
    pub(crate) const fn shows(self, address: u64) -> bool {
        if address >> 63 != 0 { self.kernel } else { self.user }
    }
}
