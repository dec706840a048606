//! The events that an embedder can count for its guest, and their counts.

use core::fmt;

use crate::event::SelectKey;
use crate::{EventKey, Privilege};

/// Greatest number of different fed events: the greatest number of counters.
pub(crate) const EVENTS: usize = 16;

/// The cells of an event in a feed, by the privileges in which a counter counts it: none, user, kernel, both.
pub(crate) const CELLS: usize = 4;
const USER: usize = 1;
const KERNEL: usize = 2;
const BOTH: usize = USER | KERNEL;

/// Cell of a [`Feed`] that a counter draws from: the event's place and the privileges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct FeedSlot(pub(crate) u8);

impl FeedSlot {
    /// The cell that is always 0, for an event that is not fed, or not counted in any privilege.
    pub(crate) const EMPTY: Self = Self(0);
    /// Every privilege.
    pub(crate) const PRIVILEGES: u8 = BOTH as u8;

    #[inline]
    pub(crate) const fn of(event: FedEvent, user: bool, kernel: bool) -> Self {
        Self(event.place * CELLS as u8).with((kernel as u8) << 1 | user as u8)
    }

    /// Returns the cell for these privileges of the event whose first cell this is: bit 0 user, bit 1 kernel.
    #[inline]
    pub(crate) const fn with(self, privileges: u8) -> Self {
        Self(self.0 | privileges)
    }

    /// Returns the privileges in which the event is counted: 0 user, 1 kernel, 2 both; `None` for none.
    #[inline]
    pub(crate) const fn counted(self) -> Option<usize> {
        (self.0 as usize % CELLS).checked_sub(1)
    }

    #[inline]
    pub(crate) const fn event(self) -> usize {
        self.0 as usize / CELLS % EVENTS
    }

    pub(crate) const fn user(self) -> bool {
        self.0 as usize & USER != 0
    }

    pub(crate) const fn kernel(self) -> bool {
        self.0 as usize & KERNEL != 0
    }
}

/// One of the embedder's [`FedEvents`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FedEvent {
    place: u8,
    /// [Identity](FedEvents::identity) of its `FedEvents`.
    of: u32,
}

/// The events that an embedder can count for a guest: at most 16.
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
    keys: [SelectKey; EVENTS],
    identity: u32,
}

impl FedEvent {
    /// Returns the identity of its `FedEvents`.
    #[inline]
    pub(crate) const fn of(self) -> u32 {
        self.of
    }
}

impl FedEvents {
    /// No events: nothing that a guest programs counts.
    pub const NONE: Self = Self { keys: [SelectKey::NONE; EVENTS], identity: 0x811C_9DC5 };

    /// Creates the set of these events.
    ///
    /// # Errors
    /// There are more than 16, or one is named twice, perhaps as a [fixed counter's](EventKey::fixed): added to a
    /// feed under each name, it would count twice.
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

    /// Returns the event with this key, if it is fed.
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
    fn place(&self, key: SelectKey) -> Option<u8> {
        let mut place = 0;
        for step in [8, 4, 2, 1] {
            if self.keys[(place + step) % EVENTS] <= key {
                place += step;
            }
        }
        (self.keys[place % EVENTS] == key).then_some(place as u8)
    }

    /// Returns a hash of the events, by which a feed of other events is detected except in one case of 2³².
    #[inline]
    pub(crate) const fn identity(&self) -> u32 {
        self.identity
    }
}

/// Reason why events are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum FedEventsError {
    /// More than 16 events.
    TooMany(usize),
    /// An event is named twice.
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

/// An event or a feed belongs to other [`FedEvents`]. Nothing was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct OtherEvents;

impl fmt::Display for OtherEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("of other fed events than these")
    }
}

impl core::error::Error for OtherEvents {}

/// Reason why the events of a PMU are not [exchanged](crate::VirtualPmu::set_events). Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum ExchangeError {
    /// The feed is of other events than the PMU's.
    OtherEvents,
    /// The feed has a remainder of an event that is not among the new ones.
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

/// Number of each fed event over a span of time, by privilege.
///
/// ```
/// use pmu_virt::{EventKey, FedEvents, Feed, OtherEvents, Privilege};
/// const CYCLES: EventKey = EventKey::general(0x3C, 0);
/// let events = FedEvents::new(&[CYCLES])?;
/// let cycles = events.find(CYCLES).unwrap();
/// let mut feed = Feed::new(&events);
/// feed.add(cycles, Privilege::Kernel, 1_000)?;
/// assert_eq!(feed.count(cycles, Privilege::Kernel), 1_000);
/// // An event of others is told.
/// let others = FedEvents::new(&[CYCLES.edge()])?;
/// assert_eq!(Feed::new(&others).add(cycles, Privilege::Kernel, 1), Err(OtherEvents));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Feed {
    /// The last cell of an event is the sum of user and kernel; no sum exceeds 2⁶³.
    pub(crate) cells: [u64; EVENTS * CELLS],
    /// [Identity](FedEvents::identity) of its events.
    of: u32,
}

impl Feed {
    /// Greatest count of one event in one privilege: 48 years at 3 GHz.
    pub const MAXIMUM: u64 = (1 << 62) - 1;

    /// Creates an empty feed of these events.
    pub const fn new(events: &FedEvents) -> Self {
        Self { cells: [0; EVENTS * CELLS], of: events.identity }
    }

    /// Adds `count` of an event. Saturates at [`MAXIMUM`](Self::MAXIMUM).
    ///
    /// # Errors
    /// The event is not one of the feed's.
    #[inline]
    pub fn add(
        &mut self,
        event: FedEvent,
        privilege: Privilege,
        count: u64,
    ) -> Result<(), OtherEvents> {
        if event.of != self.of {
            return Err(OtherEvents);
        }
        let cell = match privilege {
            Privilege::User => USER,
            Privilege::Kernel => KERNEL,
        };
        let base = usize::from(event.place) % EVENTS * CELLS;
        let held = &mut self.cells[base + cell];
        *held = held.saturating_add(count).min(Self::MAXIMUM);
        self.cells[base + BOTH] = self.cells[base + USER] + self.cells[base + KERNEL];
        Ok(())
    }

    /// Returns the remaining count of an event; 0 if the event is not the feed's.
    #[inline]
    pub fn count(&self, event: FedEvent, privilege: Privilege) -> u64 {
        if event.of != self.of {
            return 0;
        }
        match privilege {
            Privilege::User => self.at(FeedSlot::of(event, true, false)),
            Privilege::Kernel => self.at(FeedSlot::of(event, false, true)),
        }
    }

    #[inline]
    pub(crate) fn is_of(&self, events: &FedEvents) -> bool {
        self.of == events.identity()
    }

    /// Returns the feed of the events `to` with the counts of this one, which is of `from`; `None` if there is one
    /// that `to` lacks.
    pub(crate) fn exchanged(&self, from: &FedEvents, to: &FedEvents) -> Option<Self> {
        let mut exchanged = Self::new(to);
        for (key, cells) in from.keys.iter().zip(self.cells.as_chunks::<CELLS>().0) {
            if *cells != [0; CELLS] {
                let cell = to.cell(*key)?;
                let to = exchanged.cells.get_mut(usize::from(cell.0)..)?.first_chunk_mut()?;
                *to = *cells;
            }
        }
        Some(exchanged)
    }

    /// Takes everything out of the feed.
    pub(crate) fn take_all(&mut self) -> Self {
        let all = self.clone();
        self.clear();
        all
    }

    /// Returns whether nothing remains.
    pub fn is_empty(&self) -> bool {
        self.cells.iter().all(|cell| *cell == 0)
    }

    /// Discards the remainder.
    pub fn clear(&mut self) {
        self.cells = [0; EVENTS * CELLS];
    }

    #[inline]
    pub(crate) const fn at(&self, cell: FeedSlot) -> u64 {
        self.cells[cell.0 as usize % (EVENTS * CELLS)]
    }

    /// Takes the share `part`/`whole`, rounded down, out of each cell, and returns it.
    ///
    /// `exactly` is a cell that holds `whole`: exactly `part` is taken out of it. `part` is at most `whole`.
    pub(crate) fn take(&mut self, part: u64, whole: u64, exactly: FeedSlot) -> Self {
        let share = |count: u64| {
            let product = u128::from(count) * u128::from(part);
            // The quotient is not above `count`.
            product.checked_div(u128::from(whole)).unwrap_or(0) as u64
        };
        let mut taken = Self { cells: [0; EVENTS * CELLS], of: self.of };
        for event in 0..EVENTS {
            let base = event * CELLS;
            let (user, kernel) = (self.cells[base + USER], self.cells[base + KERNEL]);
            let (taken_user, mut taken_kernel) = (share(user), share(kernel));
            if event == exactly.event() && exactly.user() && exactly.kernel() {
                taken_kernel = part.saturating_sub(taken_user);
            }
            taken.cells[base + USER] = taken_user;
            taken.cells[base + KERNEL] = taken_kernel;
            taken.cells[base + BOTH] = taken_user.saturating_add(taken_kernel);
        }
        for (left, taken) in self.cells.iter_mut().zip(&taken.cells) {
            *left = left.saturating_sub(*taken);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [EventKey; 16] = {
        let mut keys = [EventKey::general(0, 1); 16];
        let mut n = 0;
        while n < 16 {
            keys[n] = EventKey::general(n as u16, 1);
            n += 1;
        }
        keys
    };

    fn events() -> FedEvents {
        FedEvents::new(&KEYS).unwrap()
    }

    fn event(n: usize) -> FedEvent {
        events().find(KEYS[n]).unwrap()
    }

    #[test]
    fn the_share_of_the_named_cell_is_exact_and_none_is_lost() {
        let mut feed = Feed::new(&events());
        feed.add(event(0), Privilege::User, 10).unwrap();
        feed.add(event(0), Privilege::Kernel, 11).unwrap();
        feed.add(event(5), Privilege::Kernel, 100).unwrap();
        let taken = feed.take(8, 21, FeedSlot::of(event(0), true, true));
        assert_eq!(taken.count(event(0), Privilege::User), 3);
        assert_eq!(taken.count(event(0), Privilege::Kernel), 5);
        assert_eq!(taken.count(event(5), Privilege::Kernel), 38);
        assert_eq!(feed.count(event(5), Privilege::Kernel), 62);
        assert_eq!(feed.count(event(0), Privilege::User), 7);
    }

    #[test]
    fn events_are_found_in_whatever_order_they_are_named() {
        for count in 0..=16 {
            let keys: std::vec::Vec<_> =
                (0..count).map(|n| EventKey::general(n * 7 % 16, 1)).collect();
            let events = FedEvents::new(&keys).unwrap();
            let mut places: std::vec::Vec<_> =
                keys.iter().map(|key| events.find(*key).unwrap().place).collect();
            places.sort();
            assert!(places.iter().copied().eq(0..count as u8));
        }
    }

    #[test]
    fn a_feed_saturates() {
        let mut feed = Feed::new(&events());
        for _ in 0..3 {
            feed.add(event(15), Privilege::User, u64::MAX).unwrap();
            feed.add(event(15), Privilege::Kernel, u64::MAX).unwrap();
        }
        assert_eq!(feed.count(event(15), Privilege::User), Feed::MAXIMUM);
        assert_eq!(feed.at(FeedSlot::of(event(15), true, true)), 2 * Feed::MAXIMUM);
    }

    #[test]
    fn there_is_room_for_sixteen_events_each_named_once() {
        let one_more = [&KEYS[..], &[EventKey::general(0, 2)]].concat();
        assert_eq!(FedEvents::new(&one_more), Err(FedEventsError::TooMany(17)));
        assert_eq!(events().find(one_more[16]), None);
        assert_eq!(events().find(KEYS[15].edge()), None);
        assert_eq!(FedEvents::NONE.find(KEYS[0]), None);
        let instructions = EventKey::general(0xC0, 0);
        let twice = [EventKey::fixed(0).unwrap(), EventKey::fixed(2).unwrap(), instructions];
        assert_eq!(FedEvents::new(&twice), Err(FedEventsError::Twice(instructions)));
    }

    #[test]
    fn an_event_of_others_is_not_added() {
        let mut feed = Feed::new(&FedEvents::new(&KEYS[1..]).unwrap());
        assert_eq!(feed.add(event(3), Privilege::User, 1), Err(OtherEvents));
        assert!(feed.is_empty());
        assert_eq!(feed.count(event(3), Privilege::User), 0);
    }
}
