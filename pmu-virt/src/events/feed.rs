//! Counts of the events that happened in a span of time.

use crate::events::error::FedEventsError;
use crate::events::fed::FedEvents;
use crate::events::key::Privilege;
use crate::events::slot::{BOTH, CELLS, EVENTS, FedEvent, FeedSlot, KERNEL, USER};

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
    /// use pmu_virt::{Configuration, EventKey, FedEvents, Feed, IntelConfiguration, Privilege, VirtualPmu};
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
