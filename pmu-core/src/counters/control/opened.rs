//! Operations on opened events.

pub(crate) mod event;
pub(crate) mod group;
pub(crate) mod guests;
pub(crate) mod turns;
pub(crate) mod user_view;
