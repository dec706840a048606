//! The upper layer: Windows' profile sources, which run on the counters of the lower layer.

pub(crate) mod added;
pub mod classes;
pub(crate) mod interface;
pub(crate) mod session;
pub(crate) mod source;
pub(crate) mod source_interface;
pub(crate) mod with_opened_events;

pub use added::{AddedSlot, AddedSource, AddedSources, WithAddedSources};
pub use interface::{DefaultInterface, InterfaceError, NtStatus, ProfileInterface};
pub use session::{Overflow, Session, SessionPlatform};
pub use source::{
    Availability, KProfileSource, NotASource, ProfileSource, SourceIndex, SourceInformation,
    SourceTable,
};
pub use source_interface::{CounterAnswer, SourceInterface};
pub use with_opened_events::{Report, WithOpenedEvents};
