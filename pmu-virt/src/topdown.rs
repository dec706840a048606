//! Top-down metrics of a virtual processor, a facility beside its PMU.
//!
//! The slots' counter is fixed counter 3 of the PMU. The facility has the shares of the slots.

pub(crate) mod count;
pub(crate) mod mix;
pub(crate) mod msr;
pub(crate) mod virtual_top_down;
