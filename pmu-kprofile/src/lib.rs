#![doc = include_str!("../README.md")]
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(test)]
extern crate std;

#[cfg(feature = "alloc")]
extern crate alloc;

mod affinity;
pub mod compat;
mod hardware;
mod index;
pub mod object;
mod registry;
mod sync;
pub mod trace;

pub use affinity::{Affinity, MAX_GROUPS};
pub use hardware::{
    AsOfVersion, IntervalGuard, Mailbox, Processors, ProfileHardware, Remote, SourceRequest,
    ThisProcessor,
};
pub use object::{
    BasicProfile, Caller, CreateError, CreateRequest, GroupAffinity, KernelCaller, ProfileCallback,
    ProfileObject, RequestedAffinity, UserCaller, ValidRequest,
};
pub use pmu_core::{HalInterface, PointerWidth, Rules, WindowsVersion, classes};
pub use registry::{DispatchOutcome, ProfileError, Profiles, Statistics, Stopping};
#[cfg(feature = "critical-section")]
pub use registry::{Handle, Started};
