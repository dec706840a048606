//! The processors that the guest wants to be reset.

use core::sync::atomic::{AtomicU16, Ordering};

/// The processors that the guest wants to be reset.
#[derive(Debug)]
pub(crate) struct Requests {
    processors: u8,
    /// A bit each.
    pending: AtomicU16,
}

impl Requests {
    /// Creates the requests to a machine with this many processors, at most 16.
    pub(crate) fn new(processors: u8) -> Self {
        Self { processors, pending: AtomicU16::new(0) }
    }

    /// Requests RESET of a processor, which performs it at its next exit. An absent processor is ignored.
    pub(crate) fn request(&self, processor: u8) {
        if processor < self.processors {
            self.pending.fetch_or(1 << processor, Ordering::AcqRel);
        }
    }

    /// Returns whether RESET of this processor was requested and is not done.
    pub(crate) fn is_requested(&self, processor: u8) -> bool {
        self.pending.load(Ordering::Acquire) & 1 << processor != 0
    }

    /// Notes that the processor was reset.
    pub(crate) fn done(&self, processor: u8) {
        self.pending.fetch_and(!(1 << processor), Ordering::AcqRel);
    }

    /// Returns whether any is still to be done.
    pub(crate) fn are_some(&self) -> bool {
        self.pending.load(Ordering::Acquire) != 0
    }
}
