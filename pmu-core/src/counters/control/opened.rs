//! Operations on opened events.

pub(crate) mod close;
pub(crate) mod event;
pub(crate) mod group;
pub(crate) mod guests;
pub(crate) mod status;
pub(crate) mod turns;
