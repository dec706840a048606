//! The window in which a session's counters are lent, to a guest for instance.

pub(crate) mod enabled_time;
pub(crate) mod error;
pub(crate) mod lend;
pub(crate) mod lent_counters;
pub(crate) mod restore;
pub(crate) mod suspend;
