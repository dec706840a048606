//! Top-down metrics of a virtual processor, as a facility beside the PMU.
//!
//! Fixed counter 3 of the PMU counts the issue slots. The facility divides the slots into parts.

pub(crate) mod count;
pub(crate) mod mix;
pub(crate) mod msr;
pub(crate) mod virtual_top_down;
