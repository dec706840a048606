//! The outcome of counting a feed.

use crate::registers::counters::MAX_COUNTERS;

/// The outcome of an [`advance`](crate::VirtualPmu::advance).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Advanced {
    /// The counters that wrapped, in the layout of the global status: general from bit 0, fixed from
    /// bit 32.
    pub overflowed: u64,
    /// An interrupt was raised: [deliver](crate::VirtualPmu::deliver_pmi) it.
    pub pmi: bool,
    pub(super) wraps: [u32; MAX_COUNTERS],
}

impl Advanced {
    pub(crate) const NOTHING: Self = Self { overflowed: 0, pmi: false, wraps: [0; MAX_COUNTERS] };

    /// Returns the number of times that a counter wrapped, by its bit in [`overflowed`](Self::overflowed).
    pub fn wraps(&self, bit: u8) -> u32 {
        let place = match bit {
            0..8 => bit,
            32..40 => bit - 24,
            _ => return 0,
        };
        self.wraps.get(usize::from(place)).copied().unwrap_or(0)
    }

    pub(crate) fn and(mut self, later: Self) -> Self {
        self.overflowed |= later.overflowed;
        self.pmi |= later.pmi;
        for (wraps, later) in self.wraps.iter_mut().zip(later.wraps) {
            *wraps = wraps.saturating_add(later);
        }
        self
    }
}
