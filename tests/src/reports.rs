//! The overflows of an interrupt: of sources alone, or each as the overflow of a source or of an opened event.

use pmu_core::error::ServiceError;
use pmu_core::interrupt::{EventOverflow, Serviced};
use pmu_core::memory::CounterMemory;
use pmu_core::profile::Overflow;
use pmu_core::{EventSource, Hardware, Sample, service};

/// One overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// Of a source.
    Source(Overflow),
    /// Of an event that was opened.
    Event(EventOverflow),
}

impl Report {
    /// Returns the report of an overflow of these sources, or of an event beside them.
    pub fn of<S: EventSource>(source: &S, overflow: &EventOverflow) -> Self {
        source.overflow(overflow).map_or(Self::Event(*overflow), Self::Source)
    }
}

/// Services an interrupt, and passes on the overflows of sources.
pub fn service_sources<S: EventSource, H: Hardware>(
    source: &S,
    hardware: &H,
    memory: &CounterMemory,
    overflowed: impl FnMut(Overflow),
) -> Result<Serviced, ServiceError> {
    service(source, hardware, memory, of_sources(source, overflowed))
}

/// Services an interrupt, and passes on all overflows.
pub fn service_reports<S: EventSource, H: Hardware>(
    source: &S,
    hardware: &H,
    memory: &CounterMemory,
    overflowed: impl FnMut(Report),
) -> Result<Serviced, ServiceError> {
    service(source, hardware, memory, all(source, overflowed))
}

/// Returns a function that passes on the overflows of sources, for an operation that reports samples.
pub fn of_sources<S: EventSource>(
    source: &S,
    mut overflowed: impl FnMut(Overflow),
) -> impl FnMut(Sample<'_, S::Facility>) {
    move |sample| {
        if let Some(overflow) = source.overflow(&sample) {
            overflowed(overflow);
        }
    }
}

/// Returns a function that passes on all overflows, for an operation that reports samples.
pub fn all<S: EventSource>(
    source: &S,
    mut overflowed: impl FnMut(Report),
) -> impl FnMut(Sample<'_, S::Facility>) {
    move |sample| overflowed(Report::of(source, &sample))
}
