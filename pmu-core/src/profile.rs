//! The upper layer: Windows' profile sources, which run on the counters of the lower layer.

pub(crate) mod added;
pub mod classes;
pub(crate) mod events;
pub(crate) mod interface;
pub(crate) mod session;
pub(crate) mod source;
pub(crate) mod source_interface;

pub use added::{AddedSlot, AddedSource, AddedSources};
pub use events::Report;
pub use interface::{DefaultInterface, InterfaceError, NtStatus, ProfileInterface};
pub use session::{Overflow, Session};
pub use source::{
    Availability, KProfileSource, NotASource, ProfileSource, SourceIndex, SourceInformation,
    SourceTable,
};
pub use source_interface::{ProfileSources, SourceInterface};
