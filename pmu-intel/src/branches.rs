//! Branch records: architectural last-branch records, and the legacy stacks of earlier processors.
//!
//! Read first: Intel SDM vol. 3B, "Last Branch Records" and "Last Branch, Interrupt, and Exception Recording
//! Overview"; vol. 4, table 2-2.

pub(crate) mod architectural;
pub(crate) mod legacy;

use pmu_core::access::{RegisterAccess, RegisterBackend, RegisterUpdate};
use pmu_core::branches::BranchUnit;
use pmu_core::error::NoFacility;
use pmu_core::x86::Snapshot;

use crate::counters::INTEL;
use crate::registers::{IA32_PERF_CAPABILITIES, LBR_FORMAT};

/// Detects the last branch records (LBR) of the Intel processor that executes the call. The records are architectural
/// LBRs (CPUID leaf 0x1C), or the legacy LBR stack of an earlier processor.
///
/// CPUID describes architectural LBRs. `IA32_PERF_CAPABILITIES` gives the format of the records in a legacy stack. The
/// processor's model determines the depth and the registers of a legacy stack.
///
/// The crate supports the legacy stacks from Core 2 on, but not the stacks of Yonah and Pentium 4. On Bonnell, the
/// crate supports the stack from stepping 10 on: earlier steppings cannot freeze the stack.
///
/// ```
/// # use pmu_core::x86::Snapshot;
/// # use pmu_core::branches::BranchUnit;
/// # use pmu_core::error::NoFacility;
/// # use pmu_core::access::RegisterBackend;
/// fn report<M: RegisterBackend>(this_processor: &Snapshot, msr: &M) -> Result<BranchUnit, NoFacility> {
///     let unit = pmu_intel::branches(this_processor, msr)?;
///     println!("{} branch records, call stack: {}", unit.depth(), unit.offers().call_stack);
///     Ok(unit)
/// }
/// ```
///
/// # Context
/// Task.
///
/// # Errors
/// Returns the reason why the processor has no branch records that this crate supports.
pub fn branches<M: RegisterBackend>(
    processor: &Snapshot,
    msr: &M,
) -> Result<BranchUnit, NoFacility> {
    if processor.vendor() != INTEL {
        return Err(NoFacility::OtherVendor(processor.vendor()));
    }
    if let Some(unit) = architectural::unit(processor)? {
        return Ok(unit);
    }
    // SDM vol. 2A, CPUID leaf 1, ECX bit 15, PDCM: there is IA32_PERF_CAPABILITIES.
    if processor.leaf(1, 0).ecx >> 15 & 1 == 0 {
        return Err(NoFacility::NotDeclared);
    }
    let capabilities = msr.update_retrying(RegisterUpdate::read(IA32_PERF_CAPABILITIES));
    let format = capabilities.map_err(NoFacility::Access)? & LBR_FORMAT;
    legacy::unit(processor, format as u8)
}
