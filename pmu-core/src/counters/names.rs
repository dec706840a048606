//! Identities of counters, events and groups.

pub(crate) mod counter_id;
pub(crate) mod event_id;
pub(crate) mod generic_event;
pub(crate) mod group_id;
