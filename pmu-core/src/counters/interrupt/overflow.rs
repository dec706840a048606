//! One overflow, as it is reported.

use crate::counters::names::counter_id::CounterId;
use crate::counters::names::event_id::EventId;

/// One overflow of an event. The interrupt path reports overflows in this form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EventOverflow {
    /// The event that overflowed.
    pub event: EventId,
    /// Number of occurrences of the event that this overflow stands for: the event's period.
    pub period: u64,
    /// The counter that overflowed.
    pub counter: CounterId,
    /// The event's [tag](crate::Event::tagged). An overflow can be reported before the caller knows the event's
    /// identity, as during [`switch_in`](crate::CounterSession::switch_in). The handler then identifies the event by
    /// its tag.
    pub tag: u64,
}
