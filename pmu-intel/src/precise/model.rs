//! Properties of precise records by processor model. No register or CPUID leaf declares these properties.

use pmu_core::CounterSet;
use pmu_core::precise::Precision;
use pmu_core::registers::EventSelect;
use pmu_core::x86::Snapshot;

use crate::cpuid::is_among;
use crate::precise::source::SourceEncoding;

/// The event by which loads of a given latency are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) struct LatencyEvent {
    /// Event number and unit mask.
    pub(crate) event: u16,
    /// The counters that can count it.
    pub(crate) counters: CounterSet,
    /// The event that has to be counted beside it; 0: none.
    pub(crate) beside: u16,
}

/// Properties of the records of some models of a family.
#[derive(Debug)]
pub(crate) struct Model {
    family: u16,
    models: &'static [u8],
    /// The core is an efficient one. A hybrid processor has cores of two kinds with one model number.
    efficient: bool,
    /// The counters that write records, before every counter does; of the general ones.
    pub(crate) counters: u8,
    /// The events of which the processor writes records, as event number and unit mask; empty: of every event.
    pub(crate) events: &'static [PreciseSelect],
    /// The counters whose records are of the very instruction that overflows.
    pub(crate) exact: CounterSet,
    /// The only event of which `exact` is true; 0: of every event.
    pub(crate) exact_event: u16,
    /// The events that are recorded in place of cycles, which have no records of their own; 0: none. The second one is
    /// for precision 3.
    cycles: [u16; 2],
    pub(crate) sources: SourceEncoding,
    /// Event number of load latencies; 0: none.
    latency: u16,
    latency_counters: u16,
    latency_beside: u16,
    /// A buffer above one page hangs the processor.
    pub(crate) one_page: bool,
    /// The latency word of a record has two latencies.
    pub(crate) two_latencies: bool,
}

/// An event of a model's list: a number, and a unit mask or all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreciseSelect {
    event: u8,
    unit_mask: Option<u8>,
}

const fn all(event: u8) -> PreciseSelect {
    PreciseSelect { event, unit_mask: None }
}

const fn only(event: u8, unit_mask: u8) -> PreciseSelect {
    PreciseSelect { event, unit_mask: Some(unit_mask) }
}

const UNKNOWN: Model = Model {
    family: 6,
    models: &[],
    efficient: false,
    counters: 0b1111,
    events: &[],
    exact: CounterSet::NONE,
    exact_event: 0,
    cycles: [0; 2],
    sources: SourceEncoding::Unknown,
    latency: 0,
    latency_counters: 0,
    latency_beside: 0,
    one_page: false,
    two_latencies: false,
};

/// Clovertown and the other processors of model 0Fh, whose records are unusable (as in Linux perf).
pub(crate) const MEROM: u8 = 0x0F;

/// P-cores from Golden Cove on. The counters of the latency event are those that all of them have.
const PERFORMANCE: Model = Model {
    // General counter 0 and fixed counter 0.
    exact: CounterSet::from_bits(1 << 32 | 1),
    latency: 0x01CD,
    latency_counters: 0xFC,
    two_latencies: true,
    ..UNKNOWN
};

/// Golden Cove, Redwood Cove: counters 1 to 7 count load latencies (Intel's event lists, as Linux perf).
const GOLDEN_COVE: Model =
    Model { sources: SourceEncoding::Skylake, latency_counters: 0xFE, ..PERFORMANCE };

/// E-cores from Tremont on.
const EFFICIENT: Model =
    Model { efficient: true, exact: CounterSet::from_bits(1 << 32 | 1), ..UNKNOWN };

/// E-cores from Gracemont on: `MEM_UOPS_RETIRED.LOAD_LATENCY`.
const GRACEMONT: Model = Model {
    sources: SourceEncoding::Gracemont,
    latency: 0x05D0,
    latency_counters: 0b11,
    two_latencies: true,
    ..EFFICIENT
};

/// Panther Cove and Coyote Cove.
const PANTHER_COVE: Model = Model { sources: SourceEncoding::PantherCove, ..PERFORMANCE };

/// INST_RETIRED.ANY_P.
const INSTRUCTIONS: u16 = 0x00C0;

/// INST_RETIRED.PREC_DIST of Sandy Bridge to Cascade Lake, which counter 1 counts.
const PREC_DIST: u16 = 0x01C0;

/// UOPS_RETIRED.ALL of Sandy Bridge to Broadwell.
const UOPS: u16 = 0x01C2;

/// INV, and a counter mask of 16: the cycles in which fewer than 16 retire. These are all cycles.
const FEWER_THAN_16: u64 = 1 << 23 | 16 << 24;

static MODELS: [Model; 21] = [
    // Core 2.
    Model {
        models: &[0x16, 0x17, 0x1D],
        counters: 0b1,
        events: &[only(0xC0, 0), only(0xC1, 0xFE), only(0xC5, 0), only(0xC7, 0x1F), all(0xCB)],
        cycles: [INSTRUCTIONS, 0],
        one_page: true,
        ..UNKNOWN
    },
    // Bonnell.
    Model {
        models: &[0x1C, 0x26, 0x27, 0x35, 0x36],
        counters: 0b1,
        events: &[only(0xC0, 0), only(0xC5, 0), all(0xCB)],
        cycles: [INSTRUCTIONS, 0],
        ..UNKNOWN
    },
    // Silvermont, Airmont, Knights Landing and Knights Mill.
    Model {
        models: &[0x37, 0x4A, 0x4D, 0x5D, 0x4C, 0x5A, 0x75, 0x57, 0x85],
        counters: 0b1,
        cycles: [INSTRUCTIONS, 0],
        ..UNKNOWN
    },
    // Goldmont.
    Model { models: &[0x5C, 0x5F], counters: 0b1, ..UNKNOWN },
    // Nehalem.
    Model {
        models: &[0x1A, 0x1E, 0x1F, 0x2E],
        events: &[
            all(0x0B),
            all(0x0F),
            only(0x0C, 0x01),
            all(0xC0),
            all(0xC2),
            all(0xC4),
            only(0xC5, 0x02),
            all(0xC7),
            only(0xC8, 0x20),
            all(0xCB),
            all(0xF7),
        ],
        cycles: [INSTRUCTIONS, 0],
        sources: SourceEncoding::Nehalem,
        latency: 0x100B,
        latency_counters: 0b1111,
        ..UNKNOWN
    },
    // Westmere.
    Model {
        models: &[0x25, 0x2C, 0x2F],
        events: &[
            all(0x0B),
            all(0x0F),
            only(0x0C, 0x01),
            all(0xC0),
            all(0xC2),
            all(0xC4),
            all(0xC5),
            all(0xC7),
            only(0xC8, 0x20),
            all(0xCB),
            all(0xF7),
        ],
        cycles: [INSTRUCTIONS, 0],
        sources: SourceEncoding::Nehalem,
        latency: 0x100B,
        latency_counters: 0b1111,
        ..UNKNOWN
    },
    // Sandy Bridge.
    Model {
        models: &[0x2A, 0x2D],
        exact: CounterSet::from_bits(0b10),
        exact_event: PREC_DIST,
        cycles: [UOPS, 0],
        sources: SourceEncoding::SandyBridge,
        latency: 0x01CD,
        latency_counters: 0b1000,
        ..UNKNOWN
    },
    // Ivy Bridge.
    Model {
        models: &[0x3A, 0x3E],
        exact: CounterSet::from_bits(0b10),
        exact_event: PREC_DIST,
        cycles: [UOPS, PREC_DIST],
        sources: SourceEncoding::SandyBridge,
        latency: 0x01CD,
        latency_counters: 0b1000,
        ..UNKNOWN
    },
    // Haswell, Broadwell.
    Model {
        models: &[0x3C, 0x3F, 0x45, 0x46, 0x3D, 0x47, 0x4F, 0x56],
        exact: CounterSet::from_bits(0b10),
        exact_event: PREC_DIST,
        cycles: [UOPS, PREC_DIST],
        sources: SourceEncoding::SandyBridge,
        latency: 0x01CD,
        latency_counters: 0b1111,
        ..UNKNOWN
    },
    // Skylake, Kaby Lake, Comet Lake, Cannon Lake; and Skylake's servers (model 55h).
    Model {
        models: &[0x4E, 0x5E, 0x55, 0x8E, 0x9E, 0xA5, 0xA6, 0x66],
        exact: CounterSet::from_bits(0b10),
        exact_event: PREC_DIST,
        cycles: [INSTRUCTIONS, PREC_DIST],
        sources: SourceEncoding::Skylake,
        latency: 0x01CD,
        latency_counters: 0b1111,
        ..UNKNOWN
    },
    // Ice Lake to Rocket Lake.
    Model {
        models: &[0x7D, 0x7E, 0x6A, 0x6C, 0x9D, 0x8C, 0x8D, 0xA7],
        exact: CounterSet::fixed(1),
        sources: SourceEncoding::Skylake,
        latency: 0x01CD,
        latency_counters: 0xFF,
        ..UNKNOWN
    },
    // Sapphire Rapids, Emerald Rapids, Alder Lake and Raptor Lake. Linux perf demands the event beside on these alone.
    Model {
        models: &[0x8F, 0xCF, 0x97, 0x9A, 0xB7, 0xBA, 0xBF],
        latency_beside: 0x8203,
        ..GOLDEN_COVE
    },
    // Granite Rapids, Meteor Lake and Arrow Lake U.
    Model { models: &[0xAD, 0xAE, 0xAA, 0xAC, 0xB5], ..GOLDEN_COVE },
    // Lunar Lake, Arrow Lake; Cougar Cove: Panther Lake, Wildcat Lake.
    Model {
        models: &[0xBD, 0xC5, 0xC6, 0xCC, 0xD5, 0xE5],
        sources: SourceEncoding::LionCove,
        latency_counters: 0x3FC,
        ..PERFORMANCE
    },
    // Nova Lake.
    Model { family: 0x12, models: &[0x01, 0x03], ..PANTHER_COVE },
    // Diamond Rapids.
    Model { family: 0x13, models: &[0x01], ..PANTHER_COVE },
    // Tremont.
    Model { models: &[0x86, 0x96, 0x9C], ..EFFICIENT },
    // Gracemont.
    Model { models: &[0x97, 0x9A, 0xB7, 0xBA, 0xBF, 0xBE], ..GRACEMONT },
    // Crestmont: Meteor Lake, Arrow Lake U, Sierra Forest, Grand Ridge; Skymont: Lunar Lake, Arrow Lake.
    Model {
        models: &[0xAA, 0xAC, 0xB5, 0xAF, 0xB6, 0xBD, 0xC5, 0xC6],
        sources: SourceEncoding::Crestmont,
        ..GRACEMONT
    },
    // Darkmont: Panther Lake, Wildcat Lake, Clearwater Forest.
    Model {
        models: &[0xCC, 0xD5, 0xE5, 0xDD],
        sources: SourceEncoding::Crestmont,
        latency_counters: 0xFF,
        ..GRACEMONT
    },
    // Arctic Wolf: Nova Lake.
    Model {
        family: 0x12,
        models: &[0x01, 0x03],
        sources: SourceEncoding::ArcticWolf,
        latency_counters: 0xFF,
        ..GRACEMONT
    },
];

/// Models whose persistent memory has a source of its own.
const SERVERS: [u8; 7] = [0x55, 0x6A, 0x6C, 0x8F, 0xCF, 0xAD, 0xAE];

impl Model {
    /// Returns the properties of the core that a snapshot describes.
    pub(crate) fn of(processor: &Snapshot) -> &'static Self {
        static OTHER: [Model; 3] = [UNKNOWN, PERFORMANCE, EFFICIENT];
        let [other, other_performance, other_efficient] = &OTHER;
        let (family, model) = (processor.family(), processor.model());
        // SDM vol. 2A, CPUID leaf 7, EDX bit 15, Hybrid; leaf 0x1A, EAX 31:24: 20h, Atom; 40h, Core.
        let core_type = match processor.leaf(7, 0).edx >> 15 & 1 {
            0 => 0,
            _ => processor.leaf(0x1A, 0).eax >> 24,
        };
        let is_kind = |row: &Self| match core_type {
            0x40 => !row.efficient,
            0x20 => row.efficient,
            _ => true,
        };
        let is_it =
            |row: &&Self| row.family == family && is_among(model, row.models) && is_kind(row);
        let unlisted = match core_type {
            0x40 if family == 6 => other_performance,
            0x20 if family == 6 => other_efficient,
            _ => other,
        };
        MODELS.iter().find(is_it).unwrap_or(unlisted)
    }

    /// Returns the encoding of data sources of a processor with these properties.
    pub(crate) fn source_encoding(&self, processor: &Snapshot) -> SourceEncoding {
        match self.sources {
            SourceEncoding::Skylake if is_among(processor.model(), &SERVERS) => {
                SourceEncoding::SkylakeServer
            }
            sources => sources,
        }
    }

    /// Returns the event of load latencies.
    pub(crate) fn latency_event(&self) -> Option<LatencyEvent> {
        (self.latency != 0).then(|| LatencyEvent {
            event: self.latency,
            counters: CounterSet::from_bits(self.latency_counters.into()),
            beside: self.latency_beside,
        })
    }

    /// Returns the event that is recorded in place of cycles. Linux perf records the same events.
    pub(crate) fn cycles(&self, precision: Precision) -> Option<EventSelect> {
        let [some_skid, exact] = self.cycles;
        let is_exact = precision == Precision::ZeroSkidRequired && exact != 0;
        let event = if is_exact { exact } else { some_skid };
        (event != 0).then(|| EventSelect::from_bits(FEWER_THAN_16 | u64::from(event)))
    }

    /// Returns whether the processor writes records of an event.
    pub(crate) fn has_event(&self, select: EventSelect) -> bool {
        let is_it = |listed: &PreciseSelect| {
            select.event_number() == u16::from(listed.event)
                && listed.unit_mask.is_none_or(|mask| mask == select.event_unit_mask())
        };
        self.events.is_empty() || self.events.iter().any(is_it)
    }
}
