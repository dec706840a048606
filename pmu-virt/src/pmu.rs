//! The PMU of one virtual processor, with the operations for an embedder: accesses, events, interrupt and state.
//!
//! Uses [`model`](crate::model) and the modules that `model` uses.

pub(crate) mod advance;
pub(crate) mod facility;
pub(crate) mod msr;
pub(crate) mod rows;
pub(crate) mod state;
pub(crate) mod virtual_pmu;
