//! The trait by which traced PMC allocates counters.

use pmu_core::frame::ProcessorNumber;
use pmu_core::profile::{KProfileSource, NtStatus};

use crate::affinity::Affinity;

/// Allocates and frees counters, as Windows' `HalAllocatePmcCounterSet` and `HalFreePmcCounterSet` do. Trace records
/// contain the values of these counters.
///
/// ```
/// use pmu_core::profile::{KProfileSource, NtStatus};
/// use pmu_core::frame::ProcessorNumber;
/// use pmu_kprofile::Affinity;
/// use pmu_kprofile::trace::CounterSets;
/// # fn open_and_start(_: ProcessorNumber, _: KProfileSource) -> Result<(), NtStatus> { Ok(()) }
/// # fn close_all(_: ProcessorNumber) {}
///
/// struct Kernel;
///
/// impl CounterSets for Kernel {
///     fn active_processors(&self) -> Affinity {
///         Affinity::first(2)
///     }
///     fn counters(&self) -> usize {
///         4
///     }
///     fn allocate(&mut self, on: ProcessorNumber, sources: &[KProfileSource]) -> Result<(), NtStatus> {
///         // Each is an event of `CounterSession` there, which is only counted.
///         sources.iter().try_for_each(|source| open_and_start(on, *source)).inspect_err(|_| close_all(on))
///     }
///     fn free(&mut self, on: ProcessorNumber) {
///         close_all(on);
///     }
/// }
/// ```
pub trait CounterSets {
    /// Returns the active processors.
    fn active_processors(&self) -> Affinity;

    /// Returns the number of counters that a processor has, as Windows' `HalQueryProfileNumberOfCounters` does. From
    /// Windows version 1903 on, at most this many sources can be selected for a logger.
    fn counters(&self) -> usize;

    /// Allocates counters for the sources on a processor, and starts the counters.
    ///
    /// # Errors
    /// The status that the service is to return, for instance `STATUS_NOT_SUPPORTED`. After an error, nothing is
    /// allocated on the processor.
    fn allocate(&mut self, on: ProcessorNumber, sources: &[KProfileSource])
    -> Result<(), NtStatus>;

    /// Frees the counters that were allocated on a processor, if the processor is still active.
    fn free(&mut self, on: ProcessorNumber);
}
