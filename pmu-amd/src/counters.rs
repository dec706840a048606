//! The core counters, as CPUID declares them.

use pmu_core::{
    CounterBank, CounterUnit, GlobalRegisters, MsrAddress, NamedEvent, NoInterface, Snapshot,
};

use crate::cpuid::Family;
use crate::registers::{
    COUNTER_WIDTH, PERF_CNTR_GLOBAL_CTL, PERF_CNTR_GLOBAL_STATUS, PERF_CNTR_GLOBAL_STATUS_CLR,
    PERF_CTL0, PERF_CTR0, PERF_LEGACY_CTL0, PERF_LEGACY_CTR0, PerfCtl, RDPMC_CORE_COUNTERS,
    STATUS_PMC_FREEZE,
};

/// `PERF_CTL.GuestOnly` and `PERF_CTL.HostOnly`, which need SVM to be on.
const GUEST_ONLY: u64 = PerfCtl::new().with_guest_only(true).into_bits();
const HOST_ONLY: u64 = PerfCtl::new().with_host_only(true).into_bits();

/// Event, of 12 bits, unit mask, USR, OS, edge, INV and CntMask (APM vol. 2, figure "Core Performance Event-Select
/// Register").
const EVENT_BITS: u64 = 0xF_FF87_FFFF;

const AMD: [u8; 12] = *b"AuthenticAMD";
const HYGON: [u8; 12] = *b"HygonGenuine";

/// Detects the counters of a processor: AMD's, or Hygon's, which are those of AMD's first Zen.
///
/// They take any event of the processor's manual. No source of [`SOURCES`](crate::SOURCES) is Hygon's: Windows
/// has none for it.
///
/// ```
/// # use pmu_core::{CpuidDump, Snapshot};
/// # let dump = CpuidDump::parse(
/// #     "   0x00000000 0x00: eax=0x00000001 ebx=0x68747541 ecx=0x444d4163 edx=0x69746e65
/// #         0x80000000 0x00: eax=0x80000001 ebx=0x00000000 ecx=0x00000000 edx=0x00000000
/// #         0x80000001 0x00: eax=0x00000000 ebx=0x00000000 ecx=0x00800000 edx=0x20000000",
/// # )?;
/// # let this_processor = Snapshot::capture(&dump);
/// let unit = pmu_amd::counters(&this_processor)?;
/// assert_eq!(unit.counters().len(), 6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`OtherVendor`](NoInterface::OtherVendor), [`NoLongMode`](NoInterface::NoLongMode),
/// [`HiddenByHypervisor`](NoInterface::HiddenByHypervisor).
pub fn counters(processor: &Snapshot) -> Result<CounterUnit, NoInterface> {
    let vendor = processor.vendor();
    if vendor != AMD && vendor != HYGON {
        Err(NoInterface::OtherVendor(vendor))
    } else if !processor.has_long_mode() {
        Err(NoInterface::NoLongMode)
    } else if processor.hypervisor_hides_counters() {
        Err(NoInterface::HiddenByHypervisor)
    } else {
        Ok(best(processor))
    }
}

/// The counters of a processor of AMD's; none of another vendor's.
pub(crate) fn unit(processor: &Snapshot) -> CounterUnit {
    if processor.vendor() == AMD { best(processor) } else { CounterUnit::NONE }
}

/// The best counters that a processor declares.
fn best(processor: &Snapshot) -> CounterUnit {
    let unit =
        of_family(Family::of(processor)).with_named(named(processor.family(), processor.model()));
    // AMD's local APIC leaves the entry as it is (APM vol. 2, §16.4.4, has no such side effect); in a virtual
    // machine the hypervisor's may not.
    let unit = unit.masked_on_delivery(processor.has_hypervisor());
    // APM vol. 3, appendix E: leaf 0x80000001, ECX bit 2, SVM.
    let has_svm = processor.leaf(0x8000_0001, 0).ecx >> 2 & 1 != 0;
    if has_svm { unit.with_guest_bits(GUEST_ONLY, HOST_ONLY) } else { unit }
}

/// The events that have a name, in the order of [`NamedEvent`]. Sources: BKDG of families 10h to 16h, PPR of
/// families 17h to 1Ah; caches are those of the second level.
fn named(family: u16, model: u8) -> [u64; NamedEvent::COUNT] {
    // Zen 4 on (family 19h from these models on) has cycles of P0's clock: PMCx120.
    let zen_4 = family == 0x19 && matches!(model, 0x10..=0x1F | 0x60..=0xAF);
    let reference_cycles = if zen_4 || family >= 0x1A { 0x1_0000_0120 } else { 0 };
    let (references, misses) = match family {
        ..=0x16 => (0x077D, 0x077E),
        0x17..=0x19 => (0xFF60, 0x0964),
        0x1A.. => (0xF760, 0x0964),
    };
    let mut named = [0; NamedEvent::COUNT];
    for (event, select) in [
        (NamedEvent::Cycles, 0x0076),
        (NamedEvent::Instructions, 0x00C0),
        (NamedEvent::ReferenceCycles, reference_cycles),
        (NamedEvent::CacheReferences, references),
        (NamedEvent::CacheMisses, misses),
        (NamedEvent::Branches, 0x00C2),
        (NamedEvent::BranchMisses, 0x00C3),
    ] {
        named[event as usize] = select;
    }
    named
}

/// The counters of a family.
pub(crate) const fn of_family(family: Family) -> CounterUnit {
    let (select, value, step) = match family {
        Family::Legacy => (PERF_LEGACY_CTL0, PERF_LEGACY_CTR0, 1),
        Family::CoreExtension | Family::PerfMonV2 { .. } => (PERF_CTL0, PERF_CTR0, 2),
    };
    let (rdpmc, width) = (RDPMC_CORE_COUNTERS, COUNTER_WIDTH);
    let bank = CounterBank { select, value, step, rdpmc, width, sign_extended: false };
    // SAFETY: event selects and counters; no value of them makes the processor write to memory.
    let unit = unsafe { CounterUnit::new((1 << family.counters()) - 1, bank, EVENT_BITS) };
    match family {
        Family::PerfMonV2 { .. } => unit.with_global(GLOBAL),
        Family::Legacy | Family::CoreExtension => unit,
    }
}

/// With PerfMonV2.
const GLOBAL: GlobalRegisters = {
    // SAFETY: these say which counters run and which overflowed; none holds an address.
    unsafe {
        GlobalRegisters {
            control: MsrAddress::new(PERF_CNTR_GLOBAL_CTL),
            status: MsrAddress::new(PERF_CNTR_GLOBAL_STATUS),
            acknowledge: MsrAddress::new(PERF_CNTR_GLOBAL_STATUS_CLR),
            stop_while_serviced: false,
            frozen: STATUS_PMC_FREEZE,
            freeze: None,
        }
    }
};
