//! A processor's counters, described as data by a vendor crate: each counter's registers, the global registers, and the
//! `CounterUnit` that has both.

pub(crate) mod banks;
pub(crate) mod counter;
pub(crate) mod global;
pub(crate) mod hybrid;
pub(crate) mod precise;
pub(crate) mod select;
pub(crate) mod slots;
pub(crate) mod unit;
pub(crate) mod unused;
