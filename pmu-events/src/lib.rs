#![doc = include_str!("../README.md")]
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(test)]
extern crate std;

pub mod arm;
mod core_type;
mod event;
mod format;
mod name;
#[rustfmt::skip]
mod tables;
pub mod uncore;

pub use core_type::{EventError, Events, Matching, Processor, UnknownCoreType};
pub use event::{Encoding, ExtraMsr, PmuEvent};
pub use format::{CoreType, Precise};
pub use name::EventName;
pub use name::hash::MAX_NAME;
pub use tables::*;

/// Metrics: common ratios of events.
///
/// Uses the look-up (`core_type`) of events by name, and what is below it.
pub mod metric {
    pub(crate) mod evaluation;
    pub(crate) mod expression;

    pub use evaluation::Ratio;
    pub use expression::{Expression, Metric, MetricError, MetricEvent};
}
