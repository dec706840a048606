#![doc = include_str!("../README.md")]
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(test)]
extern crate std;

#[cfg(feature = "alloc")]
extern crate alloc;

mod affinity;
pub mod compat;
#[cfg(all(test, loom))]
mod loom_models;
mod object;
mod registry;
mod sync;
#[cfg(any(test, feature = "testing"))]
#[cfg_attr(docsrs, doc(cfg(feature = "testing")))]
pub mod testing;
pub mod trace;

pub use affinity::{Affinity, MAX_GROUPS};
pub use hardware::profile_hardware::ProfileHardware;
pub use object::CreateError;
pub use object::profile_object::{BasicProfile, ProfileCallback, ProfileObject};
pub use object::{bucket, service};
pub use pmu_core::windows::{PointerWidth, Rules, WindowsVersion};
pub use registry::control::{ProfileError, Stopping};
pub use registry::dispatch::DispatchOutcome;
pub use registry::owned;
pub use registry::profiles::{ListedProfile, Profiles};
pub use registry::srcu::Statistics;

/// Hardware: the profile sources of all processors, started and stopped.
///
/// - `profile_hardware`: [`ProfileHardware`], by which objects and lists use the hardware; and
///   its implementations for one processor, and for the sources of one Windows version
/// - `mailbox`: several processors, by requests through a mailbox that has a `slot` per processor
///
/// No other module starts or stops a source. This module may use `affinity` and `sync`.
pub mod hardware {
    pub(crate) mod mailbox;
    pub(crate) mod profile_hardware;
    mod slot;

    pub use mailbox::{Mailbox, Remote, RemoteProcessors, SourceRequest};
    pub use profile_hardware::{AsOfVersion, IntervalGuard, ThisProcessor};
}

/// The index, which finds the objects that an interrupt concerns without visiting the others.
///
/// - `lookup`: finds the group of a source and a process, and the objects whose ranges contain an address
/// - `build`: builds an index from the previous index and one change, in linear time, by a sweep over a group's ranges
/// - `intervals`: elementary intervals of addresses, and the ranges of each, with structural sharing
///
/// An index dereferences nothing: it returns pointers to objects. This module may use `object`.
mod index {
    pub(crate) mod build;
    mod intervals;
    pub(crate) mod lookup;
}
