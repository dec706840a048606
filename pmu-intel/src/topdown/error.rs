//! Errors of top-down analysis.

use core::fmt;

use pmu_core::{CounterError, GroupError, MsrFault, NoInterface};

/// Reason why a processor has no top-down counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum NoTopDown {
    /// The processor has no counters of Intel's architectural performance monitoring. On a processor of another vendor,
    /// such as AMD, the reason is [`OtherVendor`](NoInterface::OtherVendor). The text of this reason names a profile
    /// interface. Here, the text means that only Intel's processors have these top-down counters.
    NoCounters(NoInterface),
    /// `IA32_PERF_CAPABILITIES` and CPUID do not declare top-down counters for this type of core.
    NotDeclared,
    /// `IA32_PERF_CAPABILITIES` could not be read.
    Access(MsrFault),
}

impl fmt::Display for NoTopDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCounters(why) => why.fmt(f),
            Self::NotDeclared => f.write_str("the core declares no top-down counters"),
            Self::Access(fault) => write!(f, "top-down counters cannot be detected: {fault}"),
        }
    }
}

impl core::error::Error for NoTopDown {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::NoCounters(why) => Some(why),
            Self::NotDeclared => None,
            Self::Access(fault) => Some(fault),
        }
    }
}

/// Error of a [`TopDownCounter`](crate::topdown::TopDownCounter).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum TopDownError {
    /// The processor has no supported top-down counters.
    NoTopDown(NoTopDown),
    /// The memory belongs to another [`TopDownCounter`](crate::topdown::TopDownCounter) that was not shut down.
    MemoryInUse,
    /// The top-down counter needs fixed counter 3, which counts the slots. Fixed counter 3 runs an event, or
    /// is the session's only counter.
    SlotsInUse,
    /// A write to fixed counter 3 or to `MSR_PERF_METRICS` has no effect. This happens under a hypervisor that does not
    /// implement these registers.
    Unresponsive,
    /// [`start`](crate::topdown::TopDownCounter::start) was called while the processor's slots are being counted, or
    /// [`switch_in`](crate::topdown::TopDownCounter::switch_in) while a thread's slots are being counted.
    AlreadyStarted,
    /// [`stop`](crate::topdown::TopDownCounter::stop) was called while the processor's slots are not being counted, or
    /// an operation on a thread was called while no thread's slots are being counted.
    NotStarted,
    /// The filter has no privilege level, or slots are being counted with a different filter.
    Filter,
    /// No task has called [`TopDownCounter::take`](crate::topdown::TopDownCounter::take), or
    /// [`shut_down`](crate::topdown::TopDownCounter::shut_down) was called since.
    ShutDown,
    /// The [`TopDownCounter`](crate::topdown::TopDownCounter) is [suspended](pmu_core::CounterSession::lend_with) while
    /// the session's counters are lent.
    Lent,
    /// An operation of the session failed.
    Session(CounterError),
    /// A register access failed. If slots were counted before the call, they are still counted.
    Access(MsrFault),
    /// A register access failed, and the slots are no longer counted. The counts up to the failure are kept.
    Faulted(MsrFault),
}

impl fmt::Display for TopDownError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoTopDown(why) => why.fmt(f),
            Self::MemoryInUse => {
                f.write_str("the memory belongs to a top-down counter that was not shut down")
            }
            Self::SlotsInUse => f.write_str("an event runs on the counter of the issue slots"),
            Self::Unresponsive => f.write_str("the top-down registers do not answer"),
            Self::AlreadyStarted => f.write_str("these issue slots are counted already"),
            Self::NotStarted => f.write_str("these issue slots are not counted"),
            Self::Filter => {
                f.write_str("the issue slots of these privilege levels cannot be counted now")
            }
            Self::ShutDown => f.write_str("the top-down counter is not taken"),
            Self::Lent => f.write_str("the top-down counter is lent"),
            Self::Session(error) => error.fmt(f),
            Self::Access(fault) => write!(f, "the issue slots are counted as before: {fault}"),
            Self::Faulted(fault) => write!(f, "the issue slots are not counted any more: {fault}"),
        }
    }
}

impl core::error::Error for TopDownError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::NoTopDown(why) => Some(why),
            Self::Session(error) => Some(error),
            Self::Access(fault) | Self::Faulted(fault) => Some(fault),
            _ => None,
        }
    }
}

impl From<NoTopDown> for TopDownError {
    fn from(why: NoTopDown) -> Self {
        Self::NoTopDown(why)
    }
}

impl From<CounterError> for TopDownError {
    fn from(error: CounterError) -> Self {
        Self::Session(error)
    }
}

impl From<GroupError> for TopDownError {
    fn from(error: GroupError) -> Self {
        Self::Session(error.reason)
    }
}
