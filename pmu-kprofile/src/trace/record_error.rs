//! The error of decoding and encoding trace records.

use core::fmt;

/// Reason that bytes are not a record, or that a record could not be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum RecordError {
    /// There are fewer bytes than the length in the record's header, or the record is shorter than its event.
    TooShort,
    /// The marker in the header, this number, is not that of a performance record.
    Marker(u32),
    /// The hook id, this number, belongs to another event than the expected one.
    Hook(u16),
    /// There are this many elements, more than a record can have.
    TooMany(usize),
    /// The buffer is too small.
    NoRoom {
        /// Number of bytes needed. A record has at most 0xFFFF bytes, so it cannot be written if this is more.
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
