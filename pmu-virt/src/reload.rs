//! Auto counter reload of a virtual processor, as a facility beside the PMU. An overflow reloads counters without an
//! interrupt.
//!
//! Uses [`precise`](crate::precise), with which it shares registers, and the modules that `precise` uses.

pub(crate) mod advance;
pub(crate) mod configuration;
pub(crate) mod msr;
pub(crate) mod virtual_reload;
