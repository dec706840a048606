//! Events asked for, and what they come to on a processor.

pub(crate) mod count;
pub(crate) mod event;
pub(crate) mod extra;
pub(crate) mod membership;
pub(crate) mod period;
pub(crate) mod resolve;
pub(crate) mod saved;
pub(crate) mod thread_event;
