//! The outcome of counting a feed.

use crate::registers::counters::{Counters, MAX_COUNTERS, places, to_global};

/// Result of [`VirtualPmu::advance`](crate::VirtualPmu::advance): the counters that overflowed, and whether an overflow
/// raised an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Advanced {
    /// Bitmap of the counters that wrapped. The bits are those of the global status: general counters from bit 0, fixed
    /// counters from bit 32.
    pub overflowed: u64,
    /// An overflow raised an interrupt. The interrupt is pending until [`deliver_pmi`](crate::VirtualPmu::deliver_pmi)
    /// is called.
    pub pmi: bool,
    /// Bitmap of the overflowed counters that [write records](crate::precise::VirtualPrecise::record). The overflow of
    /// such a counter does not set a bit of the status, and does not interrupt.
    pub records: u64,
    pub(super) wraps: [u32; MAX_COUNTERS],
}

impl Advanced {
    pub(crate) const NOTHING: Self =
        Self { overflowed: 0, pmi: false, records: 0, wraps: [0; MAX_COUNTERS] };

    /// Returns how many times one counter wrapped. `bit` is the position of the counter's bit in
    /// [`overflowed`](Self::overflowed).
    pub fn wraps(&self, bit: u8) -> u32 {
        let place = match bit {
            0..8 => bit,
            32..40 => bit - 24,
            _ => return 0,
        };
        self.wraps.get(usize::from(place)).copied().unwrap_or(0)
    }

    /// Returns the same, less the overflows of these counters, for the mock.
    pub(crate) fn without_overflows(mut self, counters: Counters) -> Self {
        self.overflowed &= !to_global(counters);
        places(counters).for_each(|counter| self.wraps[counter % MAX_COUNTERS] = 0);
        self
    }

    pub(crate) fn and(mut self, later: Self) -> Self {
        self.overflowed |= later.overflowed;
        self.pmi |= later.pmi;
        self.records |= later.records;
        for (wraps, later) in self.wraps.iter_mut().zip(later.wraps) {
            *wraps = wraps.saturating_add(later);
        }
        self
    }
}
