//! Errors of finding core types and events.

use core::fmt;

use crate::format::core_type::CoreType;
use crate::name::hash::MAX_NAME;
use crate::uncore::event::UncoreEvent;

/// Reason why a search by name or pattern found no event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum EventError {
    /// The core type has no event of this name; [`nearest`](CoreType::nearest) finds similar names.
    Unknown,
    /// The name or pattern has a character that no event's name contains.
    Character {
        /// Byte offset of the character in the name or pattern.
        at: usize,
    },
    /// The name or pattern is longer than [`MAX_NAME`] bytes. No event has such a long name.
    TooLong,
    /// Several events match the pattern passed to [`only_match`](CoreType::only_match), which expects exactly one
    /// match.
    Ambiguous {
        /// Number of matching events.
        matches: usize,
    },
    /// The processor's core type lacks the event. The value is a core type that has the event and belongs to the same
    /// processor model. On a hybrid processor, the value is the type of its P-cores or of its E-cores. On other
    /// processors, the value is the core type of another stepping.
    OtherCore(&'static CoreType),
}

impl fmt::Display for EventError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("no event has this name"),
            Self::Character { at } => {
                write!(f, "no event's name has the character at byte {at}")
            }
            Self::TooLong => write!(f, "longer than {MAX_NAME} bytes, as no event's name is"),
            Self::Ambiguous { matches } => write!(f, "{matches} events match, not one"),
            Self::OtherCore(other) => {
                write!(f, "an event of {other}, which is another core type of the same model")
            }
        }
    }
}

impl core::error::Error for EventError {}

/// Reason why [`CoreType::event_or_uncore`] found no event of the core type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum CoreEventError {
    /// Neither the core type nor an uncore unit has an event of this name. The value is the error that
    /// [`CoreType::event`] returned.
    Core(EventError),
    /// An uncore unit, such as a memory controller, has an event of this name. No counter of a core counts the event.
    Uncore(UncoreEvent),
}

impl fmt::Display for CoreEventError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Core(error) => fmt::Display::fmt(error, f),
            Self::Uncore(event) => {
                let unit = event.unit();
                write!(f, "an event of {unit}, an uncore unit: no counter of a core counts it")
            }
        }
    }
}

impl core::error::Error for CoreEventError {}

/// Error of [`CoreType::named`]: no core type has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct UnknownCoreType;

impl fmt::Display for UnknownCoreType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no core type has this name")
    }
}

impl core::error::Error for UnknownCoreType {}
