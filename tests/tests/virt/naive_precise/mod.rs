//! A naive model of precise records and the branch trace store, and random programs with the same result on both. It
//! keeps whole registers in a map by their addresses, puts each field of a record at the offset that the manual's table
//! has, and stores and loads memory byte by byte: SDM vol. 3B, "Processor Event Based Sampling (PEBS)", "Architectural
//! PEBS" and "Branch Trace Store (BTS)".
//!
//! Shared with the fuzz target, which feeds the same programs from its input.

mod counting;
pub(crate) mod fed;
mod layout;
pub(crate) mod memory;
pub(crate) mod program;
mod recording;
pub(crate) mod registers;
