//! The events that trace records describe. The type of each event has the members of the event's record.
//!
//! Each event has a file of its own in this folder, and a line in `table`. This module may use `bytes`, `header` and
//! `error`.

pub(crate) mod context_switch;
pub(crate) mod counter_names;
pub(crate) mod sample;
pub(crate) mod sample_cache;
pub(crate) mod source_interval;
pub(crate) mod stack_walk;
pub(crate) mod table;

pub use context_switch::*;
pub use counter_names::*;
pub use sample::*;
pub use sample_cache::*;
pub use source_interval::*;
pub use stack_walk::*;
pub use table::*;
