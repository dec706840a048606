#![doc = include_str!("../README.md")]
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(test)]
extern crate std;

mod core_type;
mod event;
mod format;
pub mod metric;
mod name;
mod processor;
#[rustfmt::skip]
mod tables;
pub mod uncore;

pub use core_type::error::{EventError, UnknownCoreType};
pub use core_type::lookup::Events;
pub use core_type::search::Matching;
pub use event::{Encoding, ExtraMsr, PmuEvent};
pub use format::core_type::CoreType;
pub use format::record::Precise;
pub use name::event_name::EventName;
pub use name::hash::MAX_NAME;
pub use processor::Processor;
pub use tables::*;
