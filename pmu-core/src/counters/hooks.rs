//! Traits that the layers above implement, and that both paths call.

pub(crate) mod event_source;
pub(crate) mod opened_events;
