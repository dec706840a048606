//! The index, which finds the objects that an interrupt concerns without visiting the others.
//!
//! - `lookup`: finds the group of a source and a process, and the objects whose ranges contain an address
//! - `build`: builds an index from the previous index and one change, in linear time, by a sweep over a group's ranges
//! - `intervals`: elementary intervals of addresses, and the ranges of each, with structural sharing
//!
//! An index dereferences nothing: it returns pointers to objects. This module may use `object`.

pub(crate) mod build;
mod intervals;
pub(crate) mod lookup;
