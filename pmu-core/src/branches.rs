//! Branch records: the last branches that a processor took, kept by the processor itself.
//!
//! The floor is above the counters and beside the profile sources. [`unit`] describes a processor's records as data;
//! below it is the vocabulary: [`record`], [`filter`], [`kind`].

pub(crate) mod filter;
pub(crate) mod kind;
pub(crate) mod record;
pub(crate) mod unit;
