//! Auto counter reload of a virtual processor, a facility beside its PMU: overflows load counters without an interrupt.

pub(crate) mod advance;
pub(crate) mod configuration;
pub(crate) mod msr;
pub(crate) mod virtual_reload;
