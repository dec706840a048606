//! A sampled instruction fetch.

use crate::precise::tlb::{PageSize, Translation};

/// A fetch of instruction bytes that was sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct InstructionFetch {
    /// The fetched bytes reached the decoder. A fetch that did not complete was abandoned, for example after a branch
    /// misprediction.
    pub completed: bool,
    /// Physical address of the fetch. A kernel gives physical addresses to privileged readers only, because they reveal
    /// the layout of memory.
    pub physical_address: Option<u64>,
    /// Number of cycles from the start of the fetch to its completion or abandonment.
    pub latency: Option<u16>,
    /// The fetch missed the first-level instruction cache.
    pub cache_miss: Option<bool>,
    /// The fetch missed the second-level cache.
    pub l2_miss: Option<bool>,
    /// The fetch missed the third-level cache.
    pub l3_miss: Option<bool>,
    /// The fetch missed the cache of decoded instructions.
    pub op_cache_miss: Option<bool>,
    /// Source of the address's translation.
    pub translation: Option<Translation>,
    /// Size of the page in the first-level TLB's entry.
    pub page: Option<PageSize>,
    /// Number of cycles that a refill of the TLB took.
    pub tlb_latency: Option<u16>,
}
