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
