//! One overflow, as it is reported.

use crate::counters::names::counter_id::CounterId;
use crate::counters::names::event_id::EventId;

/// One overflow, as the interrupt path reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EventOverflow {
    /// The event that overflowed.
    pub event: EventId,
    /// Number of events that this overflow stands for: the event's period.
    pub period: u64,
    /// The counter that overflowed.
    pub counter: CounterId,
    /// The event's [tag](crate::Event::tagged), by which the handler can identify it before it knows the event's
    /// identity: during [`switch_in`](crate::CounterSession::switch_in), for instance.
    pub tag: u64,
}
