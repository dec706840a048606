//! The registers of each vendor's PMU as data: tables from the manuals, rules that say which processors have a
//! register of a table, and the registers and bits of a configuration.
//!
//! Uses [`configuration`](crate::configuration).

pub(crate) mod amd;
pub(crate) mod intel;
pub(crate) mod layout;
pub(crate) mod table;

pub use layout::{RegisterInfo, RegisterKind};
