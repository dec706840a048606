//! Branch records: the last branches that a processor took, kept by the processor itself.
//!
//! This module uses the counters, and is independent of the profile sources. [`unit`] describes a processor's records
//! as data. [`record`], [`filter`] and [`kind`] are the types that `unit` uses.

pub(crate) mod error;
pub(crate) mod filter;
pub(crate) mod kind;
pub(crate) mod record;
pub(crate) mod unit;
