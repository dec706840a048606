//! Branch records: the last branches that a processor took, kept by the processor itself.
//!
//! This module uses the counters, because [`interrupt`] collects the records in the counters' interrupt. The module is
//! independent of the profile sources. [`recorder`], [`switch`], [`switch_area`] and [`lend`] are the operations of
//! tasks. Tasks and the interrupt use [`access`], the register accesses, and [`memory`], which receives the records.
//! [`unit`] describes a processor's records as data. [`record`], [`filter`] and [`kind`] are the types of the other
//! modules.

pub(crate) mod access;
pub(crate) mod area;
pub(crate) mod call_stack_frame;
pub(crate) mod error;
pub(crate) mod filter;
pub(crate) mod interrupt;
pub(crate) mod kind;
pub(crate) mod lend;
pub(crate) mod memory;
pub(crate) mod record;
pub(crate) mod recorder;
pub(crate) mod saved;
pub(crate) mod switch;
pub(crate) mod switch_area;
pub(crate) mod unit;
