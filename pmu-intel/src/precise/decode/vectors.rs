//! The vector registers in a record.

use crate::precise::decode::fragment::VECTORS;
use crate::precise::decode::words::Words;

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
