//! The upper layer: Windows' profile sources, which run on the counters of the lower layer.

pub(crate) mod added;
pub mod classes;
pub(crate) mod error;
pub(crate) mod event_source;
pub(crate) mod events;
pub(crate) mod interface;
pub(crate) mod session;
pub(crate) mod source;

pub use added::{AddedSlot, AddedSource, AddedSources, Overflow};
pub use error::{InterfaceError, NtStatus};
pub use events::DefaultInterface;
pub use interface::ProfileSources;
pub use session::Session;
pub use source::{
    Availability, KProfileSource, NotASource, ProfileSource, SourceIndex, SourceInformation,
    SourceTable,
};
