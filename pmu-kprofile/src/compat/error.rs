//! The error of layouts and of the bytes that they describe.

use core::fmt;

/// Reason that bytes are not a `KPROFILE`, or that a `KPROFILE` cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum LayoutError {
    /// There are fewer bytes than the layout has.
    TooShort {
        /// Bytes needed.
        needed: usize,
        /// Bytes given.
        given: usize,
    },
    /// The type is no profile object's, or the layout's versions do not have it.
    ObjectType(u16),
    /// The structure's size member disagrees with the layout.
    SizeMember(u16),
    /// The value is not a source, or does not fit the structure's signed 16 bits.
    Source(u32),
    /// The value is not a segment.
    Segment(u32),
    /// The bucket shift is above 29.
    BucketShift(u32),
    /// The affinity has more groups than the layout, or processors for which the layout has no room.
    Affinity,
    /// An address does not fit the layout's pointers.
    Address(u64),
    /// The offsets given for a layout contradict each other.
    Offsets,
    /// The layout has no member for a source other than `ProfileTime`, or for an affinity.
    NoSourceOrAffinity,
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort { needed, given } => {
                write!(f, "{given} bytes where {needed} are needed")
            }
            Self::ObjectType(value) => write!(f, "object type {value:#04X} is no profile's"),
            Self::SizeMember(value) => write!(f, "the structure's size member is {value:#X}"),
            Self::Source(value) => write!(f, "{value:#X} is no source, or does not fit 16 bits"),
            Self::Segment(value) => write!(f, "{value:#X} is no segment"),
            Self::BucketShift(value) => write!(f, "bucket shift {value} is above 29"),
            Self::Affinity => f.write_str("the affinity does not fit the layout's groups"),
            Self::Address(value) => write!(f, "address {value:#X} does not fit a pointer"),
            Self::Offsets => f.write_str("the offsets do not fit the layout's size"),
            Self::NoSourceOrAffinity => f.write_str("the layout has no source and no affinity"),
        }
    }
}

impl core::error::Error for LayoutError {}
