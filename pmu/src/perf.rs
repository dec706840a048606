//! Events as Linux' perf names them, converted into [`Event`](pmu_core::Event)s.
//!
//! Source: `perf_event_open(2)`; perf-list(1), "Raw Hardware Event Descriptor"; the kernel's
//! `Documentation/ABI/testing/sysfs-bus-event_source-devices-format`, and the files that it describes.

mod attr_bytes;
mod attr_flags;
mod attributes;
mod branch_samples;
mod cache_event;
mod encodings;
mod errno;
mod error;
mod event_attr;
mod event_text;
mod facility;
mod frequency;
mod hardware_names;
mod modifiers;
mod raw_config;
mod throttle;

pub use attr_flags::AttrFlags;
pub use attributes::{HARDWARE_EVENTS, PERF_TYPE_HARDWARE, PERF_TYPE_RAW, PerfAttributes};
pub use branch_samples::{BranchEntry, BranchSamples};
pub use cache_event::{Cache, CacheEvent, CacheOperation, PERF_TYPE_HW_CACHE};
pub use errno::errno;
pub use error::PerfError;
pub use event_attr::PerfEventAttr;
pub use event_text::{CoreKind, PerfEvent};
pub use facility::Facility;
pub use frequency::Frequency;
pub use raw_config::{RawConfig, RawTerms};
pub use throttle::Throttle;
