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
    /// The core type lacks the event, and an uncore unit, such as a memory controller, has an event of this name. No
    /// counter of a core counts the event. Only [`event_or_uncore`](CoreType::event_or_uncore) returns this error.
    Uncore(UncoreEvent),
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
            Self::Uncore(event) => {
                let unit = event.unit();
                write!(f, "an event of {unit}, an uncore unit: no counter of a core counts it")
            }
        }
    }
}

impl core::error::Error for EventError {}

/// Reason why no core type was found by name or for a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum UnknownCoreType {
    /// No core type has the name that was passed to [`CoreType::named`].
    Name,
    /// This crate has no table for a processor of this model and stepping.
    Model {
        /// The vendor's name in ASCII, from CPUID leaf 0.
        vendor: [u8; 12],
        /// The processor's family.
        family: u16,
        /// The processor's model.
        model: u8,
        /// The processor's stepping.
        stepping: u8,
    },
    /// The processor is a hybrid, and this crate has no table for this kind of core.
    ///
    /// The value is EAX of CPUID leaf 0x1A, which contains the core's type and native model ID. If the value is 0,
    /// CPUID does not identify the core.
    Core(u32),
}

impl fmt::Display for UnknownCoreType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => f.write_str("no core type has this name"),
            Self::Model { vendor, family, model, stepping } => write!(
                f,
                "no events are known of {} family {family:#X} model {model:#X} stepping {stepping}",
                vendor.trim_ascii().escape_ascii()
            ),
            Self::Core(0) => f.write_str("CPUID does not say which of a hybrid's cores this is"),
            Self::Core(core) => {
                write!(f, "no events are known of a hybrid's core {core:#010X}")
            }
        }
    }
}

impl core::error::Error for UnknownCoreType {}
