//! The registers of one virtual processor, and the effects of these registers: the running counters, the counters'
//! events, and the changes that a feed makes to the counters. The code is the same for all vendors.
//!
//! Uses [`registers`](crate::registers), [`events`](crate::events) and [`policy`](crate::policy).

pub(crate) mod advanced;
pub(crate) mod budget;
pub(crate) mod count;
pub(crate) mod next_overflow;
pub(crate) mod register_file;
pub(crate) mod state;
