//! Metrics: common ratios of events.
//!
//! Uses the look-up (`core_type`) of events by name, and what is below it.

pub(crate) mod evaluation;
pub(crate) mod expression;

pub use evaluation::Ratio;
pub use expression::{Expression, Metric, MetricError, MetricEvent};
