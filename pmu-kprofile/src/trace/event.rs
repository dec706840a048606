//! The events that trace records describe. The type of each event has the members of the event's record.
//!
//! Each event has a line in `table`. This module may use `record` and `error`.

pub(crate) mod records;
pub(crate) mod sample;
pub(crate) mod table;

pub use records::*;
pub use sample::*;
pub use table::*;
