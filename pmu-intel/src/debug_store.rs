//! The Debug Store: memory to which the processor itself writes branch and event records.
//!
//! Read first: Intel SDM vol. 3B, §18.4.9 "BTS and DS Save Area", §20.6.2.4 "Processor Event-Based
//! Sampling".

pub(crate) mod area;
mod control;
mod error;
pub(crate) mod operations;
mod request;
pub(crate) mod support;

pub use area::{ControlAreaMemory, DsSaveArea, PebsDsSaveArea, PebsDsSaveArea32};
pub use area::{ProcessorProfileControlArea, ProcessorProfileControlArea32};
pub use control::ProcessorProfileControl;
pub use error::ControlAreaError;
pub use operations::{BRANCH_TRACE, update_debugctl, update_pebs_enable, write_ds_area};
pub use request::{CallerMode, ProfileControlRequest};
pub use support::DebugStoreSupport;
