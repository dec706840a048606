//! The identification registers, and the counters that they declare.

use pmu_core::access::RegisterAddress;
use pmu_core::error::NoInterface;
use pmu_core::registers::{
    CounterBank, CounterLayout, FixedCounters, GlobalRegisters, MAX_FIXED, SelectLayout,
};
use pmu_core::{CounterSet, CounterUnit, GenericEvent};

use crate::backend::{AT_EL2, CHAINED, LONG, Select};
use crate::registers::{CHAIN, DebugFeatures, EVENT_COUNTERS, Mdcr, Pmcr, Pmmir, Register};
use crate::sources::{
    BR_MIS_PRED, BR_MIS_PRED_RETIRED, BR_PRED, BR_RETIRED, CNT_CYCLES, CPU_CYCLES, INST_RETIRED,
    LL_CACHE, LL_CACHE_MISS, LL_CACHE_MISS_RD, LL_CACHE_RD,
};

/// The registers by which a processor declares its counters, as plain values: a test, or a kernel with register
/// accesses of its own, fills them in. `NativeRegisters::identify` (feature `native`) reads them.
///
/// ```
/// use pmu_arm::Identification;
/// // Neoverse N1 in QEMU, with the kernel at EL1.
/// let processor = Identification {
///     id_aa64dfr0_el1: 0x1_1030_5408,
///     pmcr_el0: 0x4103_3000,
///     pmceid0_el0: 0x0002_0101,
///     ..Identification::NONE
/// };
/// assert_eq!((processor.version(), processor.event_counters()), (4, 6));
/// assert!(processor.has_event(0x08) && !processor.has_event(0x21)); // INST_RETIRED, and no BR_RETIRED
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Identification {
    /// `ID_AA64DFR0_EL1`.
    pub id_aa64dfr0_el1: u64,
    /// `PMCR_EL0`.
    pub pmcr_el0: u64,
    /// `PMCEID0_EL0`.
    pub pmceid0_el0: u64,
    /// `PMCEID1_EL0`.
    pub pmceid1_el0: u64,
    /// `PMMIR_EL1`; 0 before FEAT_PMUv3p4, where the register does not exist.
    pub pmmir_el1: u64,
    /// `MDCR_EL2` of a kernel at EL2; `None` of a kernel at EL1.
    pub mdcr_el2: Option<u64>,
}

/// PMUVer: an implementation defined extension, which has none of the registers.
const IMPLEMENTATION_DEFINED: u8 = 0xF;

// PMUVer from which on a feature is mandatory, or possible.
const V3P1: u8 = 4;
const V3P4: u8 = 5;
const V3P5: u8 = 6;
const V3P8: u8 = 8;

impl Identification {
    /// A processor that declares nothing.
    pub const NONE: Self = Self {
        id_aa64dfr0_el1: 0,
        pmcr_el0: 0,
        pmceid0_el0: 0,
        pmceid1_el0: 0,
        pmmir_el1: 0,
        mdcr_el2: None,
    };

    /// Returns `ID_AA64DFR0_EL1.PMUVer`: 1 for Armv8.0, 4 for 8.1, 5 for 8.4, 6 for 8.5, 7 for 8.7, 8 for 8.8, 9 for
    /// 8.9. 0 stands for no counters, and 0xF for counters that the architecture does not define.
    pub const fn version(&self) -> u8 {
        DebugFeatures::from_bits(self.id_aa64dfr0_el1).pmu_version()
    }

    /// Returns whether the processor has the registers of PMUv3, in any version.
    pub const fn has_counters(&self) -> bool {
        !matches!(self.version(), 0 | IMPLEMENTATION_DEFINED)
    }

    /// Returns the number of event counters that the kernel can use, of the [first 16](EVENT_COUNTERS). On a kernel at
    /// EL2, these are the counters below `MDCR_EL2.HPMN`: `PMCR_EL0.E` does not enable the others.
    ///
    /// ```
    /// # use pmu_arm::Identification;
    /// let guest = Identification { id_aa64dfr0_el1: 0x100, pmcr_el0: 6 << 11, ..Identification::NONE };
    /// let host = Identification { mdcr_el2: Some(4), ..guest }; // two counters are enabled by MDCR_EL2.HPME
    /// assert_eq!([guest.event_counters(), host.event_counters()], [6, 4]);
    /// ```
    pub const fn event_counters(&self) -> usize {
        let declared = Pmcr::from_bits(self.pmcr_el0).event_counters();
        let usable = match self.mdcr_el2 {
            Some(mdcr) => Mdcr::from_bits(mdcr).guest_counters(),
            None => declared,
        };
        let count = if usable < declared { usable } else { declared } as usize;
        if count < EVENT_COUNTERS { count } else { EVENT_COUNTERS }
    }

    /// Returns whether the event counters have 64 bits (FEAT_PMUv3p5). They have 32 bits otherwise.
    pub const fn has_long_counters(&self) -> bool {
        self.has_counters() && self.version() >= V3P5
    }

    /// Returns whether the processor has `PMMIR_EL1` (FEAT_PMUv3p4).
    pub const fn has_pmmir(&self) -> bool {
        self.has_counters() && self.version() >= V3P4
    }

    /// Returns whether an event's number can have 16 bits (FEAT_PMUv3p1). It has ten bits otherwise.
    pub(crate) const fn has_long_numbers(&self) -> bool {
        self.version() >= V3P1
    }

    /// Returns the number of bits of an event's threshold (FEAT_PMUv3_TH); 0: there are no thresholds.
    pub(crate) const fn threshold_width(&self) -> u8 {
        if self.version() < V3P8 { 0 } else { Pmmir::from_bits(self.pmmir_el1).threshold_width() }
    }

    /// Returns whether `PMCEID0_EL0` and `PMCEID1_EL0` declare a common event. They have bits for the numbers 0 to 0x3F
    /// and 0x4000 to 0x403F. For any other number, the result is `false`.
    ///
    /// ```
    /// # use pmu_arm::Identification;
    /// /// Returns the best event of cache misses that a processor declares: LL_CACHE_MISS_RD, or L2D_CACHE_REFILL.
    /// fn misses(processor: &Identification) -> Option<u16> {
    ///     [0x37, 0x17].into_iter().find(|number| processor.has_event(*number))
    /// }
    /// # assert_eq!(misses(&Identification::NONE), None);
    /// ```
    pub const fn has_event(&self, number: u16) -> bool {
        let word = if number & 0x20 == 0 { self.pmceid0_el0 } else { self.pmceid1_el0 };
        let half = match number {
            0..0x40 => word,
            0x4000..0x4040 if self.has_long_numbers() => word >> 32,
            _ => 0,
        };
        self.has_counters() && half >> (number & 0x1F) & 1 != 0
    }
}

/// Detects the counters of a processor with PMUv3: event counters, and the cycle counter as fixed counter 0.
///
/// An event's number is in bits 15:0 of its select. If the processor has FEAT_PMUv3_TH, bits 31:24 are a threshold: the
/// event counts the cycles in which it happens at least as often, or less often if bit 23 is set. `processor` also says
/// at which exception level the kernel runs. On a kernel at EL2, events at kernel privilege are those at EL2 and EL1.
///
/// ```
/// use pmu_arm::Identification;
/// use pmu_core::GenericEvent;
/// use pmu_core::registers::CounterId;
/// # let processor = Identification {
/// #     id_aa64dfr0_el1: 0x1_1030_5408, pmcr_el0: 0x4103_3000, pmceid0_el0: 0x0002_0101, ..Identification::NONE
/// # };
/// let unit = pmu_arm::counters(&processor); // Neoverse N1
/// assert_eq!(unit.counters().len(), 6 + 1);
/// let width = |counter: Option<CounterId>| unit.counter(counter?).map(|counter| counter.width());
/// assert_eq!(width(CounterId::general(0)), Some(32));
/// assert_eq!(width(CounterId::fixed(0)), Some(64)); // the cycle counter
/// assert_eq!(unit.generic(GenericEvent::Instructions).unwrap().event_number(), 0x08);
/// ```
///
/// The counters are [absent](CounterUnit::why_absent) if the processor has no PMUv3, or has counters that the
/// architecture does not define.
pub fn counters(processor: &Identification) -> CounterUnit {
    unit(processor, false)
}

/// Detects the counters of a processor like [`counters`], but takes each two event counters of 32 bits as one of 64, of
/// which the second counts the overflows of the first (the event CHAIN): general counter *n* is event counter 2*n* with
/// 2*n* + 1. So an event is counted across 2³² without an interrupt, and a longer period interrupts once; but only half
/// as many events are counted at the same time, and user mode reads none but the cycle counter. On a processor whose
/// counters have 64 bits, or which does not declare the event, the result is that of `counters`; on a machine with
/// processors of both kinds, the others have no counters.
///
/// ```
/// use pmu_arm::Identification;
/// use pmu_core::registers::CounterId;
/// # let processor = Identification {
/// #     id_aa64dfr0_el1: 0x1_1030_5408, pmcr_el0: 0x4103_3000, pmceid0_el0: 0x4002_0101, ..Identification::NONE
/// # };
/// let unit = pmu_arm::chained_counters(&processor); // Neoverse N1
/// assert_eq!(unit.counters().len(), 3 + 1);
/// let width = |counter: Option<CounterId>| unit.counter(counter?).map(|counter| counter.width());
/// assert_eq!(width(CounterId::general(0)), Some(64));
/// ```
pub fn chained_counters(processor: &Identification) -> CounterUnit {
    unit(processor, true)
}

/// Returns the counters of a processor; in pairs, if that is asked for and makes a difference.
pub(crate) fn unit(processor: &Identification, chained: bool) -> CounterUnit {
    if !processor.has_counters() {
        return CounterUnit::absent(NoInterface::NoPerformanceMonitoring);
    }
    let is_long = processor.has_long_counters();
    let chained = chained && !is_long && processor.has_event(CHAIN);
    CounterUnit::of(&Counters { processor, is_long, chained })
}

/// A processor's counters, one by one or in pairs.
struct Counters<'a> {
    processor: &'a Identification,
    is_long: bool,
    chained: bool,
}

// SAFETY: the backend makes event types and filters of the selects and of the control, and no value of any register of
// the counters makes the processor access memory.
unsafe impl CounterLayout for Counters<'_> {
    fn counters(&self) -> CounterSet {
        let events = self.processor.event_counters() / if self.chained { 2 } else { 1 };
        CounterSet::from_bits((1 << events) - 1) | CounterSet::fixed(1)
    }

    fn general(&self) -> (&'static CounterBank, u8) {
        let banks = if self.processor.mdcr_el2.is_none() { &BANKS } else { &BANKS_AT_EL2 };
        let width = if self.is_long || self.chained { 64 } else { 32 };
        (&banks[usize::from(self.chained)], width)
    }

    fn fixed(&self) -> Option<(&'static FixedCounters, u8)> {
        Some((if self.processor.mdcr_el2.is_none() { &FIXED } else { &FIXED_AT_EL2 }, 64))
    }

    fn global(&self) -> Option<&'static GlobalRegisters> {
        Some(match (self.is_long, self.chained) {
            (true, _) => &GLOBAL_LONG,
            (false, true) => &GLOBAL_CHAINED,
            (false, false) => &GLOBAL,
        })
    }
}

impl SelectLayout for Counters<'_> {
    fn event_bits(&self) -> u64 {
        let numbers = if self.processor.has_long_numbers() { 0xFFFF } else { 0x3FF };
        // The select has eight bits for the threshold.
        let threshold = match self.processor.threshold_width() {
            0 => Select::new(),
            width @ 1..8 => Select::new().with_threshold((1 << width) - 1).with_below(true),
            _ => Select::new().with_threshold(0xFF).with_below(true),
        };
        numbers | threshold.with_user(true).with_kernel(true).into_bits()
    }

    /// Branches and mispredictions are either both those of retired instructions, or both speculative; and cache
    /// references and misses either both reads, or both reads and writes: so a ratio of the two means something.
    fn generic_events(&self) -> (&'static [u64; GenericEvent::COUNT], u8) {
        let has = |number| self.processor.has_event(number);
        let has_both = |[one, other]: [u16; 2]| has(one) && has(other);
        let reads = has_both([LL_CACHE_RD, LL_CACHE_MISS_RD]);
        let retired = has_both([BR_RETIRED, BR_MIS_PRED_RETIRED]);
        let named = &NAMED[usize::from(reads)][usize::from(retired)];
        let bit = |(event, number): (usize, &u64)| u8::from(has(*number as u16)) << event;
        (named, named.iter().enumerate().map(bit).fold(0, |bits, bit| bits | bit))
    }

    fn runs_no_guests(&self) -> bool {
        self.processor.mdcr_el2.is_none()
    }
}

/// The generic events in the order of `GenericEvent`, by whether caches' events are of reads alone, and whether
/// branches' events are of retired instructions.
static NAMED: [[[u64; GenericEvent::COUNT]; 2]; 2] = {
    const fn named(caches: [u16; 2], branches: [u16; 2]) -> [u64; GenericEvent::COUNT] {
        let [[reference, miss], [branch, mispredicted]] = [caches, branches];
        [
            CPU_CYCLES as u64,
            INST_RETIRED as u64,
            CNT_CYCLES as u64,
            reference as u64,
            miss as u64,
            branch as u64,
            mispredicted as u64,
        ]
    }
    let (all, reads) = ([LL_CACHE, LL_CACHE_MISS], [LL_CACHE_RD, LL_CACHE_MISS_RD]);
    let (predicted, retired) = ([BR_PRED, BR_MIS_PRED], [BR_RETIRED, BR_MIS_PRED_RETIRED]);
    [[named(all, predicted), named(all, retired)], [named(reads, predicted), named(reads, retired)]]
};

/// Returns the event counters one by one, and in pairs.
const fn banks(level: u32) -> [CounterBank; 2] {
    let single = CounterBank {
        select: Register::Pmevtyper0 as u32 | level,
        value: Register::Pmevcntr0 as u32,
        // Op2 and the lowest bits of CRm are the counter's number.
        step: 1,
        indexed: EVENT_COUNTERS as u8,
        sign_extended: false,
        // SW_INCR is number 0, and SIMD_INST_RETIRED 0x8000.
        counts_every_number: true,
    };
    let pairs = CounterBank {
        select: single.select | CHAINED,
        value: single.value | CHAINED,
        step: 2,
        // One read has a half.
        indexed: 0,
        ..single
    };
    [single, pairs]
}

static BANKS: [CounterBank; 2] = banks(0);
static BANKS_AT_EL2: [CounterBank; 2] = banks(AT_EL2);

const fn fixed(level: u32) -> FixedCounters {
    let mut events = [0; MAX_FIXED];
    events[0] = CPU_CYCLES;
    FixedCounters {
        control: Register::Pmccfiltr as u32 | level,
        value: Register::Pmccntr as u32,
        step: 1,
        events,
    }
}

static FIXED: FixedCounters = fixed(0);
static FIXED_AT_EL2: FixedCounters = fixed(AT_EL2);

const fn global(width: u32) -> GlobalRegisters {
    // SAFETY: these say which counters count and which have overflowed; none holds an address.
    unsafe {
        GlobalRegisters {
            control: RegisterAddress::new(Register::Pmcntenset as u32 | width),
            // Its value is the status, and a write of 1 clears a bit.
            status: RegisterAddress::new(Register::Pmovsclr as u32 | width & CHAINED),
            acknowledge: RegisterAddress::new(Register::Pmovsclr as u32 | width & CHAINED),
            stop_while_serviced: false,
            loaded_for_guests: false,
            frozen: 0,
            freeze: None,
        }
    }
}

static GLOBAL: GlobalRegisters = global(0);
static GLOBAL_LONG: GlobalRegisters = global(LONG);
static GLOBAL_CHAINED: GlobalRegisters = global(CHAINED);
