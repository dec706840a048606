//! The registers of one virtual processor and what follows from them: which counters run, what they count, and what a
//! feed makes of them. It knows no vendor.
//!
//! Uses [`registers`](crate::registers), [`events`](crate::events) and [`policy`](crate::policy).

pub(crate) mod advanced;
pub(crate) mod budget;
pub(crate) mod count;
pub(crate) mod next_overflow;
pub(crate) mod register_file;
pub(crate) mod state;
