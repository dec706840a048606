//! The registers of one virtual processor, and what follows from these registers: which counters run, what the counters
//! count, and how a feed changes the counters. The code is the same for all vendors.
//!
//! Uses [`registers`](crate::registers), [`events`](crate::events) and [`policy`](crate::policy).

pub(crate) mod advanced;
pub(crate) mod budget;
pub(crate) mod count;
pub(crate) mod next_overflow;
pub(crate) mod register_file;
pub(crate) mod state;
