//! Profile objects: the interrupts on which an object acts, and its action.
//!
//! - `profile_object`: an object, its creation, and what it does on an interrupt
//! - `bucket`: the arithmetic of a basic object's buckets, and their counting
//! - `service`: the checks that Windows makes before it creates an object for a caller
//!
//! An object knows nothing of lists. The registry marks the object as started or stopped, and records the processors on
//! which the registry has started the object's source. This module may use `affinity` and the queries of `hardware`.
//! This module never starts or stops a source.

pub mod bucket;
pub(crate) mod profile_object;
pub mod service;

use core::fmt;

use pmu_core::profile::{KProfileSource, NtStatus};
use pmu_core::windows::Rules;

/// Reason why a profile object, or the [size](crate::object::bucket::Bucket) of its buckets, could not be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum CreateError {
    /// The buffer has no room for even one 4-byte counter.
    EmptyBuffer,
    /// The base-2 logarithm of the bucket's size is outside 2–31. In [segment mode](crate::BasicProfile::base), the
    /// error means that no bucket size fits the buffer.
    BucketSize {
        /// Requested base-2 logarithm of the bucket's size; 0 if the kernel was to choose the size.
        log2: u32,
    },
    /// The range has more buckets than the buffer has counters.
    BufferTooSmall {
        /// Number of buckets of the range.
        buckets: u64,
        /// Number of counters of the buffer.
        counters: u64,
    },
    /// The range's end is beyond the last address.
    RangeWraps,
    /// The hardware does not support the source.
    UnsupportedSource(KProfileSource),
    /// The requested source is `ProfileMaximum`. This number says how many sources Windows has, and does not stand for
    /// a source.
    NotASource,
    /// The affinity is empty, or contains an inactive processor. `NtCreateProfileEx` also refuses a `GROUP_AFFINITY`
    /// with a reserved member that is not zero.
    Affinity,
    /// A profile of virtual-8086 code was requested without a process. [Segment mode](crate::BasicProfile::base) needs
    /// a process.
    SegmentWithoutProcess,
    /// This version of Windows has no callback objects.
    NoCallbackObjects,
    /// This version of Windows has no `NtCreateProfileEx`, the service that takes processor groups.
    NotInVersion(Rules),
    /// The caller lacks a right, or a handle or memory that the caller passed is not valid. The status tells the
    /// reason.
    Caller(NtStatus),
}

impl CreateError {
    /// Returns the status with which Windows reports this error.
    pub const fn status(&self) -> NtStatus {
        match self {
            Self::EmptyBuffer => NtStatus::INVALID_PARAMETER_7,
            Self::BucketSize { .. } | Self::Affinity | Self::SegmentWithoutProcess => {
                NtStatus::INVALID_PARAMETER
            }
            Self::BufferTooSmall { .. } => NtStatus::BUFFER_TOO_SMALL,
            Self::RangeWraps => NtStatus::BUFFER_OVERFLOW,
            Self::Caller(status) => *status,
            Self::NotInVersion(_) => NtStatus::INVALID_SYSTEM_SERVICE,
            Self::UnsupportedSource(_) | Self::NotASource | Self::NoCallbackObjects => {
                NtStatus::NOT_SUPPORTED
            }
        }
    }
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyBuffer => f.write_str("the buffer is empty"),
            Self::BucketSize { log2: 0 } => f.write_str(
                "no bucket size is given, and none can be chosen: that takes the segment mode, and a \
                 buffer for which there is one",
            ),
            Self::BucketSize { log2 } => {
                write!(f, "a bucket of 2^{log2} bytes is outside 4 bytes to 2 GiB")
            }
            Self::BufferTooSmall { buckets, counters } => {
                write!(f, "{buckets} buckets do not fit {counters} counters")
            }
            Self::RangeWraps => f.write_str("the range ends beyond the last address"),
            Self::UnsupportedSource(source) => write!(f, "{source} is not supported"),
            Self::NotASource => pmu_core::profile::NotASource.fmt(f),
            Self::NotInVersion(rules) => write!(f, "{rules} has no processor groups"),
            Self::Affinity => f.write_str("the affinity selects no processor, or an inactive one"),
            Self::SegmentWithoutProcess => f.write_str("a segment is profiled for a process only"),
            Self::Caller(status) => write!(f, "the caller is refused: {status:?}"),
            Self::NoCallbackObjects => f.write_str("this version has no callback objects"),
        }
    }
}

impl core::error::Error for CreateError {}
