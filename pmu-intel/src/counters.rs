//! The general counters of architectural performance monitoring, as CPUID declares them.

use pmu_core::{
    CounterBank, CounterUnit, Freeze, GlobalRegisters, MsrAddress, PreciseSampling, Snapshot,
};

use crate::ArchitecturalPerfmon;
use crate::registers::{
    DebugCtl, IA32_DEBUGCTL, IA32_MISC_ENABLE, IA32_PEBS_ENABLE, IA32_PERF_GLOBAL_CTRL,
    IA32_PERF_GLOBAL_OVF_CTRL, IA32_PERF_GLOBAL_STATUS, IA32_PERFEVTSEL0, IA32_PMC0, MiscEnable,
    PerfEvtSel, STATUS_CTR_FRZ,
};

/// `IA32_DEBUGCTL.FREEZE_PERFMON_ON_PMI`.
const FREEZE: u64 = DebugCtl::new().with_freeze_perfmon_on_pmi(true).into_bits();

/// `IA32_MISC_ENABLE.PEBS_UNAVAILABLE`.
const PEBS_UNAVAILABLE: u64 = MiscEnable::new().with_pebs_unavailable(true).into_bits();

/// The most general counters that there are registers for: after `IA32_PERFEVTSEL9` and `IA32_PMC9`
/// come registers of another kind (SDM vol. 4, table 2-2).
pub(crate) const MAX_COUNTERS: u8 = 10;

/// The general counters of a processor.
pub(crate) fn unit(processor: &Snapshot) -> CounterUnit {
    if processor.vendor() != *b"GenuineIntel" {
        return CounterUnit::NONE;
    }
    let unit = of_perfmon(&ArchitecturalPerfmon::from_snapshot(processor));
    // SDM vol. 3B, §20.6.2.4: CPUID leaf 1, EDX bit 21, DS; and IA32_MISC_ENABLE must not deny it.
    if processor.leaf(1, 0).edx >> 21 & 1 == 0 {
        return unit;
    }
    // SAFETY: without a counter's bit, its overflow writes no record.
    unit.with_precise_sampling(unsafe {
        PreciseSampling::new(IA32_PEBS_ENABLE, IA32_MISC_ENABLE, PEBS_UNAVAILABLE)
    })
}

/// The general counters that leaf 0x0A declares.
pub(crate) const fn of_perfmon(perfmon: &ArchitecturalPerfmon) -> CounterUnit {
    let count = if perfmon.counters() < MAX_COUNTERS { perfmon.counters() } else { MAX_COUNTERS };
    let bank = CounterBank {
        select: IA32_PERFEVTSEL0,
        value: IA32_PMC0,
        step: 1,
        rdpmc: MAX_COUNTERS,
        width: perfmon.width(),
    };
    // SAFETY: event selects and counters; no value of them makes the processor write to memory. (Precise
    // sampling needs IA32_PEBS_ENABLE as well, which is behind an unsafe operation.)
    let unit = unsafe { CounterUnit::new((1 << count) - 1, bank, event_bits(perfmon)) };
    // SDM vol. 3A, "Local Vector Table": delivery of the interrupt sets the entry's mask bit.
    let unit = unit.masked_on_delivery(true);
    // From version 2 (SDM vol. 3B, §20.2.2).
    if perfmon.version() < 2 { unit } else { unit.with_global(global(perfmon)) }
}

/// Event, unit mask, USR, OS, edge, INV and CMASK; AnyThread in versions 3 and 4, and later where CPUID does not
/// deprecate it (SDM vol. 3B, §20.2.1.1, §20.2.3 and §20.2.5.1). Not pin control, which is reserved today.
const fn event_bits(perfmon: &ArchitecturalPerfmon) -> u64 {
    const ANY_THREAD: u64 = PerfEvtSel::new().with_any_thread(true).into_bits();
    let any_thread = perfmon.version() >= 3 && !perfmon.any_thread_deprecated();
    0xFF87_FFFF | if any_thread { ANY_THREAD } else { 0 }
}

const fn global(perfmon: &ArchitecturalPerfmon) -> GlobalRegisters {
    // SAFETY: these say which counters run and which overflowed; none holds an address. The PEBS
    // buffer's bit of the acknowledge register clears a flag.
    // Freezing the counters is one bit of a register whose others stay as they are.
    unsafe {
        GlobalRegisters {
            control: MsrAddress::new(IA32_PERF_GLOBAL_CTRL),
            status: MsrAddress::new(IA32_PERF_GLOBAL_STATUS),
            acknowledge: MsrAddress::new(IA32_PERF_GLOBAL_OVF_CTRL),
            stop_while_serviced: true,
            // Before version 4 the processor clears IA32_PERF_GLOBAL_CTRL (SDM vol. 3B, §18.4.7 and
            // §20.2.4).
            frozen: if perfmon.version() >= 4 { STATUS_CTR_FRZ } else { 0 },
            freeze: Some(Freeze::new(IA32_DEBUGCTL, FREEZE)),
        }
    }
}
