//! The operation that one processor asks another to perform.

use pmu_core::profile::KProfileSource;

/// Request to a processor: start or stop a profile source with the processor's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum SourceRequest {
    /// Start this source.
    Start(KProfileSource),
    /// Stop this source.
    Stop(KProfileSource),
}
