//! Errors of precise records.

use core::fmt;

use pmu_core::{CounterError, MsrFault, SampleParts};

/// Reason why a processor has no precise records that this crate supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum NoPrecise {
    /// The processor's vendor is not Intel. The value is the vendor's name in CPUID leaf 0.
    OtherVendor([u8; 12]),
    /// CPUID does not declare the Debug Store, and does not declare architectural PEBS.
    NotDeclared,
    /// `IA32_MISC_ENABLE` declares PEBS unavailable. Hypervisors and some firmware set this bit of the register.
    Unavailable,
    /// The Debug Store has 32-bit words (no DTES64). This crate can decode the records of such a processor, but cannot
    /// make the processor write records.
    NarrowWords,
    /// The processor has no overflow status register, `IA32_PERF_GLOBAL_STATUS`. Without this register, an interrupt
    /// handler cannot tell that the buffer has reached its threshold.
    NoStatus,
    /// This crate does not know the processor's record format. The value is the format's number in
    /// `IA32_PERF_CAPABILITIES`.
    UnknownFormat(u8),
    /// Because of an erratum, the processor's records are unusable.
    Erratum,
    /// Architectural PEBS needs the physical address of the buffer. The kernel does not provide the address, or the
    /// buffer does not consist of 2ⁿ pages that are physically contiguous.
    NoPhysicalAddress,
    /// A register access failed.
    Access(MsrFault),
}

impl fmt::Display for NoPrecise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherVendor(_) => f.write_str("the processor is of another vendor"),
            Self::NotDeclared => f.write_str("the processor declares no precise records"),
            Self::Unavailable => f.write_str("IA32_MISC_ENABLE declares PEBS unavailable"),
            Self::NarrowWords => f.write_str("the Debug Store has 32-bit words"),
            Self::NoStatus => f.write_str("the processor has no overflow status"),
            Self::UnknownFormat(number) => write!(f, "PEBS format {number} is not known"),
            Self::Erratum => f.write_str("precise records are unusable because of an erratum"),
            Self::NoPhysicalAddress => f.write_str("the buffer's physical address is not known"),
            Self::Access(fault) => fault.fmt(f),
        }
    }
}

impl core::error::Error for NoPrecise {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Access(fault) => Some(fault),
            _ => None,
        }
    }
}

/// Reason why a processor cannot record an event as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum PreciseEventError {
    /// The event has no [period](pmu_core::Event::every).
    NoPeriod,
    /// The period is 2³¹ or longer. The processor cannot reload a counter with such a period.
    PeriodTooLong(u64),
    /// The processor cannot write records of the requested event.
    NotPrecise,
    /// The requested precision needs the address of the sampled instruction. Records of this processor have only the
    /// address of the next instruction.
    NextAddressOnly,
    /// Zero skid is [required](crate::precise::Precision::ZeroSkidRequired), but no counter that can count this event
    /// supports zero skid.
    NoExactCounter,
    /// The request has groups that this processor's records cannot have. The value consists of these groups.
    Groups(SampleParts),
    /// A latency was requested for an event that is not the processor's load-latency event. Some processors have no
    /// load-latency event.
    NotLatencyEvent,
    /// The event is the processor's load-latency event, but no [latency](crate::precise::PreciseEvent::with_latency)
    /// was requested.
    NoLatency,
    /// The event is [loaded by the handler](crate::precise::PreciseEvent::loaded_by_handler), so the recorder's
    /// threshold must be [`EachRecord`](crate::precise::PreciseThreshold::EachRecord).
    NeedsEachRecord,
    /// The recorder does not support an event that counts only in guests. If the event has an
    /// [extra register](pmu_core::Event::with_extra), the recorder supports only front-end events with
    /// `MSR_PEBS_FRONTEND`. The processor must have this register.
    Unsupported,
}

impl fmt::Display for PreciseEventError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPeriod => f.write_str("an event with precise records needs a period"),
            Self::PeriodTooLong(period) => write!(f, "a period of {period} is too long"),
            Self::NotPrecise => f.write_str("the processor writes no records of this event"),
            Self::NextAddressOnly => {
                f.write_str("records have only the address of the next instruction")
            }
            Self::NoExactCounter => {
                f.write_str("no counter records the very instruction that overflows")
            }
            Self::Groups(groups) => write!(f, "records cannot have {groups:?}"),
            Self::NotLatencyEvent => {
                f.write_str("the processor samples only its event of load latencies by latency")
            }
            Self::NoLatency => f.write_str("the event of load latencies needs a latency"),
            Self::NeedsEachRecord => {
                f.write_str("an event that the handler loads needs an interrupt for each record")
            }
            Self::Unsupported => f.write_str(
                "events of guests only, and with such an extra register, are not recorded",
            ),
        }
    }
}

impl core::error::Error for PreciseEventError {}

/// Error of a [`PreciseRecorder`](crate::precise::PreciseRecorder).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum PreciseError {
    /// The memory belongs to a recorder that was not shut down.
    MemoryInUse,
    /// The memory has fewer than `needed` bytes for records, or the processor cannot use a buffer of this size.
    /// Architectural PEBS needs a buffer of 2ⁿ pages.
    InsufficientMemory {
        /// Least number of bytes that is needed.
        needed: usize,
        /// Number of bytes of the memory.
        lent: usize,
    },
    /// Architectural PEBS needs the buffer's physical address. The call gave no address, or an address that is not a
    /// multiple of 4 KiB.
    NeedsPhysicalAddress,
    /// The processor cannot record the event as requested.
    Event(PreciseEventError),
    /// Another started event has a different latency threshold. The value is the other event's threshold in cycles.
    LatencyInUse(u16),
    /// Another started event has a different condition in `MSR_PEBS_FRONTEND`. The value is the other event's
    /// condition.
    FrontendInUse(u32),
    /// No event was started on this counter.
    NotStarted,
    /// An operation of the counter session failed, for example because no counter is free.
    Counters(CounterError),
    /// A [`BranchTracer`](crate::branch_trace::BranchTracer) still uses the recorder's DS save area. Shut the tracer
    /// down first.
    Traced,
    /// The recorder was shut down.
    ShutDown,
    /// The recorder is [suspended](pmu_core::CounterSession::lend_with) while the session's counters are lent.
    Lent,
    /// A register access of the recorder failed. The processor no longer writes records of the event.
    Access(MsrFault),
    /// A register access of the recorder failed. The processor may still write records.
    Faulted(MsrFault),
}

impl fmt::Display for PreciseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MemoryInUse => {
                f.write_str("the memory belongs to a recorder that was not shut down")
            }
            Self::InsufficientMemory { needed, lent } => {
                write!(f, "the memory has {lent} bytes for records, and {needed} are needed")
            }
            Self::NeedsPhysicalAddress => {
                f.write_str("architectural PEBS needs the physical address of a page")
            }
            Self::Event(error) => error.fmt(f),
            Self::LatencyInUse(cycles) => {
                write!(f, "another event samples loads from {cycles} cycles on")
            }
            Self::FrontendInUse(condition) => {
                write!(f, "another front-end event has the condition {condition:#x}")
            }
            Self::NotStarted => f.write_str("no event is recorded on this counter"),
            Self::Counters(error) => error.fmt(f),
            Self::Traced => f.write_str("a branch tracer uses the area"),
            Self::ShutDown => f.write_str("the recorder was shut down"),
            Self::Lent => f.write_str("the recorder is lent"),
            Self::Access(fault) => write!(f, "nothing is recorded: {fault}"),
            Self::Faulted(fault) => write!(f, "the recording cannot be stopped: {fault}"),
        }
    }
}

impl core::error::Error for PreciseError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Event(error) => Some(error),
            Self::Counters(error) => Some(error),
            Self::Access(fault) | Self::Faulted(fault) => Some(fault),
            _ => None,
        }
    }
}

impl From<PreciseEventError> for PreciseError {
    fn from(error: PreciseEventError) -> Self {
        Self::Event(error)
    }
}

impl From<CounterError> for PreciseError {
    fn from(error: CounterError) -> Self {
        Self::Counters(error)
    }
}
