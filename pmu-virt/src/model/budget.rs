//! Budget of events until the next interrupt.

use crate::events::fed::FedEvents;
use crate::events::key::Privilege;
use crate::events::slot::{CELLS, EVENTS, FedEvent, FeedSlot};

/// Result of [`VirtualPmu::next_overflow`](crate::VirtualPmu::next_overflow): for each event, how many times the event
/// must happen to cause an interrupt. The embedder can use these numbers to set a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct OverflowBudget {
    /// By event and privileges, as in a feed: count up to which no interrupt is due; `u64::MAX` for any count.
    cells: [[u64; CELLS - 1]; EVENTS],
    /// Identity of the events of the PMU.
    of: u32,
}

impl OverflowBudget {
    /// Creates a budget without limits.
    pub(crate) const fn none(events: &FedEvents) -> Self {
        Self { cells: [[u64::MAX; CELLS - 1]; EVENTS], of: events.identity() }
    }

    /// Returns how many times the event must happen at this privilege to cause an interrupt. The event must not happen
    /// at the other privilege in the meantime. Two results are special:
    ///
    /// - `None`: the event causes no interrupt, because no running counter with an enabled interrupt counts the event.
    ///   A 64-bit counter that holds 0 overflows after 2⁶⁴ events. This number does not fit a `u64`, so the result is
    ///   also `None`.
    /// - 0: the event is not in the [`FedEvents`] of the PMU, so [`Feed::add`](crate::Feed::add) refuses the event. For
    ///   an event of the PMU, the result is never 0.
    ///
    /// If the event happens at both privileges, call this method for each privilege, and use the smaller result. An
    /// interrupt then comes only after the event has happened at least this many times in total.
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

    /// Lowers the limit of this cell to `room`, if the limit is higher.
    #[inline]
    pub(crate) fn limit(&mut self, cell: FeedSlot, room: u64) {
        let of_event = &mut self.cells[cell.event()];
        if let Some(least) = cell.counted().and_then(|counted| of_event.get_mut(counted)) {
            *least = room.min(*least);
        }
    }
}
