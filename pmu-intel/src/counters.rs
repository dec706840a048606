//! The counters of architectural performance monitoring, as CPUID declares them.

use pmu_core::{
    CounterBank, CounterUnit, FixedCounters, Freeze, FullWidth, GlobalRegisters, MAX_FIXED,
    MsrAddress, NamedEvent, NoInterface, PreciseSampling, Snapshot,
};

use crate::ArchitecturalPerfmon;
use crate::cpuid::PerfmonExtension;
use crate::registers::{
    DebugCtl, FULL_WIDTH_WRITES, IA32_A_PMC0, IA32_DEBUGCTL, IA32_FIXED_CTR_CTRL, IA32_FIXED_CTR0,
    IA32_MISC_ENABLE, IA32_PEBS_ENABLE, IA32_PERF_CAPABILITIES, IA32_PERF_GLOBAL_CTRL,
    IA32_PERF_GLOBAL_OVF_CTRL, IA32_PERF_GLOBAL_STATUS, IA32_PERFEVTSEL0, IA32_PMC_FX0_CTR,
    IA32_PMC_GP0_CFG_A, IA32_PMC_GP0_CTR, IA32_PMC0, MiscEnable, PerfEvtSel, STATUS_CTR_FRZ,
};

/// `IA32_DEBUGCTL.FREEZE_PERFMON_ON_PMI`.
const FREEZE: u64 = DebugCtl::new().with_freeze_perfmon_on_pmi(true).into_bits();

/// `IA32_MISC_ENABLE.PEBS_UNAVAILABLE`.
const PEBS_UNAVAILABLE: u64 = MiscEnable::new().with_pebs_unavailable(true).into_bits();

/// The most general counters that there are registers for: after `IA32_PERFEVTSEL9` and `IA32_PMC9`
/// come registers of another kind (SDM vol. 4, table 2-2).
pub(crate) const MAX_COUNTERS: u8 = 10;

/// The vendors whose counters are Intel's: Intel, and Zhaoxin under both of its names.
const INTEL: [u8; 12] = *b"GenuineIntel";
const ZHAOXIN: [[u8; 12]; 2] = [*b"CentaurHauls", *b"  Shanghai  "];

/// Detects the counters of a processor: Intel's, or Zhaoxin's, which are like those of version 2.
///
/// They take any event of the processor's manual. Zhaoxin's processors have other events than Intel's under the
/// same numbers, so that none is known by name, and no source of [`SOURCES`](crate::SOURCES) is theirs.
///
/// ```
/// # use pmu_core::{CpuidDump, Snapshot};
/// # let dump = CpuidDump::parse(
/// #     "   0x00000000 0x00: eax=0x0000000a ebx=0x756e6547 ecx=0x6c65746e edx=0x49656e69
/// #         0x0000000a 0x00: eax=0x07300404 ebx=0x00000000 ecx=0x00000000 edx=0x00000603",
/// # )?;
/// # let this_processor = Snapshot::capture(&dump);
/// let unit = pmu_intel::counters(&this_processor)?;
/// assert_eq!(unit.counters().len(), 4 + 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`OtherVendor`](NoInterface::OtherVendor), [`HiddenByHypervisor`](NoInterface::HiddenByHypervisor),
/// [`NoPerformanceMonitoring`](NoInterface::NoPerformanceMonitoring),
/// [`ImplausibleCounters`](NoInterface::ImplausibleCounters).
pub fn counters(processor: &Snapshot) -> Result<CounterUnit, NoInterface> {
    let vendor = processor.vendor();
    let perfmon = ArchitecturalPerfmon::from_snapshot(processor);
    let (count, width) = (perfmon.counters(), perfmon.width());
    if vendor != INTEL && !ZHAOXIN.contains(&vendor) {
        Err(NoInterface::OtherVendor(vendor))
    } else if processor.hypervisor_hides_counters() {
        Err(NoInterface::HiddenByHypervisor)
    } else if perfmon.version() == 0 {
        Err(NoInterface::NoPerformanceMonitoring)
    } else if !(1..=MAX_COUNTERS).contains(&count) || !(32..=64).contains(&width) {
        Err(NoInterface::ImplausibleCounters { count, width })
    } else if vendor == INTEL {
        Ok(unit(processor))
    } else {
        Ok(of_zhaoxin(&perfmon))
    }
}

/// The counters of a processor of Intel's; none of another vendor's.
pub(crate) fn unit(processor: &Snapshot) -> CounterUnit {
    if processor.vendor() != INTEL {
        return CounterUnit::NONE;
    }
    let perfmon = ArchitecturalPerfmon::from_snapshot(processor);
    let extension = PerfmonExtension::from_snapshot(processor);
    let mut unit = of_perfmon(&perfmon, &extension, event_bits(processor, &perfmon, &extension));
    // SDM vol. 2A, CPUID leaf 1, ECX bit 15, PDCM: there is IA32_PERF_CAPABILITIES.
    if perfmon.version() < 6 && processor.leaf(1, 0).ecx >> 15 & 1 != 0 {
        let (value, capabilities) = (IA32_A_PMC0, IA32_PERF_CAPABILITIES);
        // SAFETY: the same counters (SDM vol. 3B, "Full-Width Writes to Performance Counter Registers").
        unit = unsafe {
            unit.with_full_width(FullWidth { value, capabilities, declared: FULL_WIDTH_WRITES })
        };
    }
    if extension.denies_user_rdpmc() {
        unit = unit.with_user_rdpmc_control();
    }
    // SDM vol. 3B, §20.6.2.4: CPUID leaf 1, EDX bit 21, DS; and IA32_MISC_ENABLE must not deny it.
    if processor.leaf(1, 0).edx >> 21 & 1 == 0 {
        return unit;
    }
    // SAFETY: without a counter's bit, its overflow writes no record.
    unit.with_precise_sampling(unsafe {
        PreciseSampling::new(IA32_PEBS_ENABLE, IA32_MISC_ENABLE, PEBS_UNAVAILABLE)
    })
}

/// The counters that leaf 0x0A declares, of which leaf 0x23 may say which they are.
pub(crate) const fn of_perfmon(
    perfmon: &ArchitecturalPerfmon,
    extension: &PerfmonExtension,
    event_bits: u64,
) -> CounterUnit {
    let count = if perfmon.counters() < MAX_COUNTERS { perfmon.counters() } else { MAX_COUNTERS };
    let general = match extension.general_counters() {
        0 => (1 << count) - 1,
        bitmap if perfmon.version() >= 6 => bitmap as u64,
        bitmap => bitmap as u64 & ((1 << MAX_COUNTERS) - 1),
    };
    let width = perfmon.width();
    let rdpmc = 32;
    let bank = if perfmon.version() >= 6 {
        let (select, value) = (IA32_PMC_GP0_CFG_A, IA32_PMC_GP0_CTR);
        CounterBank { select, value, step: 4, rdpmc, width, sign_extended: false }
    } else {
        let (select, value) = (IA32_PERFEVTSEL0, IA32_PMC0);
        CounterBank { select, value, step: 1, rdpmc, width, sign_extended: true }
    };
    // SAFETY: event selects and counters; no value of them makes the processor write to memory. (Precise
    // sampling needs IA32_PEBS_ENABLE as well, which is behind an unsafe operation.)
    let unit = unsafe { CounterUnit::new(general, bank, event_bits) };
    // SDM vol. 3A, "Local Vector Table": delivery of the interrupt sets the entry's mask bit.
    let unit = unit.masked_on_delivery(true);
    // From version 2 (SDM vol. 3B, §20.2.2).
    if perfmon.version() < 2 {
        return unit.with_named(named(perfmon, 0));
    }
    let fixed = match extension.fixed_counters() {
        0 => perfmon.fixed_counters(),
        bitmap => bitmap,
    } as u8;
    let unit = unit.with_global(global(perfmon)).with_named(named(perfmon, fixed));
    let (value, step) =
        if perfmon.version() >= 6 { (IA32_PMC_FX0_CTR, 4) } else { (IA32_FIXED_CTR0, 1) };
    with_fixed(unit, fixed, value, step, perfmon.fixed_width(), FIXED_EVENTS)
}

const fn with_fixed(
    unit: CounterUnit,
    counters: u8,
    value: u32,
    step: u32,
    width: u8,
    events: [u16; MAX_FIXED],
) -> CounterUnit {
    if counters == 0 || width < 32 || width > 64 {
        return unit;
    }
    let control = IA32_FIXED_CTR_CTRL;
    // SAFETY: the fixed counters and their control; no value of them makes the processor write to memory.
    unsafe { unit.with_fixed(counters, FixedCounters { control, value, step, width, events }) }
}

/// The events of the fixed counters, as an event select names them (SDM vol. 3B, "Fixed-function Performance
/// Counters"): instructions retired, core cycles; and reference cycles and top-down slots, for which no general
/// counter has an event: they go by event 0, unit masks 3 and 4, as in Linux perf.
const FIXED_EVENTS: [u16; MAX_FIXED] = [0x00C0, 0x003C, 0x0300, 0x0400, 0, 0, 0, 0];

/// The pre-defined architectural events (SDM vol. 3B, table "UMask and Event Select Encodings for Pre-Defined
/// Architectural Performance Events"), in the order of [`NamedEvent`], with their bits in leaf 0x0A's EBX.
const ARCHITECTURAL: [(NamedEvent, u8, u64); NamedEvent::COUNT] = [
    (NamedEvent::Cycles, 0, 0x003C),
    (NamedEvent::Instructions, 1, 0x00C0),
    (NamedEvent::ReferenceCycles, 2, 0x013C),
    (NamedEvent::CacheReferences, 3, 0x4F2E),
    (NamedEvent::CacheMisses, 4, 0x412E),
    (NamedEvent::Branches, 5, 0x00C4),
    (NamedEvent::BranchMisses, 6, 0x00C5),
];

/// Those that a processor has. Reference cycles are fixed counter 2's, where there is one.
const fn named(perfmon: &ArchitecturalPerfmon, fixed: u8) -> [u64; NamedEvent::COUNT] {
    let mut named = [0; NamedEvent::COUNT];
    let mut row = 0;
    while row < ARCHITECTURAL.len() {
        let (event, bit, select) = ARCHITECTURAL[row];
        if perfmon.has_event(bit) {
            named[event as usize] = select;
        }
        row += 1;
    }
    if fixed >> 2 & 1 != 0 {
        named[NamedEvent::ReferenceCycles as usize] = FIXED_EVENTS[2] as u64;
    }
    named
}

/// Zhaoxin's counters: general and fixed ones with global registers, of leaf 0x0A. Which events the fixed ones
/// count depends on the model, and is not known here. Linux has them freeze nothing.
fn of_zhaoxin(perfmon: &ArchitecturalPerfmon) -> CounterUnit {
    let (select, value) = (IA32_PERFEVTSEL0, IA32_PMC0);
    let width = perfmon.width();
    let bank = CounterBank { select, value, step: 1, rdpmc: 32, width, sign_extended: true };
    let general = (1 << perfmon.counters().min(MAX_COUNTERS)) - 1;
    // SAFETY: event selects and counters.
    let unit = unsafe { CounterUnit::new(general, bank, PLAIN_EVENT_BITS) };
    let unit = unit.masked_on_delivery(true);
    if perfmon.version() < 2 {
        return unit;
    }
    let unit = unit.with_global(GlobalRegisters { freeze: None, frozen: 0, ..global(perfmon) });
    let fixed = perfmon.fixed_counters() as u8;
    with_fixed(unit, fixed, IA32_FIXED_CTR0, 1, perfmon.fixed_width(), [0; MAX_FIXED])
}

/// Event, unit mask, USR, OS, edge, INV and CMASK. Not pin control, which is reserved today.
pub(crate) const PLAIN_EVENT_BITS: u64 = 0xFF87_FFFF;

/// Those; AnyThread in versions 3 and 4, and later where CPUID does not deprecate it (SDM vol. 3B, §20.2.1.1,
/// §20.2.3 and §20.2.5.1); unit mask 2 and EQ of version 6; IN_TX and IN_TXCP (which only counter 2 has) where
/// there are transactions (leaf 7, EBX bits 4 and 11; SDM vol. 3B, "Performance Monitoring and Intel TSX").
const fn event_bits_of_perfmon(perfmon: &ArchitecturalPerfmon) -> u64 {
    const ANY_THREAD: u64 = PerfEvtSel::new().with_any_thread(true).into_bits();
    let any_thread = perfmon.version() >= 3 && !perfmon.any_thread_deprecated();
    PLAIN_EVENT_BITS | if any_thread { ANY_THREAD } else { 0 }
}

fn event_bits(
    processor: &Snapshot,
    perfmon: &ArchitecturalPerfmon,
    extension: &PerfmonExtension,
) -> u64 {
    const TRANSACTIONS: u32 = 1 << 4 | 1 << 11;
    let mut bits = event_bits_of_perfmon(perfmon) | extension.event_bits();
    if processor.leaf(7, 0).ebx & TRANSACTIONS != 0 {
        bits |= 0b11 << 32;
    }
    bits
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
