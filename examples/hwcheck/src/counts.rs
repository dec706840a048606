//! Counts, on counters that the project's own counter layer opened: of code whose numbers are known by hand, and of the
//! sources of the documents' tables.
//!
//! Uses the [registers](crate::registers), and what is below.

pub(crate) mod all;
pub(crate) mod bench;
pub(crate) mod exact;
pub mod sources;

pub use all::counts;
