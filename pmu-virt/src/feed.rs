//! The events that an embedder can count for its guest, and how many of them happened.

use core::fmt;

use crate::{EventKey, Privilege};

/// How many different events can be fed: as many as there can be counters.
pub(crate) const EVENTS: usize = 16;

/// The cells of an event in a feed, by what a counter counts of it: nothing, user, kernel, both.
pub(crate) const CELLS: usize = 4;
const USER: usize = 1;
const KERNEL: usize = 2;
const BOTH: usize = USER | KERNEL;

/// Which cell of a [`Feed`] a counter draws from: the event's place and the privileges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct FeedSlot(pub(crate) u8);

impl FeedSlot {
    /// Always 0: of an event that is not fed, or is counted in no privilege.
    pub(crate) const EMPTY: Self = Self(0);

    #[inline]
    pub(crate) const fn new(event: FedEvent, user: bool, kernel: bool) -> Self {
        let privileges = (kernel as u8) << 1 | user as u8;
        Self(event.0 * CELLS as u8 + privileges)
    }

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
pub struct FedEvent(pub(crate) u8);

/// The events that an embedder can truthfully count: at most 16.
///
/// ```
/// use pmu_virt::{EventKey, FedEvents};
/// const CYCLES: EventKey = EventKey::general(0x3C, 0);
/// let events = FedEvents::new(&[CYCLES, EventKey::fixed(1)]).unwrap();
/// assert!(events.find(CYCLES).is_some());
/// assert!(events.find(CYCLES.edge()).is_none());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FedEvents {
    /// Ascending; the rest is [`EventKey::NONE`], the greatest.
    keys: [EventKey; EVENTS],
}

impl FedEvents {
    /// None: nothing that a guest programs counts.
    pub const NONE: Self = Self { keys: [EventKey::NONE; EVENTS] };

    /// These events.
    ///
    /// # Errors
    /// There are more than 16.
    pub fn new(keys: &[EventKey]) -> Result<Self, TooManyEvents> {
        let mut events = Self::NONE;
        let places = events.keys.get_mut(..keys.len()).ok_or(TooManyEvents(keys.len()))?;
        places.copy_from_slice(keys);
        events.keys.sort_unstable();
        Ok(events)
    }

    /// The event with this key, if it is fed.
    #[inline]
    pub fn find(&self, key: EventKey) -> Option<FedEvent> {
        let mut place = 0;
        for step in [8, 4, 2, 1] {
            if self.keys[(place + step) % EVENTS] <= key {
                place += step;
            }
        }
        (self.keys[place % EVENTS] == key).then_some(FedEvent(place as u8))
    }
}

/// More events than can be fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct TooManyEvents(pub usize);

impl fmt::Display for TooManyEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} events to feed, at most {EVENTS} can be", self.0)
    }
}

impl core::error::Error for TooManyEvents {}

/// How many of each fed event happened over a span of time, by privilege.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Feed {
    /// The third cell of an event is the sum of the other two; no sum passes 2⁶³.
    pub(crate) cells: [u64; EVENTS * CELLS],
}

impl Feed {
    /// The most of one event in one privilege that a feed holds: 48 years at 3 GHz.
    pub const MAXIMUM: u64 = (1 << 62) - 1;

    /// Nothing happened.
    pub const fn new() -> Self {
        Self { cells: [0; EVENTS * CELLS] }
    }

    /// `count` more of an event happened. Stops at [`MAXIMUM`](Self::MAXIMUM).
    #[inline]
    pub fn add(&mut self, event: FedEvent, privilege: Privilege, count: u64) {
        let cell = match privilege {
            Privilege::User => USER,
            Privilege::Kernel => KERNEL,
        };
        let base = usize::from(event.0) % EVENTS * CELLS;
        let held = &mut self.cells[base + cell];
        *held = held.saturating_add(count).min(Self::MAXIMUM);
        self.cells[base + BOTH] = self.cells[base + USER] + self.cells[base + KERNEL];
    }

    /// How much of an event is left.
    #[inline]
    pub fn count(&self, event: FedEvent, privilege: Privilege) -> u64 {
        match privilege {
            Privilege::User => self.at(FeedSlot::new(event, true, false)),
            Privilege::Kernel => self.at(FeedSlot::new(event, false, true)),
        }
    }

    /// Returns whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.cells.iter().all(|cell| *cell == 0)
    }

    /// Forgets what is left.
    pub fn clear(&mut self) {
        self.cells = [0; EVENTS * CELLS];
    }

    #[inline]
    pub(crate) const fn at(&self, cell: FeedSlot) -> u64 {
        self.cells[cell.0 as usize % (EVENTS * CELLS)]
    }

    /// Takes out of each cell its share of `part`/`whole`, rounded down, and answers what was taken.
    ///
    /// `exactly` is a cell that holds `whole` in all: of it, exactly `part` is taken. `part` is not
    /// above `whole`.
    pub(crate) fn take(&mut self, part: u64, whole: u64, exactly: FeedSlot) -> Self {
        let share = |count: u64| {
            let product = u128::from(count) * u128::from(part);
            // The quotient is not above `count`.
            product.checked_div(u128::from(whole)).unwrap_or(0) as u64
        };
        let mut taken = Self::new();
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

impl Default for Feed {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_the_named_cell_is_exact_and_none_is_lost() {
        let mut feed = Feed::new();
        feed.add(FedEvent(0), Privilege::User, 10);
        feed.add(FedEvent(0), Privilege::Kernel, 11);
        feed.add(FedEvent(5), Privilege::Kernel, 100);
        let taken = feed.take(8, 21, FeedSlot::new(FedEvent(0), true, true));
        assert_eq!(taken.count(FedEvent(0), Privilege::User), 3);
        assert_eq!(taken.count(FedEvent(0), Privilege::Kernel), 5);
        assert_eq!(taken.count(FedEvent(5), Privilege::Kernel), 38);
        assert_eq!(feed.count(FedEvent(5), Privilege::Kernel), 62);
        assert_eq!(feed.count(FedEvent(0), Privilege::User), 7);
    }

    #[test]
    fn events_are_found_in_whatever_order_they_are_named() {
        for count in 0..=16 {
            let keys: std::vec::Vec<_> =
                (0..count).map(|n| EventKey::general(n * 7 % 16, 1)).collect();
            let events = FedEvents::new(&keys).unwrap();
            let mut places: std::vec::Vec<_> =
                keys.iter().map(|key| events.find(*key).unwrap().0).collect();
            places.sort();
            assert!(places.iter().copied().eq(0..count as u8));
        }
    }

    #[test]
    fn a_feed_saturates() {
        let mut feed = Feed::new();
        for _ in 0..3 {
            feed.add(FedEvent(15), Privilege::User, u64::MAX);
            feed.add(FedEvent(15), Privilege::Kernel, u64::MAX);
        }
        assert_eq!(feed.count(FedEvent(15), Privilege::User), Feed::MAXIMUM);
        assert_eq!(feed.at(FeedSlot::new(FedEvent(15), true, true)), 2 * Feed::MAXIMUM);
    }

    #[test]
    fn there_is_room_for_sixteen_events() {
        let keys: [EventKey; 17] = core::array::from_fn(|n| EventKey::general(n as u16, 0));
        assert_eq!(FedEvents::new(&keys), Err(TooManyEvents(17)));
        let events = FedEvents::new(&keys[1..]).unwrap();
        for (place, key) in (0..).zip(&keys[1..]) {
            assert_eq!(events.find(*key), Some(FedEvent(place)));
        }
        assert_eq!(events.find(keys[0]), None);
        assert_eq!(events.find(keys[16].edge()), None);
        assert_eq!(FedEvents::NONE.find(keys[0]), None);
    }
}
