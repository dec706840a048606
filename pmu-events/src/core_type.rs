//! Core types: the events of each, found by name, by pattern and by encoding.
//!
//! Uses [events](crate::event), and what is below them.

pub(crate) mod constraints;
pub(crate) mod error;
pub(crate) mod lookup;
pub(crate) mod search;
