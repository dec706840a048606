//! A processor's counters, described as data by a vendor crate: each counter's registers, the global registers, and the
//! `CounterUnit` that has both.

pub(crate) mod counter;
pub(crate) mod hybrid;
pub(crate) mod layout;
pub(crate) mod unit;
pub(crate) mod unused;
pub(crate) mod x86;
