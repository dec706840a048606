//! The groups of a record: registers, memory access, branches, counters' values, vector registers.
//!
//! The words that the processor wrote are not trusted, and each group is read on demand.

use bitfield_struct::bitfield;
use pmu_core::CounterSet;
use pmu_core::branches::{Branch, BranchUnit, RawBranch};
use pmu_core::registers::CounterId;

use crate::precise::fragment::VECTORS;
use crate::precise::layout::PreciseFormat;
use crate::precise::record::{Shown, Words};

/// A general register of a precise record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[allow(missing_docs)] // The names are the processor's.
pub enum GeneralRegister {
    Rflags,
    /// Address of the instruction after the sampled instruction.
    Rip,
    Rax,
    Rbx,
    Rcx,
    Rdx,
    Rsi,
    Rdi,
    Rbp,
    Rsp,
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R14,
    R15,
    /// The shadow stack pointer, which only architectural records have.
    Ssp,
}

impl GeneralRegister {
    /// All general registers, in the order in which a record of PEBS formats 0 to 3 stores the registers. The last
    /// register, SSP, is not in records of these formats.
    pub const ALL: [Self; 19] = [
        Self::Rflags,
        Self::Rip,
        Self::Rax,
        Self::Rbx,
        Self::Rcx,
        Self::Rdx,
        Self::Rsi,
        Self::Rdi,
        Self::Rbp,
        Self::Rsp,
        Self::R8,
        Self::R9,
        Self::R10,
        Self::R11,
        Self::R12,
        Self::R13,
        Self::R14,
        Self::R15,
        Self::Ssp,
    ];

    /// Returns the place of the register in adaptive and architectural records, which have another order.
    const fn place_in_group(self) -> usize {
        match self {
            Self::Rcx => 3,
            Self::Rdx => 4,
            Self::Rbx => 5,
            Self::Rsp => 6,
            Self::Rbp => 7,
            Self::Rsi => 8,
            Self::Rdi => 9,
            _ => self as usize,
        }
    }
}

/// The general registers in a precise record, with their values after the sampled instruction.
#[derive(Clone, Copy, Debug)]
pub struct GeneralRegisters<'a> {
    format: PreciseFormat,
    words: Words<'a>,
}

impl<'a> GeneralRegisters<'a> {
    pub(crate) const fn new(format: PreciseFormat, words: Words<'a>) -> Self {
        Self { format, words }
    }

    /// Returns the value of a register, or `None` if records of this format do not have the register.
    ///
    /// ```
    /// use pmu_intel::precise::{GeneralRegister, PreciseRecord};
    /// /// Returns the first argument of the function to which a sampled call jumped.
    /// fn first_argument(record: &PreciseRecord<'_>) -> Option<u64> {
    ///     record.registers()?.get(GeneralRegister::Rdi)
    /// }
    /// # let _ = first_argument;
    /// ```
    pub fn get(&self, register: GeneralRegister) -> Option<u64> {
        let place = register as usize;
        match self.format {
            PreciseFormat::Bits32 => {
                let word = self.words.get(place / 2).filter(|_| place < 10)?;
                Some(if place.is_multiple_of(2) { word & 0xFFFF_FFFF } else { word >> 32 })
            }
            PreciseFormat::Architectural => self.words.get(register.place_in_group()),
            _ if matches!(register, GeneralRegister::Ssp) => None,
            PreciseFormat::Adaptive => self.words.get(register.place_in_group()),
            _ => self.words.get(place),
        }
    }
}

/// The sampled instruction's access to memory: one of the groups in a precise record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct MemoryInfo {
    /// Linear address of the data. If the sampled event does not count level 0, the field is `None` for a kernel
    /// address. If the event does not count the levels above 0, the field is `None` for a user address.
    pub address: Option<u64>,
    /// Source of the data, such as a cache level. Each processor model has its own encoding.
    pub source: u64,
    /// Latency of the access in core cycles. From Alder Lake on, the field has two latencies: bits 15:0 are the
    /// instruction's latency, and bits 47:32 are the latency of the access to the caches.
    pub latency: u64,
    /// The sampled instruction's transaction (TSX). `None` in PEBS formats before 2.
    pub transaction: Option<PreciseTransaction>,
}

impl MemoryInfo {
    /// Reads the words of address, source and latency: the place of the first, and the distances of the others.
    pub(crate) fn of_words(
        words: Words<'_>,
        [address, source, latency]: [usize; 3],
        transaction: Option<usize>,
    ) -> Option<Self> {
        let transaction = match transaction {
            Some(place) => Some(PreciseTransaction::from_bits(words.get(place)?)),
            None => None,
        };
        Some(Self {
            address: Some(words.get(address)?),
            source: words.get(address + source)?,
            latency: words.get(address + latency)?,
            transaction,
        })
    }

    pub(crate) fn showing(self, shown: Shown) -> Self {
        Self { address: self.address.filter(|address| shown.shows(*address)), ..self }
    }
}

/// Description of a transaction in a precise record (SDM vol. 3B, "TX Abort Information" of PEBS records).
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct PreciseTransaction {
    /// Number of cycles in the last transactional region, aborted or committed.
    pub cycles: u32,
    /// The instruction aborted a transaction of hardware lock elision (HLE).
    pub lock_elision: bool,
    /// The instruction aborted a restricted transaction (RTM).
    pub restricted: bool,
    /// The sampled instruction itself caused the abort.
    pub by_instruction: bool,
    /// Something other than the sampled instruction caused the abort.
    pub by_other_event: bool,
    /// The transaction may succeed if it is tried again.
    pub retry: bool,
    /// Another processor's access conflicted with the transaction's data.
    pub conflict: bool,
    /// The transaction writes more data than the caches can hold.
    pub write_capacity: bool,
    /// The transaction reads more data than the caches can hold.
    pub read_capacity: bool,
    __: u8,
    /// Operand of the `XABORT` instruction that aborted the transaction: bits 31:24 of the abort status in EAX.
    pub code: u8,
    __: u8,
}

/// The branches in a precise record: the last branches before the sampled instruction, the newest first.
///
/// Each branch is stored in the format of the processor's branch records. [`decoded`](Self::decoded) decodes the
/// branches with the processor's [`BranchUnit`].
#[derive(Clone, Copy, Debug)]
pub struct RecordBranches<'a> {
    words: Words<'a>,
    shown: Shown,
}

impl<'a> RecordBranches<'a> {
    pub(crate) const fn new(words: Words<'a>, shown: Shown) -> Self {
        Self { words, shown }
    }

    /// Returns the undecoded words of each branch, the newest branch first, up to the first empty branch record. If the
    /// sampled event does not count at a privilege level, the iterator leaves out each branch that starts or ends at
    /// this level.
    pub fn raw(self) -> impl Iterator<Item = RawBranch> + 'a {
        let Self { words, shown } = self;
        let branch = move |number: usize| {
            let [from, to, info] = [0, 1, 2].map(|word| words.get(3 * number + word));
            Some(RawBranch { from: from?, to: to?, info: info? })
        };
        let all = (0..words.len() / 3).map_while(branch);
        let filled = all.take_while(|branch| branch.from != 0);
        filled.filter(move |branch| shown.shows(branch.from) && shown.shows(branch.to))
    }

    /// Decodes the branches in the precise record. `unit` describes the processor's branch records.
    ///
    /// ```
    /// use pmu_core::branches::BranchUnit;
    /// use pmu_intel::precise::PreciseRecord;
    /// /// Returns the number of branches before the sampled instruction that were mispredicted.
    /// fn mispredicted(unit: &BranchUnit, record: &PreciseRecord<'_>) -> Option<usize> {
    ///     let branches = record.branches()?.decoded(unit);
    ///     Some(branches.filter(|branch| branch.mispredicted == Some(true)).count())
    /// }
    /// # let _ = mispredicted;
    /// ```
    pub fn decoded(self, unit: &'a BranchUnit) -> impl Iterator<Item = Branch> + 'a {
        self.raw().filter_map(|branch| unit.decode(branch))
    }
}

/// The values that counters and the top-down metrics had at the sampled instruction.
#[derive(Clone, Copy, Debug)]
pub struct CounterValues<'a> {
    /// One bit per value: general counters in the lower half, fixed counters in the upper half.
    masks: u64,
    words: Words<'a>,
    has_metrics: bool,
}

impl<'a> CounterValues<'a> {
    pub(crate) fn new(group: Words<'a>) -> Option<Self> {
        let has_metrics = group.get(1)? & 0xFFFF_FFFF != 0;
        Some(Self { masks: group.get(0)?, words: group.after(2), has_metrics })
    }

    /// Returns each counter whose value is in the record, together with the value. The iterator leaves out counters
    /// that [`CounterId`] cannot represent.
    pub fn iter(&self) -> impl Iterator<Item = (CounterId, u64)> + 'a {
        let Self { masks, words, .. } = *self;
        (0..64).filter(move |bit| masks >> bit & 1 != 0).enumerate().filter_map(
            move |(place, bit)| {
                let counter = CounterSet::from_bits(1 << bit).iter().next()?;
                Some((counter, words.get(place)?))
            },
        )
    }

    /// Returns the number of issue slots (fixed counter 3) and the value of `MSR_PERF_METRICS`. Returns `None` if the
    /// precise record lacks these values.
    pub fn metrics(&self) -> Option<(u64, u64)> {
        let first = self.words.len().checked_sub(2).filter(|_| self.has_metrics)?;
        Some((self.words.get(first)?, self.words.get(first + 1)?))
    }
}

/// The vector registers in a precise record. If a record has one of the registers that a method can return, the record
/// has all of them.
///
/// Each value is an array of 64-bit words, the least significant word first.
#[derive(Clone, Copy, Debug)]
pub struct VectorRegisters<'a> {
    has: [bool; 5],
    words: Words<'a>,
}

impl<'a> VectorRegisters<'a> {
    pub(crate) const fn new(has: [bool; 5], words: Words<'a>) -> Self {
        Self { has, words }
    }

    /// Returns XMM`number`, for registers 0 to 15.
    pub fn xmm(&self, number: u8) -> Option<[u64; 2]> {
        self.value(0, number)
    }

    /// Returns bits 255:128 of YMM`number`, for registers 0 to 15.
    pub fn ymm_high(&self, number: u8) -> Option<[u64; 2]> {
        self.value(1, number)
    }

    /// Returns the opmask register K`number`, for registers 0 to 7.
    pub fn opmask(&self, number: u8) -> Option<u64> {
        self.value(2, number).map(|[mask]| mask)
    }

    /// Returns bits 511:256 of ZMM`number`, for registers 0 to 15.
    pub fn zmm_high(&self, number: u8) -> Option<[u64; 4]> {
        self.value(3, number)
    }

    /// Returns ZMM`number`, for registers 16 to 31.
    pub fn zmm(&self, number: u8) -> Option<[u64; 8]> {
        self.value(4, number.checked_sub(16)?)
    }

    /// Returns the words of one register of a kind.
    fn value<const WORDS: usize>(&self, kind: usize, number: u8) -> Option<[u64; WORDS]> {
        let all = *VECTORS.get(kind)?;
        let first = WORDS * usize::from(number);
        if !*self.has.get(kind)? || first >= all {
            return None;
        }
        let before: usize =
            self.has.iter().zip(VECTORS).take(kind).filter(|(has, _)| **has).map(|(_, n)| n).sum();
        let mut value = [0; WORDS];
        for (place, word) in value.iter_mut().enumerate() {
            *word = self.words.get(before + first + place)?;
        }
        Some(value)
    }
}
