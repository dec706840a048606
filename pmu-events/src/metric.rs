//! Metrics: common ratios of events.
//!
//! Uses the [look-up](crate::core_type) of events by name, and what is below it.

pub(crate) mod error;
pub(crate) mod expression;
pub(crate) mod formulas;
pub(crate) mod kinds;
