//! Counters by their places, and as bits of the global registers.

/// One bit per counter: general counter *n* is bit *n*, fixed counter *n* is bit 8 + *n*.
pub(crate) type Counters = u16;

/// Returns the counters in the layout of the global registers: general from bit 0, fixed from bit 32.
#[inline]
pub(crate) const fn to_global(counters: Counters) -> u64 {
    counters as u64 & 0xFF | (counters as u64 & 0xFF00) << 24
}

/// Returns the counters of the global registers' layout; other bits are dropped.
#[inline]
pub(crate) const fn from_global(bits: u64) -> Counters {
    (bits & 0xFF | bits >> 24 & 0xFF00) as Counters
}

/// Returns the places of these counters.
pub(crate) fn places(counters: Counters) -> impl Iterator<Item = usize> {
    (0..MAX_COUNTERS).filter(move |counter| counters >> counter & 1 != 0)
}

/// Greatest number of counters: general, then fixed.
pub(crate) const MAX_COUNTERS: usize = 2 * MAX_PER_KIND;

/// Greatest number of counters of a kind.
pub(crate) const MAX_PER_KIND: usize = 8;
