//! The registers of each vendor's PMU as data: the manual's tables, the rules of their rows, and the registers and bits
//! that a configuration has.
//!
//! Uses [`configuration`](crate::configuration).

pub(crate) mod counters;
pub(crate) mod family;
pub(crate) mod layout;
pub(crate) mod list;
pub(crate) mod resolve;
pub(crate) mod row;
pub(crate) mod table;
pub(crate) mod vendors;
