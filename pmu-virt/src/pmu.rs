//! The PMU of one virtual processor, with the operations for an embedder: accesses, events, interrupt and state.
//!
//! Uses [`model`](crate::model) and the modules that `model` uses.

pub(crate) mod access;
pub(crate) mod advance;
pub(crate) mod facility;
pub(crate) mod judge;
pub(crate) mod load_number;
pub(crate) mod msr;
pub(crate) mod next_overflow;
pub(crate) mod pmi;
pub(crate) mod rdpmc;
pub(crate) mod rows;
pub(crate) mod running;
pub(crate) mod state;
pub(crate) mod state_error;
pub(crate) mod virtual_pmu;
