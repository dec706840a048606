//! The context switch: the state of counters and events whose thread does not run.

pub(crate) mod saved;
pub(crate) mod thread;
