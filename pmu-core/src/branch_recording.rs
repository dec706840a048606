//! Owners of the branch records: the events of a session, and a recorder.
//!
//! [`events`] settles the records on what the running events ask for, and [`interrupt`] collects them in the counters'
//! interrupt; [`idle`] stops a sampling that delays interrupts. [`recorder`], [`switch`], [`switch_area`] and [`lend`]
//! are the recorder's: the last branches without any counter, and call stacks, which the kernel keeps for each thread.

pub(crate) mod area;
pub(crate) mod error;
pub(crate) mod events;
pub(crate) mod idle;
pub(crate) mod interrupt;
pub(crate) mod lend;
pub(crate) mod recorder;
pub(crate) mod switch;
pub(crate) mod switch_area;
