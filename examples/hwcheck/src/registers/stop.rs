//! The causes that end the work early.

use pmu_core::access::AccessErrorKind;

/// Reason for which the worker stops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Another owner wrote these registers.
    Disturbed(Vec<u32>),
    /// An access failed, and not by #GP.
    Access {
        /// The register.
        register: u32,
        /// The failure.
        kind: AccessErrorKind,
    },
    /// The supervisor is gone.
    Alone,
}
