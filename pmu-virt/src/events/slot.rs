//! An event that the embedder feeds, and the event's cells in a feed.

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
