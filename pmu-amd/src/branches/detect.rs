//! Detection of a processor's branch records.

use pmu_core::branches::BranchUnit;
use pmu_core::{NoFacility, Snapshot};

use crate::branches::{sampling, stack};
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
/// # use pmu_core::{NoFacility, Snapshot};
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
