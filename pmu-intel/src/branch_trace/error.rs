//! Failures of a tracer.

use core::fmt;

use pmu_core::MsrFault;

/// Error of a [`BranchTracer`](crate::branch_trace::BranchTracer).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum BranchTraceError {
    /// The processor has no branch trace store, or its DS save area has 32-bit fields.
    Unavailable,
    /// Another tracer still uses memory that was passed to
    /// [`BranchTracer::take`](crate::branch_trace::BranchTracer::take): the argument `memory`, or the DS save area in
    /// the argument `beside`. Shut that tracer down first.
    MemoryInUse,
    /// The size of the buffer in the trace memory is 0, or is not a multiple of a page.
    InsufficientMemory,
    /// No session uses the [memory of precise records](crate::precise::PreciseMemory) that was passed as `beside` to
    /// [`BranchTracer::take`](crate::branch_trace::BranchTracer::take): no precise event has run yet.
    NoRecorder,
    /// The tracer was shut down.
    ShutDown,
    /// The tracer is [suspended](pmu_core::CounterSession::lend_with) while the session's counters are lent, for
    /// instance to a guest.
    Lent,
    /// A register access failed, and nothing is traced.
    Access(MsrFault),
    /// A register access failed, and the processor may still trace.
    Faulted(MsrFault),
}

impl fmt::Display for BranchTraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable => f.write_str("the processor has no branch trace store"),
            Self::MemoryInUse => {
                f.write_str("the memory belongs to a tracer that was not shut down")
            }
            Self::InsufficientMemory => f.write_str("the memory has no whole pages of buffer"),
            Self::NoRecorder => f.write_str("the area belongs to no recorder of precise records"),
            Self::ShutDown => f.write_str("the tracer was shut down"),
            Self::Lent => f.write_str("the tracer is lent"),
            Self::Access(fault) => write!(f, "nothing is traced: {fault}"),
            Self::Faulted(fault) => write!(f, "the trace cannot be stopped: {fault}"),
        }
    }
}

impl core::error::Error for BranchTraceError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Access(fault) | Self::Faulted(fault) => Some(fault),
            _ => None,
        }
    }
}
