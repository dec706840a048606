//! Counts of the events that happened in a span of time, and the events that an embedder can count for a guest.

use crate::events::key::{EventKey, Privilege, SelectKey};

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
        // In their order, a key is found in four steps, and the identity is the same in whichever order the caller
        // names them.
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
        // Free places have the greatest key, so the search needs no length: each write of an event select makes one.
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

/// Greatest number of different fed events: the greatest number of counters.
pub(crate) const EVENTS: usize = 16;

/// Number of cells that a feed has for each event, by the privileges in which a counter counts: none, user, kernel,
/// both.
pub(crate) const CELLS: usize = 4;
pub(crate) const USER: usize = 1;
pub(crate) const KERNEL: usize = 2;
pub(crate) const BOTH: usize = USER | KERNEL;

/// Cell of a [`Feed`](crate::Feed) that a counter draws from: the event's place and the privileges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct FeedSlot(pub(crate) u8);

impl FeedSlot {
    /// The cell that is always 0: the event is not fed, or is counted in no privilege.
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

/// Index of one event in a [`FedEvents`](crate::FedEvents). [`FedEvents::find`](crate::FedEvents::find) searches for an
/// event and returns the index. [`Feed::add`](crate::Feed::add) uses the index and need not search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FedEvent {
    pub(super) place: u8,
    /// [Identity](crate::FedEvents::identity) of its `FedEvents`.
    pub(super) of: u32,
}

impl FedEvent {
    /// Returns the identity of its `FedEvents`.
    #[inline]
    pub(crate) const fn of(self) -> u32 {
        self.of
    }
}

/// Counts of the events that happened in a guest during a span of time: one count for each event and privilege. A call
/// of [`VirtualPmu::advance`](crate::VirtualPmu::advance) consumes the counts.
///
/// ```
/// use pmu_virt::{EventKey, FedEvents, FedEventsError, Feed, Privilege};
/// const CYCLES: EventKey = EventKey::general(0x3C, 0);
/// let events = FedEvents::new(&[CYCLES])?;
/// let cycles = events.find(CYCLES).unwrap();
/// let mut feed = Feed::new(&events);
/// feed.add(cycles, Privilege::Kernel, 1_000)?;
/// assert_eq!(feed.count(cycles, Privilege::Kernel), 1_000);
/// // An event of another set is refused.
/// let others = FedEvents::new(&[CYCLES.edge()])?;
/// assert_eq!(Feed::new(&others).add(cycles, Privilege::Kernel, 1), Err(FedEventsError::OtherEvents));
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
    /// Greatest count of one event at one privilege. A count of cycles at 3 GHz reaches this value in 48 years.
    pub const MAXIMUM: u64 = (1 << 62) - 1;

    /// Creates a feed for these events. Every count is 0.
    pub const fn new(events: &FedEvents) -> Self {
        Self { cells: [0; EVENTS * CELLS], of: events.identity() }
    }

    /// Adds `count` to the count of an event. The sum saturates at [`MAXIMUM`](Self::MAXIMUM).
    ///
    /// # Errors
    /// The event is not in the [`FedEvents`] of this feed.
    #[inline]
    pub fn add(
        &mut self,
        event: FedEvent,
        privilege: Privilege,
        count: u64,
    ) -> Result<(), FedEventsError> {
        if event.of != self.of {
            return Err(FedEventsError::OtherEvents);
        }
        let cell = match privilege {
            Privilege::User => USER,
            Privilege::Kernel => KERNEL,
        };
        let base = usize::from(event.place) % EVENTS * CELLS;
        let held = &mut self.cells[base + cell];
        // Each privilege stays below 2^62, so that their sum cannot overflow.
        *held = held.saturating_add(count).min(Self::MAXIMUM);
        self.cells[base + BOTH] = self.cells[base + USER] + self.cells[base + KERNEL];
        Ok(())
    }

    /// Returns the count of an event at this privilege. The count does not include events that
    /// [`VirtualPmu::advance`](crate::VirtualPmu::advance) has consumed. Returns 0 if the event is not in the
    /// [`FedEvents`] of this feed.
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

    /// Returns these counts, of the events `from`, as a feed of the events `to`; `None` if `to` lacks an event that has
    /// a count.
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

    /// Returns whether every count is 0.
    ///
    /// ```
    /// use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// /// Lets a whole span pass; after each overflow that interrupts, `interrupt` lets the guest handle it.
    /// fn pass(pmu: &mut VirtualPmu, feed: &mut Feed, mut interrupt: impl FnMut(&mut VirtualPmu)) {
    ///     while !feed.is_empty() {
    ///         if pmu.advance(feed).is_ok_and(|advanced| advanced.pmi) {
    ///             interrupt(pmu);
    ///         }
    ///     }
    /// }
    /// const CYCLES: EventKey = EventKey::general(0x3C, 0);
    /// let events = FedEvents::new(&[CYCLES])?;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let (mut pmu, mut feed) = (VirtualPmu::new(configuration, events)?, Feed::new(&events));
    /// let reload = |pmu: &mut VirtualPmu| {
    ///     let _ = pmu.write(0xC1, 1_000u64.wrapping_neg());
    /// };
    /// reload(&mut pmu);
    /// let _ = pmu.write(0x186, 0x53_003C);
    /// feed.add(events.find(CYCLES).unwrap(), Privilege::User, 3_500)?;
    /// let mut interrupts = 0;
    /// pass(&mut pmu, &mut feed, |pmu| {
    ///     interrupts += 1;
    ///     reload(pmu);
    /// });
    /// assert_eq!(interrupts, 3);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        self.cells.iter().all(|cell| *cell == 0)
    }

    /// Sets every count to 0, for instance after a reset of the guest. Counts that no PMU has consumed are lost.
    pub fn clear(&mut self) {
        self.cells = [0; EVENTS * CELLS];
    }

    #[inline]
    pub(crate) const fn at(&self, cell: FeedSlot) -> u64 {
        self.cells[cell.0 as usize % (EVENTS * CELLS)]
    }

    /// Takes the share `part`/`whole`, rounded down, out of each cell, and returns the shares.
    ///
    /// `exactly` is a cell that holds `whole`, out of which exactly `part` is taken. `part` is at most `whole`.
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
            // A cell of one privilege holds `whole`, of which the share is exact. The two cells of both are rounded
            // apart, and could miss the overflow by one: the kernel's share is the rest.
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

/// Reason why a set of events or a feed is refused. The failed call changes and counts nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum FedEventsError {
    /// The set of events would have more than 16 keys. The value is the number of keys.
    #[error("{0} events to feed, at most {EVENTS} can be")]
    TooMany(usize),
    /// Two of the given keys are equal. The value is one of the two keys.
    #[error("{0:?} is fed twice")]
    Twice(EventKey),
    /// The [`FedEvents`](crate::FedEvents) of the feed lack the event, or differ from the `FedEvents` of the PMU.
    #[error("of other fed events than these")]
    OtherEvents,
    /// The feed still has counts of an event that is not in the new [`FedEvents`](crate::FedEvents).
    #[error("a remainder of an event that is to be fed no longer")]
    Remainder,
}
