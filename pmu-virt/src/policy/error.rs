//! Reasons why a filter is refused.

use core::fmt;

/// Maximum number of entries in an event filter, as in KVM.
pub const MAX_FILTER_ENTRIES: usize = 300;

/// Reason why a filter, or an entry, is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum FilterError {
    /// The list of entries has more than [`MAX_FILTER_ENTRIES`] entries. The value is the number of entries.
    TooManyEntries(usize),
    /// The entries have more than `most` different event numbers.
    TooManyEvents {
        /// Maximum number of different event numbers in the filter.
        most: usize,
    },
    /// An event number has more than 12 bits. The value is the event number.
    WideEvent(u16),
    /// An encoded entry sets bits outside the entry's fields. The value has only these bits.
    UnknownBits(u64),
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyEntries(entries) => {
                write!(f, "{entries} entries, at most {MAX_FILTER_ENTRIES}")
            }
            Self::TooManyEvents { most } => write!(f, "more than {most} different events"),
            Self::WideEvent(event) => write!(f, "event {event:#X} has more than 12 bits"),
            Self::UnknownBits(bits) => write!(f, "no filter entry has the bits {bits:#X}"),
        }
    }
}

impl core::error::Error for FilterError {}
