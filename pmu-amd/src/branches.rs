//! Branch records: version 2 of the last-branch stack (from Zen 4 on), and Zen 3's branch sampling.
//!
//! Read first: AMD APM vol. 2, "Last Branch Stack Registers"; CPUID 0x80000022.

pub(crate) mod sampling;
pub(crate) mod stack;

use pmu_core::branches::BranchUnit;
use pmu_core::error::NoFacility;
use pmu_core::x86::Snapshot;

use crate::counters::AMD;

/// Detects the branch records of an AMD processor: version 2 of the last-branch stack (from Zen 4 on), or branch
/// sampling (Zen 3).
///
/// The call reads only the CPUID leaves in `processor`. Processors before Zen 3 have only a single branch record, which
/// this crate does not support.
///
/// Zen 3's branch sampling records branches only for the samples of the event of
/// [`branch_sampling_event`](crate::branch_sampling_event). When this event's counter overflows, the processor
/// [delays the interrupt](BranchUnit::holds_interrupt) until 16 branches have been taken.
///
/// ```
/// # use pmu_core::x86::Snapshot;
/// # use pmu_core::error::NoFacility;
/// fn report(this_processor: &Snapshot) -> Result<(), NoFacility> {
///     let unit = pmu_amd::branches(this_processor)?;
///     println!("{} branch records, freezing: {}", unit.depth(), unit.can_freeze());
///     Ok(())
/// }
/// ```
///
/// # Errors
/// Returns the reason why the processor has no branch records that this crate supports.
pub fn branches(processor: &Snapshot) -> Result<BranchUnit, NoFacility> {
    if processor.vendor() != AMD {
        return Err(NoFacility::OtherVendor(processor.vendor()));
    }
    let unit = stack::unit(processor).or_else(|| sampling::unit(processor));
    unit.ok_or(NoFacility::NotDeclared)?
}

/// Returns the number of bits of a virtual address: CPUID 0x80000008, EAX 15:8 (APM vol. 3, appendix E).
pub(crate) fn address_bits(processor: &Snapshot) -> u8 {
    match (processor.leaf(0x8000_0008, 0).eax >> 8) as u8 {
        bits @ 32..=57 => bits,
        _ => 48,
    }
}

/// Returns an address of so many bits, with the sign above them.
pub(crate) const fn extended(word: u64, bits: u8) -> u64 {
    let above = 64 - bits as u32;
    ((word << above) as i64 >> above) as u64
}
