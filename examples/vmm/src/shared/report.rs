//! Reports of parked processors, by which a halted machine is noticed.

use core::sync::atomic::{AtomicBool, Ordering};

/// The last report of a processor: parked or not.
#[derive(Debug, Default)]
pub(crate) struct Report {
    asked: AtomicBool,
    parked: AtomicBool,
}

impl Report {
    /// Requests a new report.
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::Release);
    }

    pub(crate) fn answer(&self, parked: bool) {
        self.parked.store(parked, Ordering::Relaxed);
        self.asked.store(false, Ordering::Release);
    }

    /// Returns whether the processor has reported, and is parked.
    pub(crate) fn is_parked(&self) -> bool {
        !self.asked.load(Ordering::Acquire) && self.parked.load(Ordering::Relaxed)
    }
}
