//! The registry: the lists of started profiles, their readers and their writer.
//!
//! - `dispatch`: the interrupt path, and the read guard, with the proof that a started object lives; begin here
//! - `profiles`: the lists, their readers and their writer, as one value; the started objects by value
//! - `control`: the operations of a task that never wait; `owned`: these operations for objects that a handle keeps
//!   alive, and as a service; `blocking` (a feature): the operations that wait, and `scope`
//! - `write`: the write lock, and the write guard, which starts and stops objects, and the hardware for them
//! - `srcu`: read locks, grace periods, and the statistics of interrupts
//!
//! The lists are a double-buffered snapshot of an index, read under SRCU. A dispatch takes a read guard, loads which
//! snapshot is current, and reads this snapshot. A writer holds the write guard, fills the other snapshot, which a
//! grace period has freed, and makes it current. This module may use `index`, `object`, `hardware`, `affinity` and
//! `sync`.

#[cfg(feature = "critical-section")]
mod blocking;
pub(crate) mod control;
pub(crate) mod dispatch;
pub mod owned;
pub(crate) mod profiles;
pub(crate) mod srcu;
mod write;
