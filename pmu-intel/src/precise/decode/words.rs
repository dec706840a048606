//! Memory that the processor or a tool filled, read as 64-bit words.

use core::sync::atomic::{AtomicU64, Ordering};

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
