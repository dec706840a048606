//! Memory that the control path and the interrupt path share, lent by the embedder.

pub(crate) mod core_counters;
pub(crate) mod entry;
pub(crate) mod extra_registers;
pub(crate) mod memory;
pub(crate) mod owner;
pub(crate) mod period;
pub(crate) mod rate;
pub(crate) mod remote_count;
pub(crate) mod serving;
pub(crate) mod slot;
pub(crate) mod software;
pub(crate) mod table;
