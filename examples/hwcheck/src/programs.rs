//! The model against the silicon: the same seeded programs of reads and writes on both.
//!
//! Uses the [registers](crate::registers), and what is below.

pub(crate) mod comparison;
pub(crate) mod generated;
pub(crate) mod run;

pub use comparison::Comparison;
