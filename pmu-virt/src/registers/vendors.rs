//! The vendors' tables of registers. A table uses the rows' rules, and no other vendor's.

pub(crate) mod amd;
pub(crate) mod intel;
