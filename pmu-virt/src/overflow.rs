//! When the next interrupt is due.

use crate::feed::{CELLS, EVENTS, FeedSlot};
use crate::model::{MAX_COUNTERS, MAX_PER_KIND};
use crate::{EventPolicy, FedEvent, Privilege, VirtualPmu};

/// How much of each event may pass before an interrupt must be raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct OverflowBudget {
    /// By what counters count of an event, as in a feed: how much may pass without an interrupt;
    /// `u64::MAX` for any amount.
    cells: [u64; EVENTS * CELLS],
}

impl OverflowBudget {
    /// After this many of the event in this privilege, and none in the other, an interrupt is due;
    /// `None` if no running counter that interrupts counts it, or if it is due after 2⁶⁴, for which a
    /// counter of 64 bits must stand at 0.
    ///
    /// Where a counter counts both privileges, both count down together: as long as what passed of
    /// an event in both stays below the smaller of its two limits, nothing is due.
    #[inline]
    pub fn of(&self, event: FedEvent, privilege: Privilege) -> Option<u64> {
        let user = privilege == Privilege::User;
        let alone = self.at(FeedSlot::new(event, user, !user));
        alone.min(self.at(FeedSlot::new(event, true, true))).checked_add(1)
    }

    #[inline]
    const fn at(&self, cell: FeedSlot) -> u64 {
        self.cells[cell.0 as usize % (EVENTS * CELLS)]
    }
}

impl<P: EventPolicy> VirtualPmu<P> {
    /// How much of each event may pass before an interrupt must be raised: what to set a timer to.
    #[inline]
    pub fn next_overflow(&self) -> OverflowBudget {
        let model = &self.model;
        let mut budget = OverflowBudget { cells: [u64::MAX; EVENTS * CELLS] };
        let mut left = model.running() & model.interrupting;
        while left != 0 {
            let place = left.trailing_zeros() as usize % MAX_COUNTERS;
            left &= left - 1;
            let (kind, place) = (place / MAX_PER_KIND, place % MAX_PER_KIND);
            let room = model.layout.masks[kind] - model.values[kind][place];
            let cell = usize::from(model.cells[kind][place].0);
            let least = &mut budget.cells[cell % (EVENTS * CELLS)];
            *least = room.min(*least);
        }
        budget
    }
}
