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
#[cfg(all(test, loom))]
mod loom_models;
pub mod object;
mod registry;
mod sync;
pub mod trace;

pub use affinity::{Affinity, MAX_GROUPS};
pub use hardware::as_of_version::AsOfVersion;
pub use hardware::interval::IntervalGuard;
pub use hardware::mailbox::Mailbox;
pub use hardware::processors::RemoteProcessors;
pub use hardware::profile_hardware::ProfileHardware;
pub use hardware::remote::Remote;
pub use hardware::request::SourceRequest;
pub use hardware::this_processor::ThisProcessor;
pub use object::callback::ProfileCallback;
pub use object::caller::{Caller, KernelCaller, UserCaller};
pub use object::error::CreateError;
pub use object::profile_object::ProfileObject;
pub use object::request::BasicProfile;
pub use object::service::{CreateRequest, GroupAffinity, RequestedAffinity, ValidRequest};
pub use pmu_core::profile::classes;
pub use pmu_core::windows::{HalInterface, PointerWidth, Rules, WindowsVersion};
pub use registry::control::Stopping;
pub use registry::dispatch::DispatchOutcome;
pub use registry::error::ProfileError;
pub use registry::listing::ListedProfile;
pub use registry::owned::{Handle, Started, StoppingOwned};
pub use registry::profiles::Profiles;
pub use registry::srcu::Statistics;
