//! Why there is no profile interface, and why an operation of one failed.

use core::fmt;

use crate::{IntervalError, KProfileSource, MsrFault, NtStatus, TimerUnavailable};

/// Why a vendor crate does not detect a processor: only [`DefaultInterface`](crate::DefaultInterface)
/// remains, which profiles by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum NoInterface {
    /// The processor is another vendor's, whose name in leaf 0 this is.
    OtherVendor([u8; 12]),
    /// CPUID declares no performance monitoring: the leaf is absent, its version or its number of
    /// events is 0.
    NoPerformanceMonitoring,
    /// The event that every interface builds on, unhalted cycles, is not available.
    CyclesUnavailable,
    /// The processor lacks long mode.
    NoLongMode,
    /// A Microsoft-compatible hypervisor does not offer performance monitors.
    HiddenByHypervisor,
    /// CPUID declares counters that cannot be: none, more than there are registers for, or narrower
    /// or wider than a counter can be.
    ImplausibleCounters {
        /// The declared number of counters.
        count: u8,
        /// Their declared width in bits.
        width: u8,
    },
}

impl NoInterface {
    /// Of two vendors' reasons, the one that tells more: that of the processor's own vendor.
    pub fn or(self, other: Self) -> Self {
        if matches!(self, Self::OtherVendor(_)) { other } else { self }
    }
}

impl fmt::Display for NoInterface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherVendor(vendor) => {
                write!(f, "no profile interface for processors of \"{}\"", vendor.escape_ascii())
            }
            Self::NoPerformanceMonitoring => {
                f.write_str("the processor declares no performance monitoring")
            }
            Self::CyclesUnavailable => {
                f.write_str("the processor declares its cycles event unavailable")
            }
            Self::NoLongMode => f.write_str("the processor has no long mode"),
            Self::HiddenByHypervisor => {
                f.write_str("the hypervisor does not offer performance monitors")
            }
            Self::ImplausibleCounters { count, width } => {
                write!(f, "the processor declares {count} counters of {width} bits")
            }
        }
    }
}

impl core::error::Error for NoInterface {}

/// Why an operation of a profile interface failed. Unless it is [`Faulted`](Self::Faulted), nothing
/// was changed; of [`initialize`](crate::ProfileInterface::initialize), that no counter runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum InterfaceError {
    /// The interface has no such source, or this processor does not support it.
    UnsupportedSource(KProfileSource),
    /// Every counter is in use.
    NoFreeCounter(KProfileSource),
    /// The source runs already on this processor.
    AlreadyStarted(KProfileSource),
    /// The source does not run on this processor.
    NotStarted(KProfileSource),
    /// The interval is outside the source's limits.
    Interval(IntervalError),
    /// No counter gives back what is written to it: there are none, whatever CPUID declares.
    CountersUnresponsive,
    /// The processor is of another kind than the one that the interface was detected for: they have no
    /// counter in common.
    OtherProcessor,
    /// The memory belongs to a session: another processor's, or one that was not shut down.
    MemoryInUse,
    /// The lent memory has too few slots.
    InsufficientMemory {
        /// Slots needed.
        needed: usize,
        /// Slots lent.
        lent: usize,
    },
    /// The platform has no profile timer.
    Timer(TimerUnavailable),
    /// The processor cannot freeze its counters, or does not keep the bit that asks for it.
    FreezeUnsupported,
    /// These bits of the global control register are the session's own; or there is no such register.
    OwnControlBits(u64),
    /// The event has these bits, which no select of this processor may have.
    IllegalEvent(u64),
    /// Registers of a running counter lost their contents: see
    /// [`reprogram`](crate::Session::reprogram).
    RegistersLost,
    /// The counters that were saved cannot be restored: the save area is another interface's, or
    /// one of its counters is in use.
    NotRestorable,
    /// A register access failed; what had been programmed was undone.
    Access(MsrFault),
    /// A register access failed, and so did undoing: this register does not answer. The counter is
    /// presumed running until it is programmed again ([`reprogram`](crate::Session::reprogram)) or
    /// shut-down; it counts for no source and is not used meanwhile.
    Faulted(MsrFault),
}

impl InterfaceError {
    /// The status with which Windows reports the same, where it does.
    pub const fn status(&self) -> Option<NtStatus> {
        match self {
            Self::UnsupportedSource(_) => Some(NtStatus::NOT_SUPPORTED),
            Self::NoFreeCounter(_) | Self::InsufficientMemory { .. } => {
                Some(NtStatus::INSUFFICIENT_RESOURCES)
            }
            Self::AlreadyStarted(_) => Some(NtStatus::PROFILING_NOT_STOPPED),
            Self::NotStarted(_) => Some(NtStatus::PROFILING_NOT_STARTED),
            // Windows' call to set an interval always succeeds; the rest it does not know.
            Self::Interval(_)
            | Self::CountersUnresponsive
            | Self::OtherProcessor
            | Self::MemoryInUse
            | Self::OwnControlBits(_)
            | Self::IllegalEvent(_)
            | Self::RegistersLost
            | Self::FreezeUnsupported
            | Self::Timer(_)
            | Self::NotRestorable
            | Self::Access(_)
            | Self::Faulted(_) => None,
        }
    }
}

impl fmt::Display for InterfaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnsupportedSource(source) => write!(f, "{source} is not supported"),
            Self::NoFreeCounter(source) => write!(f, "no free counter for {source}"),
            Self::AlreadyStarted(source) => write!(f, "{source} is already started"),
            Self::NotStarted(source) => write!(f, "{source} is not started"),
            Self::Interval(error) => error.fmt(f),
            Self::CountersUnresponsive => {
                f.write_str("no counter gives back what is written to it")
            }
            Self::OtherProcessor => {
                f.write_str("this processor has none of the interface's counters")
            }
            Self::MemoryInUse => f.write_str(
                "the counter memory belongs to another processor's session, \
                 or to one that was not shut down",
            ),
            Self::OwnControlBits(bits) => {
                write!(f, "bits {bits:#X} of the global control are not another owner's")
            }
            Self::IllegalEvent(bits) => {
                write!(f, "the event has bits {bits:#X}, which this processor's selects do not")
            }
            Self::RegistersLost => {
                f.write_str("a counter's registers lost their contents: reprogram them")
            }
            Self::InsufficientMemory { needed, lent } => {
                write!(f, "memory lent for {lent} counters, {needed} needed")
            }
            Self::Timer(error) => error.fmt(f),
            Self::FreezeUnsupported => f.write_str("the processor does not freeze its counters"),
            Self::NotRestorable => f.write_str("the saved counters cannot be restored"),
            Self::Access(fault) => write!(f, "register access failed and was undone: {fault}"),
            Self::Faulted(fault) => {
                write!(f, "a counter cannot be stopped and is presumed running: {fault}")
            }
        }
    }
}

impl core::error::Error for InterfaceError {}

impl From<IntervalError> for InterfaceError {
    fn from(error: IntervalError) -> Self {
        Self::Interval(error)
    }
}

impl From<TimerUnavailable> for InterfaceError {
    fn from(error: TimerUnavailable) -> Self {
        Self::Timer(error)
    }
}
