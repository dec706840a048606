//! The error of a metric without a value.

use core::fmt;

use crate::metric::kinds::Metric;

/// Reason why a metric has no formula or no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum MetricError {
    /// This crate has no formula for the metric on this core type. The core type lacks events that the metric needs.
    /// The value is the metric.
    NotHere(Metric),
    /// The caller gave no count for an event that the metric needs. The value is the event's name.
    NotCounted(&'static str),
    /// A denominator in the metric's formula is 0, because the denominator's events did not occur.
    NothingToShare,
}

impl fmt::Display for MetricError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotHere(metric) => write!(f, "{metric}: no formula is known for this core type"),
            Self::NotCounted(event) => write!(f, "{event} was not counted"),
            Self::NothingToShare => f.write_str("nothing was counted of what it is a share of"),
        }
    }
}

impl core::error::Error for MetricError {}
