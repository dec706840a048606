//! Reasons why events or feeds are refused.

use core::fmt;

use crate::events::key::EventKey;
use crate::events::slot::EVENTS;

/// Reason why [`FedEvents::new`](crate::FedEvents::new) refuses a set of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum FedEventsError {
    /// The set of events would have more than 16 keys. The value is the number of keys.
    TooMany(usize),
    /// Two of the given keys are equal. The value is one of the two keys.
    Twice(EventKey),
}

impl fmt::Display for FedEventsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany(events) => {
                write!(f, "{events} events to feed, at most {EVENTS} can be")
            }
            Self::Twice(key) => write!(f, "{key:?} is fed twice"),
        }
    }
}

impl core::error::Error for FedEventsError {}

/// Reason why [`Feed::add`](crate::Feed::add) refuses an event that is not in the [`FedEvents`](crate::FedEvents) of
/// the feed. [`VirtualPmu::advance`](crate::VirtualPmu::advance) also returns this error, if the `FedEvents` of the
/// feed differs from the `FedEvents` of the PMU. The failed call counts nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct OtherEvents;

impl fmt::Display for OtherEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("of other fed events than these")
    }
}

impl core::error::Error for OtherEvents {}

/// Reason why [`VirtualPmu::set_events`](crate::VirtualPmu::set_events) refuses new events. The failed call changes
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum ExchangeError {
    /// The [`FedEvents`](crate::FedEvents) of the feed differ from the `FedEvents` of the PMU.
    OtherEvents,
    /// The feed still has counts of an event that is not in the new [`FedEvents`](crate::FedEvents).
    Remainder,
}

impl fmt::Display for ExchangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherEvents => OtherEvents.fmt(f),
            Self::Remainder => f.write_str("a remainder of an event that is to be fed no longer"),
        }
    }
}

impl core::error::Error for ExchangeError {}
