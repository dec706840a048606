//! Records that a facility's hardware writes when a counter overflows.

use crate::counters::names::counter_id::CounterId;
use crate::counters::names::event_id::EventId;

/// A record that a facility found in its memory: an overflow, which the processor recorded and did not report by the
/// counter's status. The processor then loaded the counter again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The counter that overflowed.
    pub counter: CounterId,
    /// The event that was on the counter.
    pub event: EventId,
    /// Number of events for which the processor then loaded the counter.
    pub reloaded: u64,
    /// The period that ended, if the event has [left](crate::facility::EventFacility::leave) the counter since; 0 if
    /// only a part of a period ended, which is no sample.
    pub left: Option<u64>,
    /// The record is of a privilege level that the event does not count. It is not shown.
    pub hidden: bool,
}
