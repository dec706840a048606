//! Why a profile could not be created, started or stopped.

use core::fmt;

use pmu_core::{InterfaceError, KProfileSource, NtStatus, ProcessorNumber};

use crate::Rules;

/// Why a profile object was not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum CreateError {
    /// The buffer has no counter.
    EmptyBuffer,
    /// The bucket's size is outside 2–31, or could not be chosen.
    BucketSize {
        /// The logarithm asked for; 0: the choice was the kernel's.
        log2: u32,
    },
    /// The range has more buckets than the buffer has counters.
    BufferTooSmall {
        /// Buckets of the range.
        buckets: u64,
        /// Counters of the buffer.
        counters: u64,
    },
    /// The range's end is beyond the last address.
    RangeWraps,
    /// The hardware does not support the source.
    UnsupportedSource(KProfileSource),
    /// The affinity names no processor, or one that is not active.
    Affinity,
    /// A profile of a segment needs a process.
    SegmentWithoutProcess,
    /// This version of Windows has no callback objects.
    NoCallbackObjects,
}

impl CreateError {
    /// The status with which Windows reports it.
    pub const fn status(&self) -> NtStatus {
        match self {
            Self::EmptyBuffer => NtStatus::INVALID_PARAMETER_7,
            Self::BucketSize { .. } | Self::Affinity | Self::SegmentWithoutProcess => {
                NtStatus::INVALID_PARAMETER
            }
            Self::BufferTooSmall { .. } => NtStatus::BUFFER_TOO_SMALL,
            Self::RangeWraps => NtStatus::BUFFER_OVERFLOW,
            Self::UnsupportedSource(_) | Self::NoCallbackObjects => NtStatus::NOT_SUPPORTED,
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
            Self::BucketSize { log2 } => crate::bucket::BucketSizeError { log2: *log2 }.fmt(f),
            Self::BufferTooSmall { buckets, counters } => {
                write!(f, "{buckets} buckets do not fit {counters} counters")
            }
            Self::RangeWraps => f.write_str("the range ends beyond the last address"),
            Self::UnsupportedSource(source) => write!(f, "{source} is not supported"),
            Self::Affinity => f.write_str("the affinity selects no processor, or an inactive one"),
            Self::SegmentWithoutProcess => f.write_str("a segment is profiled for a process only"),
            Self::NoCallbackObjects => f.write_str("this version has no callback objects"),
        }
    }
}

impl core::error::Error for CreateError {}

/// Why a profile was not started or stopped, or not everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum ProfileError {
    /// The object is started already.
    AlreadyStarted,
    /// The object is not started.
    NotStarted,
    /// The object is started on other lists than these.
    OnAnotherList,
    /// The object was created under other rules than those of the lists.
    OtherRules {
        /// The rules of the object.
        object: Rules,
        /// The rules of the lists.
        lists: Rules,
    },
    /// The lists are full.
    AtLimit,
    /// An interrupt or a callback asked; only task context may.
    WrongContext,
    /// None of the object's processors is active.
    NoProcessor,
    /// An active processor that is to be profiled is beyond those that the lists are for: its interrupts
    /// would find nothing, so nothing is started there.
    ProcessorBeyondLists(ProcessorNumber),
    /// The hardware refused on a processor. A start undid everything; if that failed too, this is the
    /// fault. All other operations went on with the other sources and processors, and this is what failed
    /// first.
    Hardware {
        /// The processor on which it failed.
        processor: ProcessorNumber,
        /// The cause.
        error: InterfaceError,
    },
}

impl ProfileError {
    /// The status with which Windows reports the same, where it does.
    pub const fn status(&self) -> Option<NtStatus> {
        match self {
            Self::AlreadyStarted | Self::OnAnotherList => Some(NtStatus::PROFILING_NOT_STOPPED),
            Self::NotStarted => Some(NtStatus::PROFILING_NOT_STARTED),
            Self::AtLimit => Some(NtStatus::PROFILING_AT_LIMIT),
            Self::OtherRules { .. }
            | Self::WrongContext
            | Self::NoProcessor
            | Self::ProcessorBeyondLists(_) => None,
            Self::Hardware { error, .. } => error.status(),
        }
    }
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyStarted => f.write_str("the profile is already started"),
            Self::NotStarted => f.write_str("the profile is not started"),
            Self::OnAnotherList => f.write_str("the profile is started on other lists"),
            Self::OtherRules { object, lists } => {
                write!(f, "the profile was created for {object}, and the lists are for {lists}")
            }
            Self::AtLimit => f.write_str("as many profiles are started as there can be"),
            Self::WrongContext => f.write_str("only task context may start and stop profiles"),
            Self::NoProcessor => f.write_str("none of the profile's processors is active"),
            Self::ProcessorBeyondLists(processor) => {
                write!(f, "the lists are for fewer processors than {processor}")
            }
            Self::Hardware { processor, error } => write!(f, "processor {processor}: {error}"),
        }
    }
}

impl core::error::Error for ProfileError {}
