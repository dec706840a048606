//! A processor's top-down counters, as the processor declares them.

use pmu_core::{
    Counter, CounterId, CounterSet, CounterUnit, Event, EventSelect, GlobalRegisters, MsrAccess,
    MsrBackend, MsrUpdate, NoInterface, Snapshot,
};

use crate::counters::{INTEL, counters};
use crate::registers::{IA32_PERF_CAPABILITIES, PERF_METRICS_AVAILABLE};
use crate::topdown::error::NoTopDown;
use crate::topdown::filter::TopDownFilter;

/// Number of the fixed counter that counts issue slots.
pub(crate) const SLOTS: u8 = 3;

/// Description of a processor's top-down counters:
/// - On a P-core, fixed counter 3 counts issue slots, and `MSR_PERF_METRICS` has each
///   [part](crate::topdown::TopDownPart)'s share of these slots.
/// - On an E-core, fixed counters 4 to 6 and one general counter count one part each. If one of these fixed counters is
///   not in the session, a general counter counts the part.
///
/// ```
/// # use pmu_core::{MsrBackend, Snapshot};
/// use pmu_intel::topdown::{NoTopDown, TopDownUnit};
/// /// The processor that executes the call: on a hybrid machine, the types of core differ.
/// fn levels<M: MsrBackend>(this_processor: &Snapshot, msr: &M) -> Result<u8, NoTopDown> {
///     Ok(if TopDownUnit::of(this_processor, msr)?.has_level_2() { 2 } else { 1 })
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct TopDownUnit {
    pub(crate) processor: CounterUnit,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) enum Kind {
    /// The slots' counter and the metrics.
    Metrics { slots: Counter, global: &'static GlobalRegisters, level_2: bool },
    /// A counter of each part.
    Counts,
}

/// Models of family 6 whose metrics have level 1 alone: Ice Lake, Tiger Lake, Rocket Lake, Lakefield. (Linux perf; SDM
/// vol. 4, `MSR_PERF_METRICS`, has level 2 from Sapphire Rapids and Alder Lake on.)
const LEVEL_1_ALONE: [u8; 8] = [0x6A, 0x6C, 0x7D, 0x7E, 0x8A, 0x8C, 0x8D, 0xA7];

/// The fixed counters of an E-core's parts: bad speculation, front-end bound, retiring.
const PART_COUNTERS: CounterSet = CounterSet::fixed(0b111 << 4);

/// The type of core of leaf 0x1A, EAX 31:24, that is an E-core (SDM vol. 2A, CPUID).
const ATOM: u32 = 0x20;

/// Selects of an E-core's parts on general counters, and the fixed counters of the same parts, in the order of the
/// parts of level 1. These are the architectural events "Topdown Retiring", "Topdown Bad Speculation", "Topdown
/// Frontend Bound" and "Topdown Backend Bound" (SDM vol. 3B, "Pre-Defined Architectural Performance Events").
const PARTS: [(u64, Option<u8>); 4] =
    [(0x02C2, Some(6)), (0x0073, Some(4)), (0x019C, Some(5)), (0x02A4, None)];

impl TopDownUnit {
    /// Detects the top-down counters of the processor that executes the call. `processor` describes this processor.
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// Returns the reason why the processor has no top-down counters that this crate supports.
    pub fn of<M: MsrBackend>(processor: &Snapshot, msr: &M) -> Result<Self, NoTopDown> {
        let unit = counters(processor).map_err(NoTopDown::NoCounters)?;
        if processor.vendor() != INTEL {
            return Err(NoTopDown::NoCounters(NoInterface::OtherVendor(processor.vendor())));
        }
        let slots = CounterId::fixed(SLOTS).and_then(|slots| unit.counter(slots));
        // SDM vol. 2A, CPUID leaf 1, ECX bit 15, PDCM: there is IA32_PERF_CAPABILITIES.
        let declares = processor.leaf(1, 0).ecx >> 15 & 1 != 0 && unit.core_type() >> 24 != ATOM;
        if declares
            && let (Some(slots), Some(global)) = (slots, unit.global())
            && read_capabilities(msr)? & PERF_METRICS_AVAILABLE != 0
        {
            let level_2 = processor.family() != 6 || !LEVEL_1_ALONE.contains(&processor.model());
            return Ok(Self { processor: unit, kind: Kind::Metrics { slots, global, level_2 } });
        }
        if PART_COUNTERS.without(unit.counters()).is_empty() {
            return Ok(Self { processor: unit, kind: Kind::Counts });
        }
        Err(NoTopDown::NotDeclared)
    }

    /// Returns whether this processor's top-down counts have the parts of level 2.
    pub const fn has_level_2(&self) -> bool {
        matches!(self.kind, Kind::Metrics { level_2: true, .. })
    }

    /// Returns whether the processor has `MSR_PERF_METRICS`, which has each part's fraction of all issue slots. Without
    /// this register, one counter per part counts the part's slots.
    pub const fn has_metrics(&self) -> bool {
        matches!(self.kind, Kind::Metrics { .. })
    }

    /// Returns the events that an E-core counts, in the order of the parts of level 1. A part whose fixed counter is
    /// not among `usable` has a general counter: on a hybrid machine, a session has only counters that the first
    /// processor has, too.
    pub(crate) fn events(&self, filter: TopDownFilter, usable: CounterSet) -> [Event; 4] {
        PARTS.map(|(select, fixed)| {
            let fixed =
                fixed.filter(|fixed| CounterSet::fixed(1 << fixed).without(usable).is_empty());
            let event = match fixed {
                Some(number) => {
                    let event = Event::raw(EventSelect::from_bits(u64::from(number + 1) << 8));
                    event.on(CounterSet::fixed(1 << number))
                }
                None => Event::raw(EventSelect::from_bits(select)).on(CounterSet::GENERAL),
            };
            match (filter.user, filter.kernel) {
                (true, false) => event.user_only(),
                (false, true) => event.kernel_only(),
                _ => event,
            }
        })
    }
}

fn read_capabilities<M: MsrBackend>(msr: &M) -> Result<u64, NoTopDown> {
    msr.update_retrying(MsrUpdate::read(IA32_PERF_CAPABILITIES)).map_err(NoTopDown::Access)
}
