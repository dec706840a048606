//! The events that an embedder can count for its guest, and the numbers of them that happened.

use core::fmt;

use crate::{EventKey, Privilege};

/// Greatest number of different fed events: as many as there can be counters.
pub(crate) const EVENTS: usize = 16;

/// The cells of an event in a feed, by what a counter counts of it: nothing, user, kernel, both.
pub(crate) const CELLS: usize = 4;
const USER: usize = 1;
const KERNEL: usize = 2;
const BOTH: usize = USER | KERNEL;

/// Cell of a [`Feed`] that a counter draws from: the event's place and the privileges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct FeedSlot(pub(crate) u8);

impl FeedSlot {
    /// Always 0: of an event that is not fed, or is counted in no privilege.
    pub(crate) const EMPTY: Self = Self(0);
    /// Every privilege.
    pub(crate) const PRIVILEGES: u8 = BOTH as u8;

    #[inline]
    pub(crate) const fn of(event: FedEvent, user: bool, kernel: bool) -> Self {
        Self(event.place * CELLS as u8).with((kernel as u8) << 1 | user as u8)
    }

    /// Of the same event, whose first cell this is, in these privileges: bit 0 user, bit 1 kernel.
    #[inline]
    pub(crate) const fn with(self, privileges: u8) -> Self {
        Self(self.0 | privileges)
    }

    /// Returns what is counted of the event: 0 user, 1 kernel, 2 both; `None` for nothing.
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
    /// The [identity](FedEvents::identity) of those it is one of.
    of: u32,
}

/// The events that an embedder can truthfully count: at most 16.
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
    /// Ascending; the rest is [`EventKey::NONE`], the greatest.
    keys: [EventKey; EVENTS],
    identity: u32,
}

impl FedEvent {
    /// The identity of the events that it is one of.
    #[inline]
    pub(crate) const fn of(self) -> u32 {
        self.of
    }
}

impl FedEvents {
    /// None: nothing that a guest programs counts.
    pub const NONE: Self = Self { keys: [EventKey::NONE; EVENTS], identity: 0x811C_9DC5 };

    /// These events.
    ///
    /// # Errors
    /// There are more than 16, or one is named twice, perhaps as a [fixed counter's](EventKey::fixed): whoever adds
    /// it to a feed under each name would count it twice.
    pub fn new(keys: &[EventKey]) -> Result<Self, FedEventsError> {
        let mut events = Self::NONE;
        let too_many = FedEventsError::TooMany(keys.len());
        let places = events.keys.get_mut(..keys.len()).ok_or(too_many)?;
        places.copy_from_slice(keys);
        places.sort_unstable();
        let mut neighbors = places.iter().zip(places.iter().skip(1));
        if let Some((twice, _)) = neighbors.find(|(first, second)| first == second) {
            return Err(FedEventsError::Twice(*twice));
        }
        let none = Self::NONE.identity;
        events.identity = places.iter().fold(none, |hash, key| key.hash_into(hash));
        Ok(events)
    }

    /// The event with this key, if it is fed.
    #[inline]
    pub fn find(&self, key: EventKey) -> Option<FedEvent> {
        self.place(key).map(|place| FedEvent { place, of: self.identity })
    }

    /// The first cell of the event with this key, if it is fed.
    #[inline]
    pub(crate) fn cell(&self, key: EventKey) -> Option<FeedSlot> {
        self.place(key).map(|place| FeedSlot(place * CELLS as u8))
    }

    #[inline]
    fn place(&self, key: EventKey) -> Option<u8> {
        let mut place = 0;
        for step in [8, 4, 2, 1] {
            if self.keys[(place + step) % EVENTS] <= key {
                place += step;
            }
        }
        (self.keys[place % EVENTS] == key).then_some(place as u8)
    }

    /// A value that differs where the events do, but for one case in 2³²: it tells a feed of other events.
    #[inline]
    pub(crate) const fn identity(&self) -> u32 {
        self.identity
    }
}

/// Reason for which events are refused.
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

/// An event or a feed of other [`FedEvents`] than those it meets. Nothing was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct OtherEvents;

impl fmt::Display for OtherEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("of other fed events than these")
    }
}

impl core::error::Error for OtherEvents {}

/// The number of each fed event that happened over a span of time, by privilege.
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
    /// The third cell of an event is the sum of the other two; no sum passes 2⁶³.
    pub(crate) cells: [u64; EVENTS * CELLS],
    /// The [identity](FedEvents::identity) of its events.
    of: u32,
}

impl Feed {
    /// The most of one event in one privilege that a feed holds: 48 years at 3 GHz.
    pub const MAXIMUM: u64 = (1 << 62) - 1;

    /// Nothing of these events happened.
    pub const fn new(events: &FedEvents) -> Self {
        Self { cells: [0; EVENTS * CELLS], of: events.identity }
    }

    /// `count` more of an event happened. Stops at [`MAXIMUM`](Self::MAXIMUM).
    ///
    /// # Errors
    /// The event is not one of those that the feed is of.
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

    /// Returns how much of an event is left; 0 of one that the feed is not of.
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

    /// All that is left, which is taken out of it.
    pub(crate) fn take_all(&mut self) -> Self {
        let all = self.clone();
        self.clear();
        all
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
