//! Linux perf's names of events, and their [`Event`](pmu_core::Event)s.
//!
//! Source: `perf_event_open(2)`; perf-list(1), "Raw Hardware Event Descriptor"; the kernel's
//! `Documentation/ABI/testing/sysfs-bus-event_source-devices-format`, and the files that it describes.

mod attributes;
mod error;
mod raw_config;

pub use attributes::{HARDWARE_EVENTS, PERF_TYPE_HARDWARE, PERF_TYPE_RAW, PerfAttributes};
pub use error::PerfError;
pub use raw_config::{RawConfig, RawTerms};
