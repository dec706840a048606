//! The causes that end the work early.

use pmu_core::MsrErrorKind;

/// Reason for which the worker stops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Another owner wrote these registers.
    Disturbed(Vec<u32>),
    /// A register cannot be reached.
    Access(MsrErrorKind),
    /// The supervisor is gone.
    Alone,
}
