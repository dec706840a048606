//! The registry: the lists of started profiles, their readers and their writer.
//!
//! - `dispatch`: the interrupt path; begin here
//! - `control`: the operations of a task that never wait; `owned`: these operations for objects that a handle keeps
//!   alive, and as a service; `blocking` (a feature): the operations that wait, and `scope`
//! - `listing`: the started objects, by value
//! - `write`: the write guard, which starts and stops objects, and the hardware for them; `processors`: starts and
//!   stops the hardware as processors come and go; `write_lock`: the exclusive right to change the lists
//! - `guard`: the read guard, and the lists as a guard's holder reads them, with the proof that a started object lives
//! - `profiles`: the lists, their readers and their writer, as one value
//! - `writer_state`: the last change of the lists; `srcu`: read locks, grace periods, and the statistics of interrupts
//! - `error`: the error of starting and stopping
//!
//! The lists are a double-buffered snapshot of an index, read under SRCU. A dispatch takes a read guard, loads which
//! snapshot is current, and reads this snapshot. A writer holds the write guard, fills the other snapshot, which a
//! grace period has freed, and makes it current. This module may use `index`, `object`, `hardware`, `affinity` and
//! `sync`.

#[cfg(feature = "critical-section")]
mod blocking;
pub(crate) mod control;
pub(crate) mod dispatch;
pub(crate) mod error;
mod guard;
pub(crate) mod listing;
pub mod owned;
mod processors;
pub(crate) mod profiles;
pub(crate) mod srcu;
mod write;
mod write_lock;
mod writer_state;
