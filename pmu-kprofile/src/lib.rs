#![doc = include_str!("../README.md")]
#![no_std]

#[cfg(test)]
extern crate std;

mod affinity;
pub mod bucket;
mod error;
mod hardware;
mod index;
pub mod layout;
mod object;
mod profiles;
mod readers;
mod source_list;
mod sync;
pub mod trace;
mod version;
pub mod walk;

pub use affinity::{Affinity, MAX_GROUPS};
pub use error::{CreateError, ProfileError};
pub use hardware::{AsOfVersion, ProfileHardware, ThisProcessor};
pub use object::{BasicProfile, ProfileCallback, ProfileObject};
pub use profiles::{DispatchOutcome, Profiles};
pub use readers::Statistics;
pub use source_list::{
    SOURCE_LIST_CLASS, SourceListEntry, SourceListError, read_source_list, write_source_list,
};
pub use version::{HalInterface, PointerWidth, Rules, WindowsVersion};
