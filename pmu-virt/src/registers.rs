//! The registers of each vendor's PMU as data: the tables of the manuals, the rules by which a processor has a register
//! of a table, and the registers and bits that a configuration has.
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
