//! What a processor records about one sampled instruction, in terms of no vendor.
//!
//! The floor holds plain data. The vendors' crates decode their registers and records into this data; the floor uses
//! no other.

pub(crate) mod access;
pub(crate) mod branch;
pub(crate) mod fetch;
pub(crate) mod sample;
pub(crate) mod tlb;
