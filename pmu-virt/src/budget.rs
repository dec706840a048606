//! Budget of events until the next interrupt.

use crate::feed::{CELLS, EVENTS, FeedSlot};
use crate::{FedEvent, FedEvents, Privilege};

/// Amount of each event that may pass before an interrupt must be raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct OverflowBudget {
    /// By event, and by what a counter counts of it but nothing, as in a feed: how much may pass without an
    /// interrupt; `u64::MAX` for any amount.
    cells: [[u64; CELLS - 1]; EVENTS],
    /// The identity of the events.
    of: u32,
}

impl OverflowBudget {
    /// No interrupt is due whatever passes of these events.
    pub(crate) const fn none(events: &FedEvents) -> Self {
        Self { cells: [[u64::MAX; CELLS - 1]; EVENTS], of: events.identity() }
    }

    /// After this many of the event in this privilege, and none in the other, an interrupt is due;
    /// `None` if no running counter that interrupts counts it, or if it is due after 2⁶⁴, for which a
    /// counter of 64 bits must stand at 0. An event of others than those that the PMU is fed is due at once, since
    /// nothing is known of it: [`Feed::add`](crate::Feed::add) refuses it.
    ///
    /// Where a counter counts both privileges, both count down together: as long as what passed of
    /// an event in both stays below the smaller of its two limits, nothing is due.
    #[inline]
    pub fn of(&self, event: FedEvent, privilege: Privilege) -> Option<u64> {
        if event.of() != self.of {
            return Some(1);
        }
        let user = privilege == Privilege::User;
        let alone = self.at(FeedSlot::of(event, user, !user));
        alone.min(self.at(FeedSlot::of(event, true, true))).checked_add(1)
    }

    #[inline]
    fn at(&self, cell: FeedSlot) -> u64 {
        let of_event = &self.cells[cell.event()];
        cell.counted().and_then(|counted| of_event.get(counted)).copied().unwrap_or(u64::MAX)
    }

    /// A counter that draws from this cell has this much room.
    #[inline]
    pub(crate) fn limit(&mut self, cell: FeedSlot, room: u64) {
        let of_event = &mut self.cells[cell.event()];
        if let Some(least) = cell.counted().and_then(|counted| of_event.get_mut(counted)) {
            *least = room.min(*least);
        }
    }
}
