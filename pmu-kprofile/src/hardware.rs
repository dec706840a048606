//! The floor of hardware: the profile sources of all processors, started and stopped.
//!
//! - `profile_hardware`: the trait by which objects and lists use it
//! - `this_processor`: a machine with one processor
//! - `remote`: several processors, by requests through a `mailbox`, which has a `slot` per processor and reaches them
//!   by the trait `processors`
//! - `as_of_version`: any of these, restricted to the sources of a given Windows
//! - `interval`: a guard that holds a source's interval
//!
//! No other floor starts or stops a source. This floor may use `affinity` and `sync`.

pub(crate) mod as_of_version;
pub(crate) mod interval;
pub(crate) mod mailbox;
pub(crate) mod processors;
pub(crate) mod profile_hardware;
pub(crate) mod remote;
pub(crate) mod request;
mod slot;
pub(crate) mod this_processor;
