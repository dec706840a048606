#![doc = include_str!("../README.md")]
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(test)]
extern crate std;

mod core_type;
mod event;
mod metric;
mod name;
mod processor;
#[rustfmt::skip]
mod tables;

pub use core_type::{CoreType, EventError, Events, Matching, UnknownCoreType};
pub use event::{Encoding, ExtraMsr, PmuEvent, Precise};
pub use metric::{Expression, Metric, MetricError, Ratio};
pub use name::{EventName, MAX_NAME};
pub use processor::{Processor, UnknownProcessor};
pub use tables::*;
