//! Operations on opened events.

pub(crate) mod apply_period;
pub(crate) mod enable;
pub(crate) mod event;
pub(crate) mod group;
pub(crate) mod guest_control;
pub(crate) mod guests;
pub(crate) mod inherit;
pub(crate) mod status;
pub(crate) mod turns;
pub(crate) mod user_view;
