#![doc = include_str!("../README.md")]
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(test)]
extern crate std;

#[cfg(feature = "alloc")]
extern crate alloc;

mod affinity;
pub mod compat;
pub mod hardware;
mod index;
#[cfg(all(test, loom))]
mod loom_models;
mod object;
mod registry;
mod sync;
pub mod trace;

pub use affinity::{Affinity, MAX_GROUPS};
pub use hardware::profile_hardware::ProfileHardware;
pub use object::error::CreateError;
pub use object::profile_object::{BasicProfile, ProfileCallback, ProfileObject};
pub use object::{bucket, service};
pub use pmu_core::windows::{PointerWidth, Rules, WindowsVersion};
pub use registry::control::{ProfileError, Stopping};
pub use registry::dispatch::DispatchOutcome;
pub use registry::owned;
pub use registry::profiles::{ListedProfile, Profiles};
pub use registry::srcu::Statistics;
