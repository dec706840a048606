//! Events as Linux' perf names them, converted into [`Event`](pmu_core::Event)s.
//!
//! Source: `perf_event_open(2)`; perf-list(1), "Raw Hardware Event Descriptor"; the kernel's
//! `Documentation/ABI/testing/sysfs-bus-event_source-devices-format`, and the files that it describes.

mod attributes;
mod branch_samples;
mod error;
mod event_attr;
mod event_text;
pub(crate) mod generic;
mod records;
mod sampled_ops;

pub use attributes::{
    HARDWARE_EVENTS, PERF_TYPE_HARDWARE, PERF_TYPE_RAW, PERF_TYPE_SOFTWARE, PerfAttributes,
    RawConfig, RawTerms,
};
pub use branch_samples::{BranchEntry, BranchSamples};
pub use error::{Facility, PerfError, errno};
pub use event_attr::{AttrFlags, PerfEventAttr};
pub use event_text::{CoreKind, PerfEvent};
pub use generic::{Cache, CacheEvent, CacheOperation, PERF_TYPE_HW_CACHE};
pub use records::{RecordFormat, SampleContext};
pub use sampled_ops::{PERF_TYPE_IBS_FETCH, PERF_TYPE_IBS_OP};
