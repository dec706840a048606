//! A flag that one task at a time has taken.

use core::sync::atomic::Ordering;

use super::{AtomicBool, const_fn};

/// A flag that one task at a time has taken.
#[derive(Debug)]
pub(crate) struct Flag(AtomicBool);

impl Flag {
    const_fn! {
        pub(crate) const fn new() -> Self {
            Self(AtomicBool::new(false))
        }
    }

    /// Takes the flag, if it is free: what its last holder wrote is visible.
    pub(crate) fn try_take(&self) -> bool {
        !self.0.swap(true, Ordering::Acquire)
    }

    pub(crate) fn release(&self) {
        self.0.store(false, Ordering::Release);
    }
}
