//! The events that an embedder can count for a guest.

use crate::events::error::FedEventsError;
use crate::events::key::{EventKey, SelectKey};
use crate::events::slot::{CELLS, EVENTS, FedEvent, FeedSlot};

/// Set of at most 16 events that an embedder can count for a guest.
///
/// ```
/// use pmu_virt::{EventKey, FedEvents};
/// const CYCLES: EventKey = EventKey::general(0x3C, 0);
/// let events = FedEvents::new(&[CYCLES, EventKey::general(0xC0, 0)])?;
/// assert!(events.find(CYCLES).is_some());
/// assert!(events.find(CYCLES.edge()).is_none());
/// # Ok::<(), pmu_virt::FedEventsError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FedEvents {
    /// Ascending keys, padded with [`SelectKey::NONE`], the greatest.
    pub(super) keys: [SelectKey; EVENTS],
    identity: u32,
}

impl FedEvents {
    /// The empty set: the embedder feeds no event, so the guest's counters do not count.
    pub const NONE: Self = Self { keys: [SelectKey::NONE; EVENTS], identity: 0x811C_9DC5 };

    /// Creates the set of events with these keys.
    ///
    /// # Errors
    /// `keys` has more than 16 keys, or two keys are equal. Some events can be counted by a general counter and by a
    /// fixed counter. For such an event, [`EventKey::fixed`] and [`EventKey::general`] return equal keys, so pass the
    /// key only once.
    pub fn new(keys: &[EventKey]) -> Result<Self, FedEventsError> {
        let mut events = Self::NONE;
        let too_many = FedEventsError::TooMany(keys.len());
        let places = events.keys.get_mut(..keys.len()).ok_or(too_many)?;
        for (place, key) in places.iter_mut().zip(keys) {
            *place = key.in_select();
        }
        places.sort_unstable();
        let named =
            |key: &EventKey| places.iter().filter(|place| **place == key.in_select()).count();
        if let Some(twice) = keys.iter().find(|key| named(key) > 1) {
            return Err(FedEventsError::Twice(*twice));
        }
        let none = Self::NONE.identity;
        events.identity = places.iter().fold(none, |hash, key| key.hash_into(hash));
        Ok(events)
    }

    /// Returns the event with this key, or `None` if the event is not in this set.
    #[inline]
    pub fn find(&self, key: EventKey) -> Option<FedEvent> {
        self.place(key.in_select()).map(|place| FedEvent { place, of: self.identity })
    }

    /// Returns the first cell of the event with this key, if it is fed.
    #[inline]
    pub(crate) fn cell(&self, key: SelectKey) -> Option<FeedSlot> {
        self.place(key).map(|place| FeedSlot(place * CELLS as u8))
    }

    #[inline]
    pub(crate) fn place(&self, key: SelectKey) -> Option<u8> {
        let mut place = 0;
        for step in [8, 4, 2, 1] {
            if self.keys[(place + step) % EVENTS] <= key {
                place += step;
            }
        }
        (self.keys[place % EVENTS] == key).then_some(place as u8)
    }

    /// Returns a hash of the events. A feed of other events has another hash, except in one case of 2³².
    #[inline]
    pub(crate) const fn identity(&self) -> u32 {
        self.identity
    }
}
