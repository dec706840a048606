//! A sampled instruction fetch.

use crate::precise::tlb::{PageSize, Translation};

/// A sampled fetch of instruction bytes.
///
/// ```
/// use pmu_core::precise::{InstructionFetch, PreciseSample};
/// /// Returns the address of code that was fetched from beyond the second-level cache.
/// fn cold_code(sample: &PreciseSample) -> Option<u64> {
///     let fetch = sample.fetch?;
///     (fetch.completed && fetch.l2_miss?).then_some(sample.address?)
/// }
/// let fetch = InstructionFetch { completed: true, l2_miss: Some(true), ..InstructionFetch::default() };
/// let sample = PreciseSample { address: Some(0x40_1000), fetch: Some(fetch), ..PreciseSample::default() };
/// assert_eq!(cold_code(&sample), Some(0x40_1000));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct InstructionFetch {
    /// The fetched bytes reached the decoder. A fetch that did not complete was abandoned, for example after a branch
    /// misprediction.
    pub completed: bool,
    /// Physical address of the fetch. A kernel gives physical addresses to privileged readers only, because these
    /// addresses reveal the layout of memory.
    pub physical_address: Option<u64>,
    /// Number of cycles from the start of the fetch to its completion or abandonment.
    pub latency: Option<u16>,
    /// The fetch missed the first-level instruction cache.
    pub cache_miss: Option<bool>,
    /// The fetch missed the second-level cache.
    pub l2_miss: Option<bool>,
    /// The fetch missed the third-level cache.
    pub l3_miss: Option<bool>,
    /// The fetch missed the op cache, which holds decoded instructions.
    pub op_cache_miss: Option<bool>,
    /// The TLB or page walk that translated the linear address of the fetch.
    pub translation: Option<Translation>,
    /// Size of the page from which the bytes were fetched, as recorded in the first-level TLB.
    pub page: Option<PageSize>,
    /// Number of cycles that a refill of the TLB took.
    pub tlb_latency: Option<u16>,
}
