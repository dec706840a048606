//! The registers of architectural perfmon version 6 that a counter session does not use: those of auto counter reload
//! and of architectural PEBS.

use pmu_core::access::RegisterBackend;
use pmu_core::registers::UnusedRegisters;
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSet, CounterUnit};

use crate::counters::{INTEL, declared};
use crate::cpuid::ArchitecturalPerfmon;
use crate::registers::{
    IA32_PMC_FX0_CFG_B, IA32_PMC_FX0_CFG_C, IA32_PMC_FX0_CTR, IA32_PMC_GP0_CFG_B,
    IA32_PMC_GP0_CFG_C, IA32_PMC_GP0_CTR,
};

/// The distances of CFG_B and CFG_C from the counter, general or fixed.
const CFG_B: u32 = IA32_PMC_GP0_CFG_B - IA32_PMC_GP0_CTR;
const CFG_C: u32 = IA32_PMC_GP0_CFG_C - IA32_PMC_GP0_CTR;
const _: () = assert!(IA32_PMC_FX0_CFG_B - IA32_PMC_FX0_CTR == CFG_B);
const _: () = assert!(IA32_PMC_FX0_CFG_C - IA32_PMC_FX0_CTR == CFG_C);

/// Returns the registers that a counter session does not use, and the counters that have these registers. The first
/// element is CFG_B, for auto counter reload. The second element is CFG_C, for architectural PEBS. Both belong to
/// architectural perfmon version 6, and CPUID leaf 0x23 declares them.
///
/// A counter has CFG_B if sub-leaf 2 declares that the counter can be reloaded. A counter has CFG_C if sub-leaf 5
/// declares PEBS for the counter. Sub-leaf 5 is valid only if sub-leaf 4 exists. On a processor without leaf 0x23, no
/// counter has these registers.
///
/// Sources: SDM vol. 4, table 2-2, and vol. 2A, CPUID, "Input EAX = 23H". Linux assumes the same rules for CFG_B and
/// CFG_C. No test on a processor has confirmed these rules.
fn unused_registers(processor: &Snapshot) -> [UnusedRegisters; 2] {
    let version = ArchitecturalPerfmon::from_snapshot(processor).version();
    let has_leaf = processor.vendor() == INTEL && processor.leaf(7, 1).eax >> 8 & 1 != 0;
    if version < 6 || !has_leaf {
        return [UnusedRegisters::NONE; 2];
    }
    let declared = processor.leaf(0x23, 0).eax;
    let registers = |distance, bits, general: u32, fixed: u32| {
        let counters = CounterSet::from_bits(u64::from(fixed) << 32 | u64::from(general));
        let counters = if declared & bits == bits { counters } else { CounterSet::NONE };
        // SAFETY: 0 neither reloads a counter nor has it recorded.
        unsafe { UnusedRegisters::new(distance, counters) }
    };
    let (reload, record) = (processor.leaf(0x23, 2), processor.leaf(0x23, 5));
    [
        registers(CFG_B, 1 << 2, reload.eax, reload.ebx),
        registers(CFG_C, 1 << 4 | 1 << 5, record.eax, record.ecx),
    ]
}

/// Disables auto counter reload and architectural PEBS on the given counters. Firmware or the previous kernel may have
/// enabled these features. Returns the counters on which a write failed.
///
/// Do not use a counter that this function returns. The processor may still reload this counter. The processor may also
/// still write a record to memory when this counter overflows.
///
/// `processor` describes the processor that executes the call. The call writes 0 once to each register CFG_B and CFG_C
/// that the given counters have. Before version 6 of architectural perfmon, the call writes no register. The call does
/// not write `IA32_PEBS_BASE` and `IA32_PEBS_INDEX`.
///
/// Call this function before a session takes the counters. Before starting another kernel, call both
/// [`stop_all`](pmu_core::registers::stop_all) and this function.
///
/// # Context
/// Any context, while no session or other code uses these counters.
///
/// ```
/// # use pmu_core::CounterSet;
/// # use pmu_core::x86::Snapshot;
/// # use pmu_core::access::RegisterBackend;
/// fn may_be_taken(this_processor: &Snapshot, msr: &impl RegisterBackend) -> CounterSet {
///     let stays = pmu_intel::clear_stale(this_processor, CounterSet::ALL, msr);
///     CounterSet::ALL.without(stays)
/// }
/// ```
pub fn clear_stale(
    processor: &Snapshot,
    counters: CounterSet,
    msr: &impl RegisterBackend,
) -> CounterSet {
    // Those that a hypervisor hides, too: the next kernel may find them.
    let unit =
        if processor.vendor() == INTEL { declared(processor, false) } else { CounterUnit::NONE };
    let [reload, record] = unused_registers(processor);
    reload.clear(&unit, counters, msr) | record.clear(&unit, counters, msr)
}
