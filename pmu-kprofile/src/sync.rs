//! Atomics and cells, on which tasks and interrupts meet.
//!
//! - `real`: the atomics and cells of `core`, for every build but a model
//! - `modeled`: those of loom, for the models in `loom_models`
//!
//! Names that `real` and `modeled` both define are imported from here: the build decides which file is used.
//! This module uses no other module.

#[cfg(all(test, loom))]
pub(crate) mod modeled;
#[cfg(not(all(test, loom)))]
mod real;

use core::sync::atomic::Ordering;

#[cfg(all(test, loom))]
use modeled as real;

#[cfg(feature = "critical-section")]
pub(crate) use crate::sync::real::exclusively;
pub(crate) use crate::sync::real::{
    AtomicBool, AtomicU64, AtomicUsize, ConstPtr, UnsafeCell, array_of, const_fn,
    seed_earlier_epoch, spin_loop,
};

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
