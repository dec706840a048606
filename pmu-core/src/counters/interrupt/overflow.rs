//! One overflow, as it is reported.

use crate::counters::names::counter_id::CounterId;
use crate::counters::names::event_id::EventId;

/// One overflow, as the interrupt path reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EventOverflow {
    /// The event.
    pub event: EventId,
    /// Its period: the number of events that this overflow stands for.
    pub period: u64,
    /// The counter that it is on.
    pub counter: CounterId,
    /// The event's own [tag](crate::Event::tagged), if it was opened with one. At
    /// [`switch_in`](crate::CounterSession::switch_in), for instance, an interrupt may come before the caller knows the
    /// event's identity.
    pub tag: u64,
}
