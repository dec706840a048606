//! Events of the uncore units, as data. The rest of this crate is about counters of cores.
//!
//! Uses names (`name`) and the form of core types (`format`).

pub(crate) mod event;
pub(crate) mod list;
pub(crate) mod lists;

pub use event::UncoreEvent;
pub use list::Uncore;
