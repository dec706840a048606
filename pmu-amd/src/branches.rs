//! Branch records: version 2 of the last-branch stack (from Zen 4 on), and Zen 3's branch sampling.
//!
//! Read first: AMD APM vol. 2, "Last Branch Stack Registers"; CPUID 0x80000022.

pub(crate) mod address;
pub(crate) mod detect;
pub(crate) mod sampling;
pub(crate) mod stack;
