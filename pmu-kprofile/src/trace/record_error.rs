//! The error of decoding and encoding trace records.

use core::fmt;

/// Reason why bytes are not a record, or why a record could not be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum RecordError {
    /// There are fewer bytes than the length in the record's header, or the record is too short for the members of its
    /// event.
    TooShort,
    /// The marker in the header is this number, not the marker of a performance record.
    Marker(u32),
    /// The hook id is this number, not the hook id of the expected event.
    Hook(u16),
    /// The record would have this number of elements, which is more than a record can have.
    TooMany(usize),
    /// The buffer is too small.
    NoRoom {
        /// Number of bytes needed. A record has at most 0xFFFF bytes. If `needed` is higher, no buffer is large enough.
        needed: usize,
    },
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort => f.write_str("the record is cut off"),
            Self::Marker(marker) => write!(f, "marker {marker:#010X} is no performance record's"),
            Self::Hook(hook) => write!(f, "hook {hook:#06X} is another event's"),
            Self::TooMany(count) => write!(f, "{count} are more than a record can have"),
            Self::NoRoom { needed } => write!(f, "there is no room for {needed} bytes"),
        }
    }
}

impl core::error::Error for RecordError {}
