//! Memory that the control path and the interrupt path share, lent by the embedder.

pub(crate) mod core_counters;
pub(crate) mod entry;
pub(crate) mod extra;
pub(crate) mod extra_registers;
pub(crate) mod membership;
pub(crate) mod memory;
pub(crate) mod period;
pub(crate) mod remote_count;
pub(crate) mod saved_period;
pub(crate) mod slot;
pub(crate) mod table;
pub(crate) mod waiting;
