//! The processor's registers: what may be written, by the user's agreement; the one function that writes; the journal
//! of what was written, and putting it back.
//!
//! Uses the [machine](crate::machine), and what is below.

pub(crate) mod access;
pub mod agreed;
pub mod driver;
pub mod journal;
pub mod restore;
pub mod stop;

pub use access::{Registers, WriteError, read};
