//! The current thread of each processor. Threads share a stack here, so that a switch only remembers which it is.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::machine::processor::{self, MAX_PROCESSORS};

/// Each processor's thread; 0 is the one that it began with.
static CURRENT: [AtomicU32; MAX_PROCESSORS] = [const { AtomicU32::new(0) }; MAX_PROCESSORS];

/// Returns this processor's thread.
///
/// # Context
/// Any.
pub fn current() -> u32 {
    CURRENT[processor::number()].load(Ordering::Relaxed)
}

/// Sets this processor's thread, and returns the one before.
pub fn set_current(new: u32) -> u32 {
    CURRENT[processor::number()].swap(new, Ordering::Relaxed)
}
