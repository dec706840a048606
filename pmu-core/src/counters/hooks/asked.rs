//! Requests of an event to the facilities of a processor, as the event is opened.

use crate::branches::filter::BranchFilter;
use crate::counters::error::CounterError;
use crate::counters::events::event::{Event, GuestMode};
use crate::counters::events::extra::Extra;
use crate::counters::events::membership::Membership;
use crate::counters::events::saved::SavedEvent;
use crate::counters::registers::select::EventSelect;
use crate::msr::address::MsrAddress;
use crate::precise::error::NotPrecise;
use crate::precise::parts::SampleParts;
use crate::precise::precision::Precision;
use crate::precise::request::PackedPrecise;

/// The needs of a facility at the counter of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EventControl {
    /// The counter's overflows do not interrupt.
    pub silent: bool,
    /// The counter's records have more than the basic group (`Adaptive_Record`, Intel SDM vol. 3B).
    pub adaptive: bool,
}

/// Requests of an event beside a counter. Each facility [clears](crate::facility::EventFacility::resolve) what it
/// meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Asked {
    /// The event's select on this processor, with its mode bits. A facility may replace it by another event's.
    pub select: EventSelect,
    /// The event has a period.
    pub samples: bool,
    /// The event counts only in guests.
    pub in_guests_only: bool,
    /// The event's [extra register](crate::Event::with_extra), and its value.
    pub extra: Option<(MsrAddress, u64)>,
    /// Samples of the event are to be [precise](crate::Event::precise).
    pub precision: Option<Precision>,
    /// Samples of the event are to have these [parts](crate::Event::recording).
    pub parts: SampleParts,
    /// Only loads of at least this [latency](crate::Event::latency_at_least), in cycles, are to be sampled.
    pub latency: Option<u16>,
    /// A facility names the register of the latency here.
    pub latency_register: Option<MsrAddress>,
    /// A facility names an event here that has to be counted beside this one: bits 15:0 of its select.
    pub beside: Option<u16>,
    /// Other events of the group [reload](crate::Event::reloaded_by) the event's counter.
    pub reloaded: bool,
    /// The event's overflow reloads other events of the group.
    pub reloads: bool,
    /// Samples of the event are to have [branches](crate::Event::with_branches).
    pub branches: Option<BranchFilter>,
    /// A facility sets this field if it counts the event as a [part](crate::Event::part) of another one, without a
    /// counter.
    pub is_part: bool,
}

impl Asked {
    /// Returns what an event that is to be opened asks for.
    pub(crate) fn of_event(event: &Event, select: EventSelect) -> Self {
        Self {
            samples: event.period().is_some(),
            in_guests_only: !event.counts_outside_guests(),
            reloaded: event.reload != 0,
            branches: event.branches(),
            ..Self::of(select, &event.extra, event.precise)
        }
    }

    /// Returns what a switched-out event, or one whose group is known, asks for.
    pub(crate) fn of_saved(event: &SavedEvent) -> Self {
        let membership = Membership::unpack(event.membership);
        Self {
            samples: event.period.every != 0,
            in_guests_only: event.guest_mode() == GuestMode::GuestOnly,
            reloaded: membership.reload != 0,
            reloads: membership.has(Membership::RELOADS),
            branches: event.branches.get(),
            ..Self::of(event.select(), &event.extra, event.precise())
        }
    }

    fn of(select: EventSelect, extra: &Extra, precise: PackedPrecise) -> Self {
        Self {
            select,
            samples: false,
            in_guests_only: false,
            extra: extra.registers[0].get().map(|register| (register, extra.value)),
            precision: precise.precision(),
            parts: precise.parts(),
            latency: precise.has_latency().then_some(extra.value as u16),
            latency_register: None,
            beside: None,
            reloaded: false,
            reloads: false,
            branches: None,
            is_part: false,
        }
    }

    /// Returns the error of a request that the event cannot do without, and that was not met.
    pub(crate) const fn unmet(self) -> Result<(), CounterError> {
        match self {
            Self { reloaded: true, .. } => Err(CounterError::NotReloadable),
            Self { branches: Some(_), .. } => Err(CounterError::BranchesUnsupported),
            Self { precision: Some(_), .. } => {
                Err(CounterError::NotPrecise(NotPrecise::NoFacility))
            }
            Self { latency: Some(_), .. } => {
                Err(CounterError::NotPrecise(NotPrecise::NotLatencyEvent))
            }
            Self { parts, .. } if !parts.is_empty() => {
                Err(CounterError::NotPrecise(NotPrecise::Parts(parts)))
            }
            Self { .. } => Ok(()),
        }
    }
}
