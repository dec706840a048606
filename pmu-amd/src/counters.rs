//! The core counters, as CPUID declares them.

use pmu_core::access::RegisterAddress;
use pmu_core::error::NoInterface;
use pmu_core::registers::{CounterBank, CounterLayout, GlobalRegisters, SelectLayout};
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSet, CounterUnit, GenericEvent};

use crate::cpuid::Family;
use crate::registers::{
    COUNTER_WIDTH, LEGACY_COUNTERS, PERF_CNTR_GLOBAL_CTL, PERF_CNTR_GLOBAL_STATUS,
    PERF_CNTR_GLOBAL_STATUS_CLR, PERF_CTL0, PERF_CTR0, PERF_LEGACY_CTL0, PERF_LEGACY_CTR0, PerfCtl,
    RDPMC_CORE_COUNTERS, STATUS_PMC_FREEZE,
};

/// `PERF_CTL.GuestOnly` and `PERF_CTL.HostOnly`, which need SVM to be enabled (APM vol. 2, §13.2.1).
const GUEST_ONLY: u64 = PerfCtl::new().with_guest_only(true).into_bits();
const HOST_ONLY: u64 = PerfCtl::new().with_host_only(true).into_bits();

/// Event, of 12 bits, unit mask, USR, OS, edge, INV and CntMask (APM vol. 2, figure "Core Performance Event-Select
/// Register").
const EVENT_BITS: u64 = 0xF_FF87_FFFF;

/// PMCx003, retired SSE and AVX FLOPs: up to 64 per cycle are counted with PMCxFFF on the next counter (PPR of families
/// 17h, 19h and 1Ah, "Large Increment per Cycle Events"; "Use MergeEvent feature" in family 1Ah's PMCx003).
const SSE_AVX_FLOPS: u16 = 0x003;
const MERGE: u16 = 0xFFF;

pub(crate) const AMD: [u8; 12] = *b"AuthenticAMD";
pub(crate) const HYGON: [u8; 12] = *b"HygonGenuine";

/// Detects the core counters of an AMD or Hygon processor. Hygon's processors have the same counters as AMD's first Zen
/// processors.
///
/// The counters can count any event in the processor's manual. [`SOURCES`](crate::SOURCES) applies to AMD's processors
/// only, because Windows has no profile sources for Hygon.
///
/// ```
/// # use pmu_core::x86::dump::CpuidDump;
/// # use pmu_core::x86::Snapshot;
/// # let dump = CpuidDump::parse(
/// #     "   0x00000000 0x00: eax=0x00000001 ebx=0x68747541 ecx=0x444d4163 edx=0x69746e65
/// #         0x80000000 0x00: eax=0x80000001 ebx=0x00000000 ecx=0x00000000 edx=0x00000000
/// #         0x80000001 0x00: eax=0x00000000 ebx=0x00000000 ecx=0x00800000 edx=0x20000000",
/// # )?;
/// # let this_processor = Snapshot::capture(&dump);
/// let unit = pmu_amd::counters(&this_processor);
/// assert_eq!(unit.counters().len(), 6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A processor without usable counters has a unit that says [why](CounterUnit::why_absent):
/// [`OtherVendor`](NoInterface::OtherVendor), [`NoLongMode`](NoInterface::NoLongMode) or
/// [`HiddenByHypervisor`](NoInterface::HiddenByHypervisor).
pub fn counters(processor: &Snapshot) -> CounterUnit {
    unit(processor, &[AMD, HYGON])
}

/// Detects the four legacy counters of an AMD or Hygon processor, which every processor has, at their legacy addresses.
/// Other drivers may use the remaining counters. The counters are [absent](CounterUnit::why_absent) where those of
/// [`counters`] are.
///
/// ```
/// # use pmu_core::x86::dump::CpuidDump;
/// # use pmu_core::x86::Snapshot;
/// # let dump = CpuidDump::parse(
/// #     "   0x00000000 0x00: eax=0x00000001 ebx=0x68747541 ecx=0x444d4163 edx=0x69746e65
/// #         0x80000000 0x00: eax=0x80000001 ebx=0x00000000 ecx=0x00000000 edx=0x00000000
/// #         0x80000001 0x00: eax=0x00000000 ebx=0x00000000 ecx=0x00800000 edx=0x20000000",
/// # )?;
/// # let this_processor = Snapshot::capture(&dump); // with six counters
/// assert_eq!(pmu_amd::legacy_counters(&this_processor).counters().len(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn legacy_counters(processor: &Snapshot) -> CounterUnit {
    as_legacy(&counters(processor))
}

/// Returns the best counters that a processor of one of these vendors declares. Those of others are absent.
pub(crate) fn unit(processor: &Snapshot, vendors: &[[u8; 12]]) -> CounterUnit {
    if let Err(why) = check(processor, vendors) {
        return CounterUnit::absent(why);
    }
    CounterUnit::of(&Core {
        counters: Family::of(processor),
        family: processor.family(),
        model: processor.model(),
        has_hypervisor: processor.has_hypervisor(),
        // APM vol. 3, appendix E: leaf 0x80000001, ECX bit 2, SVM.
        has_svm: processor.leaf(0x8000_0001, 0).ecx >> 2 & 1 != 0,
    })
}

fn check(processor: &Snapshot, vendors: &[[u8; 12]]) -> Result<(), NoInterface> {
    let vendor = processor.vendor();
    if !vendors.contains(&vendor) {
        Err(NoInterface::OtherVendor(vendor))
    } else if !processor.has_long_mode() {
        Err(NoInterface::NoLongMode)
    } else if processor.hypervisor_hides_counters() {
        Err(NoInterface::HiddenByHypervisor)
    } else {
        Ok(())
    }
}

/// A processor's counters, as CPUID declares them.
pub(crate) struct Core {
    counters: Family,
    family: u16,
    model: u8,
    has_hypervisor: bool,
    has_svm: bool,
}

impl Core {
    /// The counters that every processor has.
    pub(crate) const LEGACY: Self = Self {
        counters: Family::Legacy,
        family: 0xF,
        model: 0,
        has_hypervisor: false,
        has_svm: false,
    };
}

// SAFETY: (1) four counters are in the legacy registers, which every processor has, and six, or up to 15, in those of the
// core extension, as CPUID declares; (2) they are event selects and counters; no value of them makes the processor write
// to memory.
unsafe impl CounterLayout for Core {
    fn counters(&self) -> CounterSet {
        CounterSet::from_bits((1 << self.counters.counters()) - 1)
    }

    fn general(&self) -> (&'static CounterBank, u8) {
        let bank = match self.counters {
            Family::Legacy => &LEGACY,
            Family::CoreExtension | Family::PerfMonV2 { .. } => &CORE,
        };
        (bank, COUNTER_WIDTH)
    }

    fn global(&self) -> Option<&'static GlobalRegisters> {
        matches!(self.counters, Family::PerfMonV2 { .. }).then_some(&GLOBAL)
    }

    /// Delivery leaves the LVT entry of AMD's local APIC unmasked (APM vol. 2, §16.4.4, has no such side effect). A
    /// hypervisor's APIC may mask it.
    fn is_masked_on_delivery(&self) -> bool {
        self.has_hypervisor
    }
}

impl SelectLayout for Core {
    fn event_bits(&self) -> u64 {
        EVENT_BITS
    }

    fn generic_events(&self) -> (&'static [u64; GenericEvent::COUNT], u8) {
        let (family, model) = (self.family, self.model);
        // From Zen 4 on (these models of family 19h) an event counts cycles of P0's clock.
        let zen_4 = family >= 0x1A || family == 0x19 && matches!(model, 0x10..=0x1F | 0x60..=0xAF);
        let reference_cycles = 1 << GenericEvent::ReferenceCycles as u8;
        let named = match family {
            ..=0x16 => &BEFORE_ZEN,
            0x17..=0x19 => &ZEN,
            0x1A.. => &ZEN_5,
        };
        (named, if zen_4 { u8::MAX } else { !reference_cycles })
    }

    fn merged_events(&self) -> [u16; 2] {
        if self.family >= 0x17 { [SSE_AVX_FLOPS, MERGE] } else { [0; 2] }
    }

    fn guest_bits(&self) -> [u64; 2] {
        if self.has_svm { [GUEST_ONLY, HOST_ONLY] } else { [0; 2] }
    }

    fn runs_no_guests(&self) -> bool {
        !self.has_svm
    }
}

/// The generic events before Zen, in the order of [`GenericEvent`]; caches are those of the second level.
/// Sources: BKDG of families 10h to 16h.
static BEFORE_ZEN: [u64; GenericEvent::COUNT] = [0x76, 0xC0, 0, 0x077D, 0x077E, 0xC2, 0xC3];

/// The generic events of Zen 1 to 4. PPR of families 17h and 19h: PMCx120 (from Zen 4 on), PMCx060, PMCx064.
static ZEN: [u64; GenericEvent::COUNT] = [0x76, 0xC0, 0x1_0000_0120, 0xFF60, 0x0964, 0xC2, 0xC3];

/// The generic events of Zen 5 on. PPR of family 1Ah.
static ZEN_5: [u64; GenericEvent::COUNT] = [0x76, 0xC0, 0x1_0000_0120, 0xF760, 0x0964, 0xC2, 0xC3];

/// Returns the first four of these counters at their legacy addresses; none if there are none.
pub(crate) const fn as_legacy(unit: &CounterUnit) -> CounterUnit {
    // SAFETY: (1) every processor of AMD's that has counters has these; (2) they are event selects and counters.
    unsafe { unit.with_bank(&LEGACY, (1 << LEGACY_COUNTERS) - 1) }
}

static LEGACY: CounterBank = CounterBank {
    select: PERF_LEGACY_CTL0,
    value: PERF_LEGACY_CTR0,
    step: 1,
    indexed: RDPMC_CORE_COUNTERS,
    sign_extended: false,
    counts_every_number: false,
};

static CORE: CounterBank = CounterBank {
    select: PERF_CTL0,
    value: PERF_CTR0,
    step: 2,
    indexed: RDPMC_CORE_COUNTERS,
    sign_extended: false,
    counts_every_number: false,
};

/// The global registers of PerfMonV2.
static GLOBAL: GlobalRegisters = {
    // SAFETY: these say which counters run and which overflowed; none holds an address.
    unsafe {
        GlobalRegisters {
            control: RegisterAddress::new(PERF_CNTR_GLOBAL_CTL),
            status: RegisterAddress::new(PERF_CNTR_GLOBAL_STATUS),
            acknowledge: RegisterAddress::new(PERF_CNTR_GLOBAL_STATUS_CLR),
            stop_while_serviced: false,
            loaded_for_guests: false,
            frozen: STATUS_PMC_FREEZE,
            freeze: None,
        }
    }
};
