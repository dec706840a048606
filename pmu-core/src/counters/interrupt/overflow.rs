//! One overflow, as it is reported.

use crate::counters::names::counter_id::CounterId;
use crate::counters::names::event_id::EventId;

/// One overflow of an event. The interrupt path reports overflows in this form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EventOverflow {
    /// The event that overflowed.
    pub event: EventId,
    /// The event's period. The overflow stands for this number of occurrences of the event.
    pub period: u64,
    /// The counter that overflowed.
    pub counter: CounterId,
    /// The event's [tag](crate::Event::tagged). During [`switch_in`](crate::CounterSession::switch_in), an overflow can
    /// be reported before the caller knows the event's new [identity](Self::event). The handler then identifies the
    /// event by its tag.
    pub tag: u64,
}
