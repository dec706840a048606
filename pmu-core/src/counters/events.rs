//! Events: as the caller asks for them, as a processor counts them, and as a context switch saves them.

pub(crate) mod branches;
pub(crate) mod count;
pub(crate) mod event;
pub(crate) mod extra;
pub(crate) mod membership;
pub(crate) mod part;
pub(crate) mod period;
pub(crate) mod precise;
pub(crate) mod reload;
pub(crate) mod resolve;
pub(crate) mod saved;
pub(crate) mod substitute;
pub(crate) mod thread_event;
pub(crate) mod unplaced;
pub(crate) mod user_view;
