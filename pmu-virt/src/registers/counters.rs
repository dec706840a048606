//! Counters by their positions, and as bits of the global registers.

/// Set of counters, one bit per counter: general counter *n* is bit *n*, fixed counter *n* is bit 8 + *n*.
pub(crate) type Counters = u16;

/// Returns the counters as bits of the global registers: general from bit 0, fixed from bit 32.
#[inline]
pub(crate) const fn to_global(counters: Counters) -> u64 {
    counters as u64 & 0xFF | (counters as u64 & 0xFF00) << 24
}

/// Returns the counters of these bits of a global register; other bits are dropped.
#[inline]
pub(crate) const fn from_global(bits: u64) -> Counters {
    (bits & 0xFF | bits >> 24 & 0xFF00) as Counters
}

/// Returns the place of each counter of the set, 0–15.
#[inline]
pub(crate) fn places(counters: Counters) -> impl Iterator<Item = usize> {
    (0..MAX_COUNTERS).filter(move |counter| counters >> counter & 1 != 0)
}

/// Greatest number of counters of a processor: general counters have places 0–7, fixed ones 8–15.
pub(crate) const MAX_COUNTERS: usize = 2 * MAX_PER_KIND;

/// Greatest number of counters of a kind.
pub(crate) const MAX_PER_KIND: usize = 8;
