//! The vendors' tables of registers. The table of one vendor does not use the table of the other vendor.

pub(crate) mod amd;
pub(crate) mod intel;
