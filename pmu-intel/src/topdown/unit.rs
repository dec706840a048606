//! A processor's top-down counters, as the processor declares them.

use core::fmt;
use core::ops::Deref;

use pmu_core::access::{RegisterAccess, RegisterBackend, RegisterUpdate};
use pmu_core::error::{NoFacility, NoInterface};
use pmu_core::registers::{CounterId, EventSelect};
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSet, CounterUnit, Event, EventCount};

use crate::counters::{INTEL, counters};
use crate::cpuid::is_among;
use crate::registers::{IA32_PERF_CAPABILITIES, PERF_METRICS_AVAILABLE};
use crate::topdown::TopDownCounts;

/// Number of the fixed counter that counts issue slots.
pub(crate) const SLOTS: u8 = 3;

/// Description of a processor's top-down counters:
/// - On a P-core, fixed counter 3 counts issue slots, and `MSR_PERF_METRICS` has each
///   [part](crate::topdown::TopDownPart)'s share of these slots.
/// - On an E-core, fixed counters 4 to 6 and one general counter count one part each. If one of these fixed counters is
///   not in the session, a general counter counts the part.
///
/// ```
/// # use pmu_core::x86::Snapshot;
/// # use pmu_core::error::NoFacility;
/// # use pmu_core::access::RegisterBackend;
/// use pmu_intel::topdown::TopDownUnit;
/// /// The processor that executes the call: on a hybrid machine, the types of core differ.
/// fn levels<M: RegisterBackend>(this_processor: &Snapshot, msr: &M) -> Result<u8, NoFacility> {
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
    Metrics { level_2: bool },
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
    pub fn of<M: RegisterBackend>(processor: &Snapshot, msr: &M) -> Result<Self, NoFacility> {
        let unit = counters(processor);
        if let Some(why) = unit.why_absent() {
            return Err(NoFacility::NoCounters(why));
        }
        if processor.vendor() != INTEL {
            return Err(NoFacility::NoCounters(NoInterface::OtherVendor(processor.vendor())));
        }
        let slots = CounterId::fixed(SLOTS).and_then(|slots| unit.counter(slots));
        // SDM vol. 2A, CPUID leaf 1, ECX bit 15, PDCM: there is IA32_PERF_CAPABILITIES.
        let declares = processor.leaf(1, 0).ecx >> 15 & 1 != 0 && unit.core_type() >> 24 != ATOM;
        if declares
            && slots.is_some()
            && unit.global().is_some()
            && read_capabilities(msr)? & PERF_METRICS_AVAILABLE != 0
        {
            let level_2 = processor.family() != 6 || !is_among(processor.model(), &LEVEL_1_ALONE);
            return Ok(Self { processor: unit, kind: Kind::Metrics { level_2 } });
        }
        if PART_COUNTERS.without(unit.counters()).is_empty() {
            return Ok(Self { processor: unit, kind: Kind::Counts });
        }
        Err(NoFacility::NotDeclared)
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

    /// Returns the description of the processor's counters.
    pub const fn counters(&self) -> &CounterUnit {
        &self.processor
    }

    /// Returns the number of parts that the metrics have.
    pub(crate) const fn metrics(&self) -> u8 {
        match self.kind {
            Kind::Metrics { level_2: true } => 8,
            Kind::Metrics { level_2: false } => 4,
            Kind::Counts => 0,
        }
    }

    /// Returns the events of the issue slots, to be opened as one group:
    /// - On a P-core, the slots, and then the [parts](Event::part) in the order of
    ///   [`LEVEL_1`](crate::topdown::TopDownPart::LEVEL_1) and [`LEVEL_2`](crate::topdown::TopDownPart::LEVEL_2). They
    ///   take one counter, and are counted by a session whose event source has the facility
    ///   [`TopDown`](crate::topdown::TopDown).
    /// - On an E-core, the parts of level 1, which are ordinary events. They take four counters of any session. A part
    ///   whose fixed counter is not among `usable` has a general counter: on a hybrid machine, a session has only
    ///   counters that the first processor has, too.
    ///
    /// Each event counts on this type of core alone. To count a thread on both types of core, open a group of each.
    pub fn events(&self, usable: CounterSet) -> TopDownEvents {
        let none = Event::part(0);
        let mut all = TopDownEvents { events: [none; TopDownEvents::MAX], len: 0 };
        if self.has_metrics() {
            all.push(Event::raw(EventSelect::from_bits(u64::from(SLOTS + 1) << 8)));
            (0..self.metrics()).for_each(|part| all.push(Event::part(part)));
            return all;
        }
        for (select, fixed) in PARTS {
            let is_there = |fixed: &u8| CounterSet::fixed(1 << fixed).without(usable).is_empty();
            all.push(match fixed.filter(is_there) {
                Some(number) => {
                    let event = Event::raw(EventSelect::from_bits(u64::from(number + 1) << 8));
                    event.on(CounterSet::fixed(1 << number))
                }
                None => Event::raw(EventSelect::from_bits(select)).on(CounterSet::GENERAL),
            });
        }
        all
    }

    /// Returns the top-down counts that the counts of the [events](Self::events) stand for, in the group's order.
    pub fn counts(&self, counts: &[EventCount]) -> TopDownCounts {
        let value = |number: usize| counts.get(number).map_or(0, |count| count.value);
        match self.kind {
            Kind::Metrics { level_2 } => {
                TopDownCounts::of_parts(value(0), level_2, |part| value(part + 1))
            }
            Kind::Counts => TopDownCounts::of_counts([0, 1, 2, 3].map(value)),
        }
    }
}

/// The events of a processor's issue slots: see [`TopDownUnit::events`].
///
/// ```
/// use pmu_core::{CounterSession, EventId, EventSource, Hardware};
/// use pmu_core::error::EventsError;
/// use pmu_intel::topdown::TopDownUnit;
/// /// Opens the issue slots of user mode, which take turns with other groups.
/// fn open<S: EventSource, H: Hardware>(
///     counters: &mut CounterSession<'_, S, H>,
///     unit: &TopDownUnit,
/// ) -> Result<EventId, EventsError> {
///     let events = unit.events(counters.counters().usable);
///     counters.open(unit.counters(), &events.each(|event| event.user_only().rotating()))
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TopDownEvents {
    events: [Event; TopDownEvents::MAX],
    len: u8,
}

impl TopDownEvents {
    /// Number of events of a processor with both levels, which has the most.
    pub const MAX: usize = 9;

    /// Changes each of the events: their privilege levels, which are the same for all, their tags, or their turns.
    #[must_use]
    pub fn each(mut self, change: impl FnMut(Event) -> Event) -> Self {
        self.events = self.events.map(change);
        self
    }

    fn push(&mut self, event: Event) {
        if let Some(place) = self.events.get_mut(usize::from(self.len)) {
            *place = event;
            self.len += 1;
        }
    }
}

impl Deref for TopDownEvents {
    type Target = [Event];

    fn deref(&self) -> &[Event] {
        self.events.get(..usize::from(self.len)).unwrap_or_default()
    }
}

fn read_capabilities<M: RegisterBackend>(msr: &M) -> Result<u64, NoFacility> {
    msr.update_retrying(RegisterUpdate::read(IA32_PERF_CAPABILITIES)).map_err(NoFacility::Access)
}

/// One part of a processor's issue slots. Each slot belongs to exactly one of the four parts of level 1. Each part of
/// level 2 belongs to one part of level 1. [`TopDownCounts`](crate::topdown::TopDownCounts) describes how exact each
/// part's count is.
///
/// Source: A. Yasin, "A Top-Down Method for Performance Analysis and Counters Architecture", ISPASS 2014; Intel SDM
/// vol. 3B, "Performance Metrics".
///
/// ```
/// use pmu_intel::topdown::TopDownPart;
/// assert_eq!(TopDownPart::LEVEL_1.map(|part| part.parent()), [None; 4]);
/// assert_eq!(TopDownPart::MemoryBound.parent(), Some(TopDownPart::BackendBound));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum TopDownPart {
    /// Slots with operations that retired.
    Retiring,
    /// Slots that were lost to operations that did not retire, or to the recovery from wrong speculation.
    BadSpeculation,
    /// Slots that stayed empty because the front end delivered too few operations.
    FrontendBound,
    /// Slots that stayed empty because the back end could not accept operations.
    BackendBound,
    /// Slots of instructions that need many operations: the part of [`Retiring`](Self::Retiring) at level 2.
    HeavyOperations,
    /// Slots that were lost to mispredicted branches: the part of [`BadSpeculation`](Self::BadSpeculation) at level 2.
    BranchMispredicts,
    /// Slots of cycles in which the front end delivered no operation: the part of
    /// [`FrontendBound`](Self::FrontendBound) at level 2.
    FetchLatency,
    /// Slots that were lost because the back end waited for memory: the part of [`BackendBound`](Self::BackendBound) at
    /// level 2.
    MemoryBound,
}

impl TopDownPart {
    /// The parts of level 1, in the order of their bytes in `MSR_PERF_METRICS`.
    pub const LEVEL_1: [Self; 4] =
        [Self::Retiring, Self::BadSpeculation, Self::FrontendBound, Self::BackendBound];

    /// The parts of level 2, in the order of their bytes in `MSR_PERF_METRICS`.
    pub const LEVEL_2: [Self; 4] =
        [Self::HeavyOperations, Self::BranchMispredicts, Self::FetchLatency, Self::MemoryBound];

    /// Returns the part of level 1 to which a part of level 2 belongs; `None` for a part of level 1.
    ///
    /// ```
    /// use pmu_intel::topdown::TopDownPart;
    /// assert_eq!(TopDownPart::MemoryBound.parent(), Some(TopDownPart::BackendBound));
    /// assert_eq!(TopDownPart::BackendBound.parent(), None);
    /// ```
    pub fn parent(self) -> Option<Self> {
        (self as usize).checked_sub(4).and_then(|byte| Self::LEVEL_1.get(byte)).copied()
    }
}

impl fmt::Display for TopDownPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Retiring => "retiring",
            Self::BadSpeculation => "bad speculation",
            Self::FrontendBound => "front-end bound",
            Self::BackendBound => "back-end bound",
            Self::HeavyOperations => "heavy operations",
            Self::BranchMispredicts => "branch mispredicts",
            Self::FetchLatency => "fetch latency",
            Self::MemoryBound => "memory bound",
        })
    }
}
