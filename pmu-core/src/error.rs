//! Why there is no profile interface, and why an operation of one failed.

use core::fmt;

use crate::{IntervalError, KProfileSource, MsrFault, NtStatus, TimerUnavailable};

/// Why a vendor crate does not claim a processor: only [`DefaultInterface`](crate::DefaultInterface)
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
    /// CPUID declares counters that can not be: none, more than there are registers for, or narrower
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
/// was changed; of [`initialise`](crate::ProfileInterface::initialise), that no counter runs.
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
    /// A counter does not give back what was written to it: there is none, whatever CPUID declares.
    CountersUnresponsive {
        /// The first counter that did not answer.
        counter: u8,
    },
    /// The lent memory has fewer slots than the processor has counters.
    InsufficientMemory {
        /// Slots needed.
        needed: usize,
        /// Slots lent.
        lent: usize,
    },
    /// The platform has no profile timer.
    Timer(TimerUnavailable),
    /// The processor can not freeze its counters.
    FreezeUnsupported,
    /// The counters that were saved can not be restored: the save area is another interface's, or
    /// one of its counters is in use.
    NotRestorable,
    /// A register access failed; what had been programmed was undone.
    Access(MsrFault),
    /// A register access failed, and so did undoing: this register does not answer. The counter is
    /// presumed running until shut-down; it counts for nobody and is not used again.
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
            | Self::CountersUnresponsive { .. }
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
            Self::CountersUnresponsive { counter } => {
                write!(f, "counter {counter} does not give back what is written to it")
            }
            Self::InsufficientMemory { needed, lent } => {
                write!(f, "memory lent for {lent} counters, {needed} needed")
            }
            Self::Timer(error) => error.fmt(f),
            Self::FreezeUnsupported => f.write_str("the processor can not freeze its counters"),
            Self::NotRestorable => f.write_str("the saved counters can not be restored"),
            Self::Access(fault) => write!(f, "register access failed and was undone: {fault}"),
            Self::Faulted(fault) => {
                write!(f, "a counter can not be stopped and is presumed running: {fault}")
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
