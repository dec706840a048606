//! The identity of a guest's load onto real counters.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// Number of the load onto real counters that a guest is in; 0 is none. A copy of the guest is in none.
#[derive(Debug, Default)]
pub(crate) struct LoadNumber {
    pub(crate) number: u64,
    /// The guest was reset since the load.
    pub(crate) reset: bool,
}

impl Clone for LoadNumber {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl LoadNumber {
    /// Notes that the guest was reset: what the counters hold is not the guest's state any more.
    pub(crate) const fn reset(&mut self) {
        self.reset = true;
    }

    /// Returns the number of a new load.
    pub(crate) fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self { number: LAST.fetch_add(1, Relaxed).wrapping_add(1), reset: false }
    }
}
