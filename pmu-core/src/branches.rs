//! Branch records: the last branches that a processor took, kept by the processor itself.
//!
//! This floor is above the counters, because [`interrupt`] collects the records in the counters' interrupt, and beside
//! the profile sources. [`recorder`] and [`switch`] are a task's side. Both sides use [`access`], the register
//! accesses, and [`memory`], to which the records are read. [`unit`] describes a processor's records as data. The
//! vocabulary is in [`record`], [`filter`] and [`kind`].

pub(crate) mod access;
pub(crate) mod error;
pub(crate) mod filter;
pub(crate) mod interrupt;
pub(crate) mod kind;
pub(crate) mod memory;
pub(crate) mod record;
pub(crate) mod recorder;
pub(crate) mod saved;
pub(crate) mod switch;
pub(crate) mod unit;
