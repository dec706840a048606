//! Events: as the caller asks for them, as a processor counts them, and as a context switch saves them.

pub(crate) mod attributes;
pub(crate) mod count;
pub(crate) mod event;
pub(crate) mod list;
pub(crate) mod resolve;
pub(crate) mod saved;
pub(crate) mod software;
pub(crate) mod thread;
pub(crate) mod user_view;
