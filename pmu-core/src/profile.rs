//! The upper layer: Windows' profile sources, which run on the counters of the lower layer.

pub(crate) mod added;
pub mod classes;
pub(crate) mod counter_answer;
pub(crate) mod declared;
pub(crate) mod default_interface;
pub(crate) mod error;
pub(crate) mod information;
pub(crate) mod interface;
pub(crate) mod overflow;
pub(crate) mod session;
pub(crate) mod session_platform;
pub(crate) mod source;
pub(crate) mod source_index;
pub(crate) mod source_interface;
pub(crate) mod status;
pub(crate) mod windows_sources;
pub(crate) mod with_added_sources;
pub(crate) mod with_opened_events;
pub(crate) mod with_shared_core;

pub use added::{AddedSlot, AddedSource, AddedSources};
pub use counter_answer::CounterAnswer;
pub use default_interface::DefaultInterface;
pub use error::InterfaceError;
pub use information::{Availability, SourceInformation};
pub use interface::ProfileInterface;
pub use overflow::Overflow;
pub use session::Session;
pub use session_platform::SessionPlatform;
pub use source::{KProfileSource, NotASource, ProfileSource};
pub use source_index::{SourceIndex, SourceTable};
pub use source_interface::SourceInterface;
pub use status::NtStatus;
pub use with_added_sources::WithAddedSources;
pub use with_opened_events::{Report, WithOpenedEvents};
