//! Auto counter reload of architectural perfmon version 6.

use pmu_core::CounterSet;
use pmu_core::reload::CounterReload;
use pmu_core::x86::Snapshot;

use crate::counters::INTEL;
use crate::cpuid::ArchitecturalPerfmon;
use crate::registers::{IA32_PMC_GP0_CFG_B, IA32_PMC_GP0_CFG_C, IA32_PMC_GP0_CTR};

/// Returns the auto-counter-reload registers of the processor that `processor` describes, for
/// [`AutoCounterReload`](pmu_core::reload::AutoCounterReload). Returns `None` if the processor lacks these registers.
/// On a hybrid machine, P-cores and E-cores can have different results.
///
/// Each counter that can be reloaded has the registers CFG_B and CFG_C. CFG_B is a bitmap of counters: when one of
/// these counters overflows, the processor reloads the counter to which this CFG_B belongs. Bits 31:0 of CFG_C are the
/// reload value. CPUID leaf 0x23, sub-leaf 2, declares the counters that can be reloaded.
///
/// ```
/// # use pmu_core::{CounterUnit, Events};
/// # use pmu_core::memory::EventTable;
/// # use pmu_core::reload::{AutoCounterReload, CounterReload, ReloadMemory};
/// static RELOADS: ReloadMemory = ReloadMemory::new(); // one per processor
/// /// The source of a processor's events; `reload` is what `counter_reload` returned there.
/// fn source<'a>(
///     (unit, events): (&'a CounterUnit, &'a EventTable),
///     reload: Option<&'a CounterReload>,
/// ) -> Events<'a, CounterUnit, Option<AutoCounterReload<'a>>> {
///     Events::new(unit, events).with(reload.map(|reload| AutoCounterReload::new(reload, &RELOADS)))
/// }
/// # let _ = source;
/// ```
///
/// Sources: SDM vol. 4, table 2-2, and vol. 2A, CPUID, "Input EAX = 23H".
pub fn counter_reload(processor: &Snapshot) -> Option<CounterReload> {
    let version = ArchitecturalPerfmon::from_snapshot(processor).version();
    let has_leaf = processor.vendor() == INTEL && processor.leaf(7, 1).eax >> 8 & 1 != 0;
    if version < 6 || !has_leaf || processor.leaf(0x23, 0).eax >> 2 & 1 == 0 {
        return None;
    }
    let leaf = processor.leaf(0x23, 2);
    let set = |general: u32, fixed: u32| {
        CounterSet::from_bits(u64::from(fixed) << 32 | u64::from(general))
    };
    let (reloaded, causing) = (set(leaf.eax, leaf.ebx), set(leaf.ecx, leaf.edx));
    if reloaded.is_empty() || causing.is_empty() {
        return None;
    }
    let distance = |register: u32| register - IA32_PMC_GP0_CTR;
    let (causes, value) = (distance(IA32_PMC_GP0_CFG_B), distance(IA32_PMC_GP0_CFG_C));
    // SAFETY: CFG_B is a bitmap of counters, and bits 31:0 of CFG_C are a counter's value. The bits of CFG_C that make
    // the processor write records are above these.
    Some(unsafe { CounterReload::new(causes, value, reloaded, causing) })
}
