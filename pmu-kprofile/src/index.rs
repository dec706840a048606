//! The index, which finds the objects that an interrupt concerns without visiting the others.
//!
//! - `lookup`: finds the group of a source and a process, and the objects whose ranges contain an address
//! - `build`: builds an index from the previous index and one change, in linear time
//! - `groups`: the groups of a source, each with its callback objects first
//! - `sweep`: the sweep over a group's ranges, which builds its `intervals` (elementary intervals of addresses) and
//!   `hit_lists` (the ranges of each interval, with structural sharing)
//! - `entry`: an object in an index
//!
//! An index dereferences nothing: it returns pointers to objects. This module may use `object`.

pub(crate) mod build;
pub(crate) mod entry;
pub(crate) mod groups;
mod hit_lists;
mod intervals;
pub(crate) mod lookup;
mod sweep;
