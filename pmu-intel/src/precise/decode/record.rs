//! One precise record, whose groups are read on demand.

use pmu_core::CounterSet;

use crate::precise::decode::adaptive::AdaptiveHeader;
use crate::precise::decode::branches::RecordBranches;
use crate::precise::decode::format::PreciseFormat;
use crate::precise::decode::fragment::{
    FragmentHeader, without_branches_header, without_vectors_header,
};
use crate::precise::decode::group::Group;
use crate::precise::decode::memory::MemoryInfo;
use crate::precise::decode::registers::{GeneralRegister, GeneralRegisters};
use crate::precise::decode::shown::Shown;
use crate::precise::decode::values::CounterValues;
use crate::precise::decode::vectors::VectorRegisters;
use crate::precise::decode::words::Words;

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
        let shown = Shown { user: user && self.shown.user, kernel: kernel && self.shown.kernel };
        let shows = |address: Option<u64>| address.is_none_or(|address| shown.shows(address));
        (shows(self.address()) && shows(self.next_address())).then_some(Self { shown, ..self })
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
