//! Reasons why events or feeds are refused.

use core::fmt;

use crate::events::key::EventKey;
use crate::events::slot::EVENTS;

/// Reason why a set of events or a feed is refused. The failed call changes and counts nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum FedEventsError {
    /// The set of events would have more than 16 keys. The value is the number of keys.
    TooMany(usize),
    /// Two of the given keys are equal. The value is one of the two keys.
    Twice(EventKey),
    /// The [`FedEvents`](crate::FedEvents) of the feed lack the event, or differ from the `FedEvents` of the PMU.
    OtherEvents,
    /// The feed still has counts of an event that is not in the new [`FedEvents`](crate::FedEvents).
    Remainder,
}

impl fmt::Display for FedEventsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany(events) => {
                write!(f, "{events} events to feed, at most {EVENTS} can be")
            }
            Self::Twice(key) => write!(f, "{key:?} is fed twice"),
            Self::OtherEvents => f.write_str("of other fed events than these"),
            Self::Remainder => f.write_str("a remainder of an event that is to be fed no longer"),
        }
    }
}

impl core::error::Error for FedEventsError {}
