//! Reasons why bytes are not attributes, and why attributes or texts are not events.

use core::fmt;

use pmu_core::error::CounterError::{self, *};
use pmu_core::precise::NotPrecise as Reason;

/// Reason why bytes are not a `perf_event_attr`, why a conversion between an event and perf's attributes failed, or why
/// an event's text could not be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum PerfError {
    /// The field `size` of a `perf_event_attr` is below 64 bytes, the size of `PERF_ATTR_SIZE_VER0`, or above
    /// [`PerfEventAttr::MAX_SIZE`](crate::perf::PerfEventAttr::MAX_SIZE). The value is this field. As in Linux, the
    /// kernel then tells user mode the size that the kernel supports: it writes
    /// [`PerfEventAttr::SIZE`](crate::perf::PerfEventAttr::SIZE) into the field `size` of user mode's structure.
    #[error("no perf_event_attr has {0} bytes")]
    Size(u32),
    /// A byte beyond the latest version of `perf_event_attr` is not 0. As for [`Size`](Self::Size), the kernel then
    /// writes the size that it supports.
    #[error("a field at byte {at} is of a later version")]
    LaterField {
        /// Offset of the first nonzero byte beyond the latest version of `perf_event_attr`.
        at: usize,
    },
    /// The bytes of a `perf_event_attr` are fewer than the structure's size field says.
    #[error("{needed} bytes are needed")]
    Short {
        /// Number of bytes that the structure's size field requires.
        needed: usize,
    },
    /// The bytes have no room for what a read returns, or for a record: see
    /// [`RecordFormat`](crate::perf::RecordFormat).
    #[error("{needed} bytes are needed for a read or a record")]
    NoSpace {
        /// Number of bytes that the read or the record takes.
        needed: usize,
    },
    /// A read or a record is to have counts, and there is none.
    #[error("a read or a record lacks its counts")]
    NoCounts,
    /// Reserved flags of a `perf_event_attr` are set. The value is these flags.
    #[error("flags {0:#X} are reserved")]
    Flags(u64),
    /// A reserved field of a `perf_event_attr` is not 0.
    #[error("the field at byte {at} is reserved")]
    Reserved {
        /// Offset of the field in bytes.
        at: usize,
    },
    /// `sample_type` has reserved bits, or both kinds of weights. The value is these bits.
    #[error("sample_type cannot have bits {0:#X}")]
    SampleType(u64),
    /// `sample_type` selects fields that no [record](crate::perf::RecordFormat) has. The value is these bits.
    #[error("no record of a sample has the fields {0:#X} of sample_type")]
    SampleFields(u64),
    /// `read_format` has reserved bits. The value is these bits.
    #[error("bits {0:#X} of read_format are reserved")]
    ReadFormat(u64),
    /// The period has bit 63 set. The value is the period.
    #[error("the period {0} is too long")]
    Period(u64),
    /// The attributes' [type](crate::perf::PerfAttributes::type_) has no events here. The value is the type.
    #[error("there are no events of type {0}")]
    Type(u32),
    /// The hardware event with this number is not in [`HARDWARE_EVENTS`](crate::perf::HARDWARE_EVENTS).
    #[error("hardware event {0} is not known")]
    Hardware(u64),
    /// The software event with this number is not a [`SoftwareEvent`](pmu_core::SoftwareEvent).
    #[error("software event {0} is not known")]
    Software(u64),
    /// A raw configuration has bits that belong to no term. The value is these bits. For example, no term has bit 16
    /// (USR), 17 (OS), 20 (INT) or 22 (EN), because perf itself sets these bits.
    #[error("a raw configuration cannot have bits {0:#X}")]
    Bits(u64),
    /// An extra register has a value, but perf does not write this register for this event. The `u64` is the event's
    /// configuration.
    #[error("config1 has no meaning for configuration {0:#X}, or another one")]
    NoExtraRegister(u64),
    /// The attributes exclude all execution: both user and kernel mode, or both host and guest.
    #[error("everything is excluded from the event")]
    ExcludesAll,
    /// `branch_sample_type` has undefined bits, or selects what no [record](crate::perf::RecordFormat) has. The value
    /// is these bits.
    #[error("unknown bits {0:#X} of branch_sample_type")]
    BranchBits(u64),
    /// `branch_sample_type` selects no kind of branches.
    #[error("branch_sample_type selects no kind of branches")]
    NoBranchKind,
    /// `branch_sample_type` selects a call stack together with other kinds of branches.
    #[error("branch_sample_type selects a call stack and other branches")]
    CallStackWithKinds,
    /// The attributes need a facility in addition to a counter. The value is the facility.
    #[error("there is no support for {0}")]
    Facility(Facility),
    /// `config2`, `config3` or `config4` has a value without a meaning for a counter. The number is 2, 3 or 4.
    #[error("config{0} has no meaning for a counter")]
    Extension(u8),
    /// The text contains a term, modifier or name that needs a facility in addition to a counter.
    #[error("there is no support for {facility}, which byte {at} asks for")]
    Needs {
        /// The facility.
        facility: Facility,
        /// Offset of the term, modifier or name in the text, in bytes.
        at: usize,
    },
    /// The processor has no event that corresponds to this `type` and `config`.
    #[error("this processor has no event {config:#X} of type {type_}")]
    NotOnProcessor {
        /// `type`: [`PERF_TYPE_HARDWARE`](crate::perf::PERF_TYPE_HARDWARE) or
        /// [`PERF_TYPE_HW_CACHE`](crate::perf::PERF_TYPE_HW_CACHE).
        type_: u32,
        /// `config`.
        config: u64,
    },
    /// A modifier of the text is unknown or repeated, or the text has no modifier after the colon.
    #[error("no modifier of an event at byte {at}")]
    Modifier {
        /// Offset of the modifier in the text, in bytes.
        at: usize,
    },
    /// A name or a term of the text is unknown, a term conflicts with a term before it, or the closing slash is
    /// missing.
    #[error("no term of an event at byte {at}")]
    Term {
        /// Offset of the name or term in the text, in bytes.
        at: usize,
    },
    /// The value of a term is missing, is not a number, or is too great.
    #[error("no value, or none that fits, at byte {at}")]
    Value {
        /// Offset of the value in the text, in bytes.
        at: usize,
    },
}

impl PerfError {
    /// Returns the `errno` value with which Linux' `perf_event_open`, or a read of its descriptor, reports this error,
    /// as a positive number: `ENOENT` (2), `E2BIG` (7), `EFAULT` (14), `EINVAL` (22), `ENOSPC` (28), `EOPNOTSUPP` (95).
    ///
    /// ```
    /// use pmu::perf::{Facility, PerfError};
    /// assert_eq!(PerfError::Type(9).errno(), 2);
    /// assert_eq!(PerfError::Facility(Facility::PreciseSampling).errno(), 95);
    /// ```
    pub const fn errno(self) -> i32 {
        match self {
            Self::Type(_) | Self::NotOnProcessor { .. } | Self::Software(_) => 2,
            Self::Size(_) | Self::LaterField { .. } => 7,
            Self::Short { .. } => 14,
            Self::NoSpace { .. } => 28,
            Self::NoCounts => 22,
            Self::Flags(_) | Self::Reserved { .. } | Self::SampleType(_) | Self::ReadFormat(_) => {
                22
            }
            Self::Period(_) | Self::Hardware(_) | Self::Bits(_) | Self::NoExtraRegister(_) => 22,
            Self::BranchBits(_) | Self::NoBranchKind | Self::CallStackWithKinds => 22,
            Self::ExcludesAll | Self::Extension(_) => 22,
            Self::Modifier { .. } | Self::Term { .. } | Self::Value { .. } => 22,
            Self::SampleFields(_) | Self::Facility(_) | Self::Needs { .. } => 95,
        }
    }
}

/// Hardware or software that an event of perf can ask for, and that the converted event cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Facility {
    /// Precise samples that no [precise](pmu_core::Event::precise) event has: retire latencies (`:R`), and events that
    /// AMD's IBS does not sample.
    PreciseSampling,
    /// Records of taken branches (`branch_type`, `PERF_SAMPLE_BRANCH_STACK`) in samples of ops, of AMD's IBS.
    BranchRecords,
    /// Processor traces: Intel PT (`aux_output`).
    ProcessorTrace,
    /// BPF programs that count the event (`:b`).
    Bpf,
    /// Software events that no [`SoftwareEvent`](pmu_core::SoftwareEvent) is: `cgroup-switches` and `bpf-output`.
    SoftwareEvents,
    /// Hardware breakpoints (`mem:`).
    Breakpoints,
    /// Trace points of the kernel.
    TracePoints,
    /// Counters outside the cores, such as `uncore_…`, `amd_l3` and `power`.
    OtherUnits,
}

impl fmt::Display for Facility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PreciseSampling => "precise sampling",
            Self::BranchRecords => "branch records",
            Self::ProcessorTrace => "processor traces",
            Self::Bpf => "BPF",
            Self::SoftwareEvents => "this software event",
            Self::Breakpoints => "breakpoints",
            Self::TracePoints => "trace points",
            Self::OtherUnits => "units outside the cores",
        })
    }
}

/// Returns the `errno` value with which Linux' `perf_event_open` refuses the event, as a positive number: `ENOENT` (2),
/// `EIO` (5), `EBADF` (9), `ENOMEM` (12), `EBUSY` (16), `EINVAL` (22), `ENODATA` (61), `EOPNOTSUPP` (95). For a group,
/// pass [`EventsError::reason`](pmu_core::error::EventsError::reason).
///
/// Source: `perf_event_open(2)`, "Errors"; Linux' `arch/x86/events/core.c` and `arch/x86/events/intel/core.c`. Linux
/// has no error for a failed register access (here `EIO`) and for a full table (here `ENOMEM`).
///
/// ```
/// use pmu::core::error::CounterError;
/// use pmu::core::precise::NotPrecise;
/// use pmu::perf::errno;
/// assert_eq!(errno(CounterError::Period(100)), 22);
/// assert_eq!(errno(CounterError::NotPrecise(NotPrecise::NoFacility)), 95);
/// ```
pub const fn errno(error: CounterError) -> i32 {
    match error {
        NoCounters(_) | OtherProcessor | Unresponsive | Unsupported(_) => 2,
        CounterLost(_) | RegistersLost | Unchanged(_) | StateUnknown(_) => 5,
        NoSuchEvent(_) | GroupElsewhere(_) => 9,
        InsufficientMemory { .. } => 12,
        MemoryInUse | NotAvailable(_) => 16,
        NotPrecise(Reason::NeedsBeside(_)) => 61,
        // As an event that no counter can count: Linux' table of precise events gives it no counter.
        NotPrecise(Reason::Event | Reason::NotLatencyEvent) => 22,
        NotPrecise(Reason::NoPeriod | Reason::NoLatency) => 22,
        NotPrecise(_) | BranchesUnsupported => 95,
        SoftwareUnsupported => 2,
        FreezeUnsupported | GuestModeUnsupported | NeedsCounterPair => 95,
        // `CounterError` is `#[non_exhaustive]` in another crate, so the compiler does not ask for the number of a new
        // error: add it here, unless it is EINVAL.
        _ => 22,
    }
}
