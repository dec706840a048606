//! The samples of one event, counted in the handler.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::workload;

/// Tag of the event.
pub const TAG: u64 = 7;

/// Number of its samples.
pub static SAMPLES: AtomicU64 = AtomicU64::new(0);

/// Number of those that are in the loop at EL0.
pub static IN_LOOP: AtomicU64 = AtomicU64::new(0);

/// Counts a sample, if it is the event's.
pub fn count(tag: u64, pc: u64) {
    if tag == TAG {
        SAMPLES.fetch_add(1, Relaxed);
        IN_LOOP.fetch_add(workload::text_at_el0().contains(&pc).into(), Relaxed);
    }
}
