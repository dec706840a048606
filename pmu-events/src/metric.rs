//! Metrics: common ratios of events.
//!
//! Uses the look-up (`core_type`) of events by name, and what is below it.

pub(crate) mod error;
pub(crate) mod evaluation;
pub(crate) mod expression;
pub(crate) mod formula_text;
pub(crate) mod kinds;
pub(crate) mod ratio;

pub use error::MetricError;
pub use expression::{Expression, MetricEvent};
pub use kinds::Metric;
pub use ratio::Ratio;
