//! A processor's record of one sampled instruction, in vendor-neutral terms.
//!
//! The floor holds plain data. The vendors' crates decode their registers and records into this data. The floor uses no
//! other floor.

pub(crate) mod access;
pub(crate) mod branch;
pub(crate) mod fetch;
pub(crate) mod sample;
pub(crate) mod tlb;
