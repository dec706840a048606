//! Descriptions of the registers that a configuration has: see
//! [`Configuration::registers`](crate::configuration::Configuration::registers).

// Tables from the manuals of each vendor, rules that say which processors have a register of a table, and the registers
// and bits of a configuration.

pub(crate) mod amd;
pub(crate) mod intel;
pub(crate) mod layout;
pub(crate) mod table;

pub use layout::{RegisterInfo, RegisterKind};
