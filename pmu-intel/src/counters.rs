//! The counters of architectural performance monitoring, as CPUID declares them.

use pmu_core::access::{RegisterAddress, RegisterBits};
use pmu_core::error::NoInterface;
use pmu_core::registers::{
    CounterBank, CounterLayout, FixedCounters, FullWidth, GlobalRegisters, MAX_FIXED, MAX_GENERAL,
    PreciseSampling, SelectLayout,
};
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSet, CounterUnit, GenericEvent};

use crate::cpuid::{ArchitecturalPerfmon, PerfmonExtension};
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
pub(crate) const INTEL: [u8; 12] = *b"GenuineIntel";
const ZHAOXIN: [[u8; 12]; 2] = [*b"CentaurHauls", *b"  Shanghai  "];

/// Detects the counters of an Intel or Zhaoxin processor. Zhaoxin's processors implement Intel's architectural perfmon
/// version 2.
///
/// The counters can count any event of the processor's manual. On Zhaoxin's processors, Intel's event codes select
/// different events. Therefore a Zhaoxin processor has no [`GenericEvent`](pmu_core::GenericEvent), and
/// [`SOURCES`](crate::SOURCES) applies only to Intel's processors.
///
/// Version 6 of architectural perfmon has auto counter reload and architectural PEBS. A session on these counters uses
/// neither feature. If firmware or the previous kernel has left these features enabled, call
/// [`clear_stale`](crate::clear_stale) to disable them.
///
/// ```
/// # use pmu_core::x86::dump::CpuidDump;
/// # use pmu_core::x86::Snapshot;
/// # let dump = CpuidDump::parse(
/// #     "   0x00000000 0x00: eax=0x0000000a ebx=0x756e6547 ecx=0x6c65746e edx=0x49656e69
/// #         0x0000000a 0x00: eax=0x07300404 ebx=0x00000000 ecx=0x00000000 edx=0x00000603",
/// # )?;
/// # let this_processor = Snapshot::capture(&dump);
/// let unit = pmu_intel::counters(&this_processor);
/// assert_eq!(unit.counters().len(), 4 + 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A processor without usable counters has a unit that says [why](CounterUnit::why_absent):
/// [`OtherVendor`](NoInterface::OtherVendor), [`HiddenByHypervisor`](NoInterface::HiddenByHypervisor),
/// [`NoPerformanceMonitoring`](NoInterface::NoPerformanceMonitoring) or
/// [`ImplausibleCounters`](NoInterface::ImplausibleCounters).
pub fn counters(processor: &Snapshot) -> CounterUnit {
    unit(processor, is_zhaoxin(processor))
}

/// Returns the counters of an Intel processor, or of a Zhaoxin processor. Those of others are absent.
pub(crate) fn unit(processor: &Snapshot, is_zhaoxin: bool) -> CounterUnit {
    let perfmon = ArchitecturalPerfmon::from_snapshot(processor);
    match check(processor, &perfmon, is_zhaoxin) {
        Ok(()) => declared(processor, is_zhaoxin),
        Err(why) => CounterUnit::absent(why),
    }
}

/// Returns the counters that CPUID declares, whether they can be used or not.
pub(crate) fn declared(processor: &Snapshot, is_zhaoxin: bool) -> CounterUnit {
    let perfmon = ArchitecturalPerfmon::from_snapshot(processor);
    let mut declared = Perfmon::new(perfmon);
    let has = |register: u32, bit: u32| register >> bit & 1 != 0;
    if is_zhaoxin {
        (declared.registers, declared.has_events) = (Registers::ZHAOXIN, false);
    } else {
        declared.extension = PerfmonExtension::from_snapshot(processor);
        declared.event_bits = event_bits(processor, &perfmon, &declared.extension);
        // SDM vol. 2A, CPUID leaf 1, ECX bit 15, PDCM: there is IA32_PERF_CAPABILITIES.
        declared.has_full_width = perfmon.version() < 6 && has(processor.leaf(1, 0).ecx, 15);
        // SDM vol. 3B, §20.6.2.4: CPUID leaf 1, EDX bit 21, DS; and IA32_MISC_ENABLE must not deny it.
        declared.has_precise_sampling = has(processor.leaf(1, 0).edx, 21);
    }
    let mut unit = CounterUnit::of(&declared);
    // SDM vol. 2A, CPUID leaf 7, EDX bit 15, Hybrid; leaf 0x1A, EAX: the core's type and native model.
    if !is_zhaoxin && has(processor.leaf(7, 0).edx, 15) {
        unit.set_core_type(processor.leaf(0x1A, 0).eax);
    }
    unit
}

fn check(
    processor: &Snapshot,
    perfmon: &ArchitecturalPerfmon,
    is_zhaoxin: bool,
) -> Result<(), NoInterface> {
    let vendor = processor.vendor();
    let (count, width) = (perfmon.counters(), perfmon.width());
    if vendor != INTEL && !is_zhaoxin {
        Err(NoInterface::OtherVendor(vendor))
    } else if processor.hypervisor_hides_counters() {
        Err(NoInterface::HiddenByHypervisor)
    } else if perfmon.version() == 0 {
        Err(NoInterface::NoPerformanceMonitoring)
    } else if !(1..=MAX_COUNTERS).contains(&count) || !(32..=64).contains(&width) {
        Err(NoInterface::ImplausibleCounters { count, width })
    } else {
        Ok(())
    }
}

/// Returns whether the processor is of a Zhaoxin series whose counters are known: ZX-C (family 6) and later. VIA's
/// Nano, an earlier processor under the same vendor name, is not.
fn is_zhaoxin(processor: &Snapshot) -> bool {
    let model = (processor.family(), processor.model(), processor.stepping());
    let known = matches!(model, (6, 0x0F, 0x0E..) | (6, 0x19, _) | (7.., ..));
    known && ZHAOXIN.contains(&processor.vendor())
}

/// A processor's counters, as CPUID declares them.
pub(crate) struct Perfmon {
    perfmon: ArchitecturalPerfmon,
    extension: PerfmonExtension,
    registers: Registers,
    event_bits: u64,
    /// The codes of the pre-defined events are Intel's.
    has_events: bool,
    has_full_width: bool,
    has_precise_sampling: bool,
}

impl Perfmon {
    /// Returns what leaf 0x0A of an Intel processor alone declares.
    pub(crate) const fn new(perfmon: ArchitecturalPerfmon) -> Self {
        Self {
            perfmon,
            extension: PerfmonExtension::NONE,
            registers: Registers::of(perfmon.version()),
            event_bits: PLAIN_EVENT_BITS,
            has_events: true,
            has_full_width: false,
            has_precise_sampling: false,
        }
    }
}

// SAFETY: (1) the registers are those of the version that CPUID declares: ten general counters at most before version 6,
// and as many as there can be in a unit from then on; fixed counters from version 2 on. (2) They are event selects and
// counters, and the fixed counters' control; no value of them makes the processor write to memory. (Precise sampling
// needs IA32_PEBS_ENABLE as well, which is behind an unsafe operation.) (3) The full-width addresses are of the same
// counters, and reading IA32_PERF_CAPABILITIES has no effect (SDM vol. 3B, "Full-Width Writes to Performance Counter
// Registers").
unsafe impl CounterLayout for Perfmon {
    /// Those of leaf 0x0A; if leaf 0x23 has bitmaps of counters, they replace leaf 0x0A's numbers.
    fn counters(&self) -> CounterSet {
        let count = self.perfmon.counters().min(MAX_COUNTERS);
        // There are registers for more from version 6 on.
        let most = if self.perfmon.version() >= 6 { MAX_GENERAL as u8 } else { MAX_COUNTERS };
        let general = match u64::from(self.extension.general_counters()) & ((1 << most) - 1) {
            0 => (1 << count) - 1,
            bitmap => bitmap,
        };
        let fixed = match self.extension.fixed_counters() {
            0 => self.perfmon.fixed_counters(),
            bitmap => bitmap,
        };
        CounterSet::from_bits(general) | CounterSet::fixed(fixed as u8)
    }

    fn general(&self) -> (&'static CounterBank, u8) {
        (self.registers.general, self.perfmon.width())
    }

    fn fixed(&self) -> Option<(&'static FixedCounters, u8)> {
        let width = self.perfmon.fixed_width();
        let exist = self.perfmon.version() >= 2 && matches!(width, 32..=64);
        exist.then_some((self.registers.fixed, width))
    }

    fn full_width(&self) -> Option<&'static FullWidth> {
        self.has_full_width.then_some(&FULL_WIDTH)
    }

    /// From version 2 (SDM vol. 3B, §20.2.2).
    fn global(&self) -> Option<&'static GlobalRegisters> {
        (self.perfmon.version() >= 2).then_some(self.registers.global)
    }

    fn precise_sampling(&self) -> Option<&'static PreciseSampling> {
        let from_5 = self.perfmon.version() >= 5;
        let register = if from_5 { &PRECISE_SAMPLING_5 } else { &PRECISE_SAMPLING };
        self.has_precise_sampling.then_some(register)
    }

    /// SDM vol. 3A, "Local Vector Table": delivery of the interrupt sets the LVT entry's mask bit.
    fn is_masked_on_delivery(&self) -> bool {
        true
    }
}

impl SelectLayout for Perfmon {
    fn event_bits(&self) -> u64 {
        self.event_bits
    }

    fn generic_events(&self) -> (&'static [u64; GenericEvent::COUNT], u8) {
        let fixed_2 = CounterSet::fixed(1 << 2);
        let has_fixed_2 = self.fixed().is_some() && !(self.counters() & fixed_2).is_empty();
        let named = if has_fixed_2 { &NAMED_BY_FIXED } else { &NAMED };
        (named, if self.has_events { self.perfmon.available_events() } else { 0 })
    }

    fn denies_user_reads(&self) -> bool {
        self.extension.denies_user_reads()
    }
}

/// The registers of one version's counters.
pub(crate) struct Registers {
    general: &'static CounterBank,
    fixed: &'static FixedCounters,
    global: &'static GlobalRegisters,
}

impl Registers {
    /// Returns the registers of a version. Before version 4 the processor clears `IA32_PERF_GLOBAL_CTRL` to freeze (SDM
    /// vol. 3B, §18.4.7 and §20.2.4).
    pub(crate) const fn of(version: u8) -> Self {
        match version {
            0..=3 => Self { general: &GENERAL, fixed: &FIXED, global: &GLOBAL_2 },
            4 | 5 => Self { general: &GENERAL, fixed: &FIXED, global: &GLOBAL_4 },
            6.. => Self { general: &GENERAL_6, fixed: &FIXED_6, global: &GLOBAL_4 },
        }
    }

    /// The registers of Zhaoxin's counters. The events of the fixed counters depend on the model, and are not known
    /// here. Nothing freezes the counters. They are not stopped while they are serviced: ZX-C accepts an acknowledgment
    /// only while counters are enabled in the global control register (as in Linux).
    const ZHAOXIN: Self =
        Self { general: &GENERAL, fixed: &FIXED_ZHAOXIN, global: &GLOBAL_ZHAOXIN };
}

static GENERAL: CounterBank = CounterBank {
    select: IA32_PERFEVTSEL0,
    value: IA32_PMC0,
    step: 1,
    indexed: 32,
    sign_extended: true,
    counts_every_number: false,
};

static GENERAL_6: CounterBank = CounterBank {
    select: IA32_PMC_GP0_CFG_A,
    value: IA32_PMC_GP0_CTR,
    step: 4,
    indexed: 32,
    sign_extended: false,
    counts_every_number: false,
};

static FULL_WIDTH: FullWidth = FullWidth {
    value: IA32_A_PMC0,
    capabilities: IA32_PERF_CAPABILITIES,
    declared: FULL_WIDTH_WRITES,
};

static FIXED: FixedCounters = FixedCounters {
    control: IA32_FIXED_CTR_CTRL,
    value: IA32_FIXED_CTR0,
    step: 1,
    events: FIXED_EVENTS,
};

static FIXED_6: FixedCounters = FixedCounters {
    control: IA32_FIXED_CTR_CTRL,
    value: IA32_PMC_FX0_CTR,
    step: 4,
    events: FIXED_EVENTS,
};

/// Before version 5, bits 35:32 are general counters' load latency (SDM vol. 3B, §20.3.1.1.2).
static PRECISE_SAMPLING: PreciseSampling = precise_sampling(CounterSet::GENERAL);
static PRECISE_SAMPLING_5: PreciseSampling = precise_sampling(CounterSet::ALL);

const fn precise_sampling(counters: CounterSet) -> PreciseSampling {
    let (enable, capability) = (IA32_PEBS_ENABLE, IA32_MISC_ENABLE);
    // SAFETY: without a counter's bit, its overflow writes no record.
    unsafe { PreciseSampling::new(counters, enable, capability, PEBS_UNAVAILABLE) }
}

/// The events of the fixed counters, as an event select names them (SDM vol. 3B, "Fixed-function Performance
/// Counters"): instructions retired, core cycles; and reference cycles and top-down slots, for which no general
/// counter has an event: they go by event 0, unit masks 3 and 4, as in Linux perf.
///
/// An E-core's fixed counters 4 to 6 count issue slots of bad speculation, of the front end, and of retirement.
const FIXED_EVENTS: [u16; MAX_FIXED] = [0x00C0, 0x003C, 0x0300, 0x0400, 0x0500, 0x0600, 0x0700, 0];

/// The pre-defined architectural events (SDM vol. 3B, table "UMask and Event Select Encodings for Pre-Defined
/// Architectural Performance Events"): their order is that of their bits in leaf 0x0A's EBX, and of
/// [`GenericEvent`].
static NAMED: [u64; GenericEvent::COUNT] = [0x003C, 0x00C0, 0x013C, 0x4F2E, 0x412E, 0x00C4, 0x00C5];

/// The pre-defined architectural events, with reference cycles on fixed counter 2.
static NAMED_BY_FIXED: [u64; GenericEvent::COUNT] =
    [0x003C, 0x00C0, FIXED_EVENTS[2] as u64, 0x4F2E, 0x412E, 0x00C4, 0x00C5];

static FIXED_ZHAOXIN: FixedCounters = FixedCounters {
    control: IA32_FIXED_CTR_CTRL,
    value: IA32_FIXED_CTR0,
    step: 1,
    events: [0; MAX_FIXED],
};

/// Event, unit mask, USR, OS, edge, INV and CMASK. Not pin control, which is reserved today.
const PLAIN_EVENT_BITS: u64 = 0xFF87_FFFF;

/// Returns the event-select bits of a version: the plain ones; AnyThread in versions 3 and 4, and later if CPUID does
/// not deprecate it (SDM vol. 3B, §20.2.1.1, §20.2.3 and §20.2.5.1).
const fn event_bits_of_perfmon(perfmon: &ArchitecturalPerfmon) -> u64 {
    const ANY_THREAD: u64 = PerfEvtSel::new().with_any_thread(true).into_bits();
    let any_thread = perfmon.version() >= 3 && !perfmon.any_thread_deprecated();
    PLAIN_EVENT_BITS | if any_thread { ANY_THREAD } else { 0 }
}

/// Returns the event-select bits of a processor: those of its version; unit mask 2 and EQ of version 6; IN_TX and
/// IN_TXCP (which only counter 2 has) if there are transactions (leaf 7, EBX bits 4 and 11; SDM vol. 3B, "Performance
/// Monitoring and Intel TSX").
fn event_bits(
    processor: &Snapshot,
    perfmon: &ArchitecturalPerfmon,
    extension: &PerfmonExtension,
) -> u64 {
    const TRANSACTIONS: u32 = 1 << 4 | 1 << 11;
    const IN_TX: u64 = 1 << 32;
    const IN_TXCP: u64 = 1 << 33;
    let mut bits = event_bits_of_perfmon(perfmon) | extension.event_bits();
    if processor.leaf(7, 0).ebx & TRANSACTIONS != 0 {
        bits |= IN_TX | IN_TXCP;
    }
    bits
}

static GLOBAL_2: GlobalRegisters = global(0, true);
static GLOBAL_4: GlobalRegisters = global(STATUS_CTR_FRZ, true);
static GLOBAL_ZHAOXIN: GlobalRegisters = global(0, false);

/// Returns the global registers; `stops` if the counters are stopped while they are serviced and can freeze themselves.
const fn global(frozen: u64, stops: bool) -> GlobalRegisters {
    // SAFETY: these say which counters run and which overflowed; none holds an address. The PEBS
    // buffer's bit of the acknowledge register clears a flag.
    // Freezing the counters is one bit of a register whose others stay as they are.
    unsafe {
        GlobalRegisters {
            control: RegisterAddress::new(IA32_PERF_GLOBAL_CTRL),
            status: RegisterAddress::new(IA32_PERF_GLOBAL_STATUS),
            acknowledge: RegisterAddress::new(IA32_PERF_GLOBAL_OVF_CTRL),
            stop_while_serviced: stops,
            // Intel's VM entries and VM exits load IA32_PERF_GLOBAL_CTRL (SDM vol. 3C, "VM-Entry Controls" and "VM-Exit
            // Controls"); of Zhaoxin's this is not known.
            loaded_for_guests: stops,
            frozen,
            freeze: if stops { Some(RegisterBits::new(IA32_DEBUGCTL, FREEZE)) } else { None },
        }
    }
}
