//! The values of counters in a record.

use pmu_core::{CounterId, CounterSet};

use crate::precise::decode::words::Words;

/// The values that counters and the top-down metrics had at the sampled instruction.
#[derive(Clone, Copy, Debug)]
pub struct CounterValues<'a> {
    /// One bit per value: general counters in the lower half, fixed counters in the upper half.
    masks: u64,
    words: Words<'a>,
    has_metrics: bool,
}

impl<'a> CounterValues<'a> {
    pub(crate) fn new(group: Words<'a>) -> Option<Self> {
        let has_metrics = group.get(1)? & 0xFFFF_FFFF != 0;
        Some(Self { masks: group.get(0)?, words: group.after(2), has_metrics })
    }

    /// Returns each counter whose value is in the record, together with the value. The iterator leaves out counters
    /// that [`CounterId`] cannot represent.
    pub fn iter(&self) -> impl Iterator<Item = (CounterId, u64)> + 'a {
        let Self { masks, words, .. } = *self;
        (0..64).filter(move |bit| masks >> bit & 1 != 0).enumerate().filter_map(
            move |(place, bit)| {
                let counter = CounterSet::from_bits(1 << bit).iter().next()?;
                Some((counter, words.get(place)?))
            },
        )
    }

    /// Returns the number of issue slots (fixed counter 3) and the value of `MSR_PERF_METRICS`. Returns `None` if the
    /// precise record lacks these values.
    pub fn metrics(&self) -> Option<(u64, u64)> {
        let first = self.words.len().checked_sub(2).filter(|_| self.has_metrics)?;
        Some((self.words.get(first)?, self.words.get(first + 1)?))
    }
}
