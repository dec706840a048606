//! Operations on opened events.

pub(crate) mod close;
pub(crate) mod guests;
pub(crate) mod open;
pub(crate) mod period;
pub(crate) mod read;
pub(crate) mod start;
pub(crate) mod status;
pub(crate) mod turns;
