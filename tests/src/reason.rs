//! The reason of an operation's failure, where a test does not ask which event of a group failed.

use pmu_core::error::{CounterError, EventsError};

/// See the module.
pub trait Reason<T> {
    /// Returns the outcome, with the reason alone.
    fn reason(self) -> Result<T, CounterError>;
}

impl<T> Reason<T> for Result<T, EventsError> {
    fn reason(self) -> Result<T, CounterError> {
        self.map_err(|error| error.reason)
    }
}
