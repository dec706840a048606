//! Budget of events until the next interrupt.

use crate::events::fed::FedEvents;
use crate::events::key::Privilege;
use crate::events::slot::{CELLS, EVENTS, FedEvent, FeedSlot};

/// Amount of each event that may pass before an interrupt must be raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct OverflowBudget {
    /// By event and privileges, as in a feed: amount that may pass without an interrupt; `u64::MAX` for any amount.
    cells: [[u64; CELLS - 1]; EVENTS],
    /// The identity of the events.
    of: u32,
}

impl OverflowBudget {
    /// Creates a budget without limits.
    pub(crate) const fn none(events: &FedEvents) -> Self {
        Self { cells: [[u64::MAX; CELLS - 1]; EVENTS], of: events.identity() }
    }

    /// Returns the number of the event in this privilege, with none in the other, after which an interrupt is due.
    /// `None` if no running counter that interrupts counts it, or if the number is 2⁶⁴, which takes a counter of 64
    /// bits at 0. For an event of other [`FedEvents`] than the PMU's it is 0, which no counter's is:
    /// [`Feed::add`](crate::Feed::add) refuses such an event.
    ///
    /// The privileges of a counter that counts both count down together: no interrupt is due as long as the event's
    /// sum over both stays below the smaller of its two limits.
    #[inline]
    pub fn of(&self, event: FedEvent, privilege: Privilege) -> Option<u64> {
        if event.of() != self.of {
            return Some(0);
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

    /// Limits the budget to the `room` of a counter that draws from this cell.
    #[inline]
    pub(crate) fn limit(&mut self, cell: FeedSlot, room: u64) {
        let of_event = &mut self.cells[cell.event()];
        if let Some(least) = cell.counted().and_then(|counted| of_event.get_mut(counted)) {
            *least = room.min(*least);
        }
    }
}
