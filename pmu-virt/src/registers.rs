//! The registers of each vendor's PMU as data: tables from the manuals, rules that tell which processors have a
//! register of a table, and the registers and bits of a configuration.
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
