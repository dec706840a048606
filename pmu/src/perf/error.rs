//! Reasons why attributes or texts are not events.

use core::fmt;

use crate::perf::branch_samples::BranchSampleError;
use crate::perf::facility::Facility;

/// Reason why a conversion between an event and perf's attributes failed, or why an event's text could not be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum PerfError {
    /// The attributes' type is neither [`PERF_TYPE_HARDWARE`](crate::perf::PERF_TYPE_HARDWARE) nor
    /// [`PERF_TYPE_RAW`](crate::perf::PERF_TYPE_RAW). The value is the type.
    Type(u32),
    /// The hardware event with this number is not in [`HARDWARE_EVENTS`](crate::perf::HARDWARE_EVENTS).
    Hardware(u64),
    /// A raw configuration has bits that belong to no term. The value is these bits. For example, no term has bit 16
    /// (USR), 17 (OS), 20 (INT) or 22 (EN), because perf itself sets these bits.
    Bits(u64),
    /// An extra register has a value, but perf does not write this register for this event. The `u64` is the event's
    /// configuration.
    NoExtraRegister(u64),
    /// The attributes exclude all execution: both user and kernel mode, or both host and guest.
    ExcludesAll,
    /// The event's samples are to carry branches, and `branch_sample_type` is invalid. The value is the reason.
    Branches(BranchSampleError),
    /// The attributes need a facility in addition to a counter. The value is the facility.
    Facility(Facility),
    /// `config3` or `config4` is not 0, although the field has no meaning for a counter. The value is 3 or 4.
    Extension(u8),
    /// The text contains a term, modifier or name that needs a facility in addition to a counter.
    Needs {
        /// The facility.
        facility: Facility,
        /// Offset of the term, modifier or name in the text, in bytes.
        at: usize,
    },
    /// The processor has no event that corresponds to this `type` and `config`.
    NotOnProcessor {
        /// `type`: [`PERF_TYPE_HARDWARE`](crate::perf::PERF_TYPE_HARDWARE) or
        /// [`PERF_TYPE_HW_CACHE`](crate::perf::PERF_TYPE_HW_CACHE).
        type_: u32,
        /// `config`.
        config: u64,
    },
    /// A modifier of the text is unknown or repeated, or the text has no modifier after the colon.
    Modifier {
        /// Offset of the modifier in the text, in bytes.
        at: usize,
    },
    /// A name or a term of the text is unknown, a term conflicts with a term before it, or the closing slash is
    /// missing.
    Term {
        /// Offset of the name or term in the text, in bytes.
        at: usize,
    },
    /// The value of a term is missing, is not a number, or is too great.
    Value {
        /// Offset of the value in the text, in bytes.
        at: usize,
    },
}

impl PerfError {
    /// Returns the `errno` value with which Linux' `perf_event_open` reports this error, as a positive number: `ENOENT`
    /// (2), `EINVAL` (22), `EOPNOTSUPP` (95).
    ///
    /// ```
    /// use pmu::perf::{Facility, PerfError};
    /// assert_eq!(PerfError::Type(9).errno(), 2);
    /// assert_eq!(PerfError::Facility(Facility::PreciseSampling).errno(), 95);
    /// ```
    pub const fn errno(self) -> i32 {
        match self {
            Self::Type(_) | Self::NotOnProcessor { .. } | Self::Hardware(6..=8) => 2,
            Self::Facility(_) | Self::Needs { .. } => 95,
            _ => 22,
        }
    }
}

impl fmt::Display for PerfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Type(type_) => write!(f, "events of type {type_} are not counters' events"),
            Self::Hardware(number) => write!(f, "hardware event {number} is not known"),
            Self::Bits(bits) => write!(f, "a raw configuration cannot have bits {bits:#X}"),
            Self::NoExtraRegister(config) => {
                write!(f, "config1 has no meaning for configuration {config:#X}, or another one")
            }
            Self::ExcludesAll => f.write_str("everything is excluded from the event"),
            Self::Branches(reason) => reason.fmt(f),
            Self::Facility(facility) => write!(f, "there is no support for {facility}"),
            Self::Extension(number) => write!(f, "config{number} has no meaning for a counter"),
            Self::Needs { facility, at } => {
                write!(f, "there is no support for {facility}, which byte {at} asks for")
            }
            Self::NotOnProcessor { type_, config } => {
                write!(f, "this processor has no event {config:#X} of type {type_}")
            }
            Self::Modifier { at } => write!(f, "no modifier of an event at byte {at}"),
            Self::Term { at } => write!(f, "no term of an event at byte {at}"),
            Self::Value { at } => write!(f, "no value, or none that fits, at byte {at}"),
        }
    }
}

impl core::error::Error for PerfError {}
