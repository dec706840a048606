//! When the next interrupt is due.

use crate::feed::{CELLS, EVENTS, FeedSlot};
use crate::model::{MAX_COUNTERS, Model};
use crate::{EventPolicy, FedEvent, Privilege, VirtualPmu};

/// How much of each event may pass before an interrupt must be raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct OverflowBudget {
    /// By event, and by what a counter counts of it but nothing, as in a feed: how much may pass without an
    /// interrupt; `u64::MAX` for any amount.
    cells: [[u64; CELLS - 1]; EVENTS],
}

impl OverflowBudget {
    /// No interrupt is due whatever passes.
    pub(crate) const NONE: Self = Self { cells: [[u64::MAX; CELLS - 1]; EVENTS] };

    /// After this many of the event in this privilege, and none in the other, an interrupt is due;
    /// `None` if no running counter that interrupts counts it, or if it is due after 2⁶⁴, for which a
    /// counter of 64 bits must stand at 0. The event is one of those that the PMU is fed.
    ///
    /// Where a counter counts both privileges, both count down together: as long as what passed of
    /// an event in both stays below the smaller of its two limits, nothing is due.
    #[inline]
    pub fn of(&self, event: FedEvent, privilege: Privilege) -> Option<u64> {
        let user = privilege == Privilege::User;
        let alone = self.at(FeedSlot::of(event, user, !user));
        alone.min(self.at(FeedSlot::of(event, true, true))).checked_add(1)
    }

    #[inline]
    fn at(&self, cell: FeedSlot) -> u64 {
        cell.privileges().map_or(u64::MAX, |counted| self.cells[cell.event()][counted])
    }

    fn of_model(model: &Model) -> Self {
        let mut budget = Self::NONE;
        let mut left = model.running() & model.interrupting;
        while left != 0 {
            let counter = left.trailing_zeros() as usize % MAX_COUNTERS;
            left &= left - 1;
            let cell = model.cells[counter];
            if let Some(counted) = cell.privileges() {
                let room = model.layout.mask(counter) - model.registers.counter(counter);
                let least = &mut budget.cells[cell.event()][counted];
                *least = room.min(*least);
            }
        }
        budget
    }
}

impl<P: EventPolicy> VirtualPmu<P> {
    /// How much of each event may pass before an interrupt must be raised: what to set a timer to. It is computed
    /// once after each change.
    ///
    /// ```
    /// use pmu_virt::{Configuration, EventKey, FedEvents, IntelConfiguration, Privilege, VirtualPmu};
    /// const CYCLES: EventKey = EventKey::general(0x3C, 0);
    /// let events = FedEvents::new(&[CYCLES])?;
    /// let cycles = events.find(CYCLES).unwrap();
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let mut pmu = VirtualPmu::new(configuration, events)?;
    /// // The guest's kernel counts its cycles, and asks for an interrupt in a thousand of them.
    /// let _ = pmu.write(0xC1, 1000u64.wrapping_neg());
    /// let _ = pmu.write(0x186, 0x52_003C);
    /// assert_eq!(pmu.next_overflow().of(cycles, Privilege::Kernel), Some(1000));
    /// assert_eq!(pmu.next_overflow().of(cycles, Privilege::User), None);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    #[inline]
    pub fn next_overflow(&mut self) -> &OverflowBudget {
        if self.model.budget_is_stale {
            self.model.refresh_budget();
        }
        &self.model.budget
    }
}

impl Model {
    #[inline(never)]
    fn refresh_budget(&mut self) {
        self.budget = OverflowBudget::of_model(self);
        self.budget_is_stale = false;
    }
}
