//! Branch records: the last branches that a processor took, kept by the processor itself.
//!
//! This module is below the counters, whose samples have branches. [`unit`] describes a processor's records as data,
//! [`access`] has the register accesses that tasks and the interrupt make, [`recording`] the operations of a task.
//! [`memory`] receives the records, and [`sampled`] shows them. [`record`], [`filter`] and [`kind`] are the types of
//! the other modules.

pub(crate) mod access;
pub(crate) mod call_stack_frame;
pub(crate) mod filter;
pub(crate) mod kind;
pub(crate) mod memory;
pub(crate) mod record;
pub(crate) mod recording;
pub(crate) mod sampled;
pub(crate) mod saved;
pub(crate) mod unit;
