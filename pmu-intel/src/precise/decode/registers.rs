//! The general registers in a record.

use crate::precise::decode::format::PreciseFormat;
use crate::precise::decode::words::Words;

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
