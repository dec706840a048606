//! The upper layer: Windows' profile sources, as rules of choice over the counters' events.

pub(crate) mod added;
pub mod classes;
pub(crate) mod error;
pub(crate) mod interface;
pub(crate) mod interval;
pub(crate) mod session;
pub(crate) mod source;
pub(crate) mod source_index;
pub(crate) mod status;
pub(crate) mod windows;
pub(crate) mod with_events;
pub(crate) mod with_sources;
