//! The floor of the index, which finds the objects that an interrupt concerns without visiting the others.
//!
//! - `lookup`: from a source and a process to their group, and from an address to the objects that it hits
//! - `build`: an index from its predecessor and one change, in a number of steps that grows with its length
//! - `groups`: the groups of a source, each with its callback objects first
//! - `sweep`: the sweep over a group's ranges, which builds its `intervals` (elementary intervals of addresses) and
//!   `hit_lists` (the ranges of each interval, with structural sharing)
//! - `entry`: an object in an index
//!
//! An index dereferences nothing: it returns pointers to objects. This floor may use `object`.

pub(crate) mod build;
pub(crate) mod entry;
pub(crate) mod groups;
mod hit_lists;
mod intervals;
pub(crate) mod lookup;
mod sweep;
