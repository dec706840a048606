//! The record of one sampled instruction.

use crate::precise::access::DataAccess;
use crate::precise::branch::BranchOutcome;
use crate::precise::fetch::InstructionFetch;

/// The processor's record of one sampled instruction.
///
/// AMD's instruction-based sampling and Intel's precise event-based sampling both tag one instruction and record what
/// happens to the instruction. A field is `None` if the processor did not record the field's value, or declared the
/// value invalid.
///
/// In the default value, all fields are `None`.
///
/// ```
/// use pmu_core::precise::{DataSource, PreciseSample};
/// /// Returns the instruction, the source and the latency of a load, if the processor recorded all three.
/// fn slow_load(sample: &PreciseSample) -> Option<(u64, DataSource, u16)> {
///     let access = sample.access?;
///     Some((sample.address?, access.source?, access.latency?))
/// }
/// assert_eq!(slow_load(&PreciseSample::default()), None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PreciseSample {
    /// Linear address of the sampled instruction, or of the sampled fetch. If the address is `None`, use the RIP of the
    /// interrupt frame. This RIP is some instructions after the sampled instruction.
    pub address: Option<u64>,
    /// Outcome of the instruction, if it is a branch.
    pub branch: Option<BranchOutcome>,
    /// The instruction's access to memory.
    pub access: Option<DataAccess>,
    /// The instruction's fetch.
    pub fetch: Option<InstructionFetch>,
    /// Number of cycles from the tagging of the instruction to its retirement.
    pub latency: Option<u16>,
    /// Number of cycles from the completion of the instruction to its retirement.
    pub retire_latency: Option<u16>,
}
