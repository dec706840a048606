//! When the next interrupt is due.

use crate::feed::{EVENTS, KERNEL, USER};
use crate::model::ALL;
use crate::{EventPolicy, FedEvent, Privilege, VirtualPmu};

/// How much of each event may pass before an interrupt must be raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Headroom {
    /// User, then kernel, of each event; `u64::MAX` for never.
    events: [[u64; 2]; EVENTS],
}

impl Headroom {
    /// After this many of the event in this privilege, and none in the other, an interrupt is due;
    /// `None` if no running counter that interrupts counts it.
    ///
    /// Where a counter counts both privileges, both count down together: as long as what passed of
    /// an event in both stays below the smaller of its two limits, nothing is due.
    #[inline]
    pub fn of(&self, event: FedEvent, privilege: Privilege) -> Option<u64> {
        let limits = self.events[usize::from(event.0) % EVENTS];
        let limit = match privilege {
            Privilege::User => limits[0],
            Privilege::Kernel => limits[1],
        };
        (limit != u64::MAX).then_some(limit)
    }
}

impl<P: EventPolicy> VirtualPmu<P> {
    /// How much of each event may pass before an interrupt must be raised: what to set a timer to.
    ///
    /// A counter of 64 bits that stands at 0 has one event more to go than the answer can say.
    #[inline]
    pub fn next_overflow(&self) -> Headroom {
        let model = &self.model;
        let mut headroom = Headroom { events: [[u64::MAX; 2]; EVENTS] };
        let mut left = model.running() & model.interrupting;
        while left != 0 {
            let place = left.trailing_zeros() as usize % ALL;
            left &= left - 1;
            let cell = model.cells[place];
            let missing = (model.layout.mask(place) - model.values[place]).saturating_add(1);
            let limits = &mut headroom.events[cell.event()];
            // 0 where the privilege is counted, all ones where it is not.
            let privileges = usize::from(cell.0);
            let not_user = ((privileges & USER) as u64).wrapping_sub(1);
            let not_kernel = ((privileges & KERNEL) as u64 >> 1).wrapping_sub(1);
            limits[0] = limits[0].min(missing | not_user);
            limits[1] = limits[1].min(missing | not_kernel);
        }
        headroom
    }
}
