//! The operation that one processor asks another to perform.

use pmu_core::KProfileSource;

/// Operation that a processor is asked to perform with its session: start or stop a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum SourceRequest {
    /// Start a source.
    Start(KProfileSource),
    /// Stop a source.
    Stop(KProfileSource),
}
