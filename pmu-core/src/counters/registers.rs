//! A processor's counters as data, by its vendor: one counter's registers, those of all, and the unit of them.

pub(crate) mod banks;
pub(crate) mod counter;
pub(crate) mod global;
pub(crate) mod hybrid;
pub(crate) mod precise;
pub(crate) mod register_bits;
pub(crate) mod select;
pub(crate) mod unit;
pub(crate) mod unused;
