//! Events as they are asked for, as a processor counts them, and as they are saved.

pub(crate) mod count;
pub(crate) mod event;
pub(crate) mod extra;
pub(crate) mod membership;
pub(crate) mod period;
pub(crate) mod resolve;
pub(crate) mod saved;
pub(crate) mod thread_event;
pub(crate) mod unplaced;
