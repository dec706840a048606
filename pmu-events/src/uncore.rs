//! Events of the uncore units, as data: this crate's other floors are about counters of cores.
//!
//! Uses [names](crate::name) and [the form of core types](crate::format).

pub(crate) mod event;
pub(crate) mod list;
pub(crate) mod lists;
