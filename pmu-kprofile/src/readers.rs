//! Per-CPU reader counters, grace periods, and the statistics of interrupts: Linux' sleepable RCU (SRCU).
//!
//! A reader is the dispatch of a profile interrupt. It holds a [`ReadGuard`], counted in one of its
//! processor's two sets of counters: the epoch selects the set. [`synchronize`] waits for a grace period: it
//! waits until no reader is counted in the other set, flips the epoch, and waits for the first set. New
//! readers do not enter the set that it waits for, so readers that follow each other without a gap do not
//! delay it.

use core::sync::atomic::Ordering;

use crate::sync::{AtomicU64, AtomicUsize, array_of, const_fn, spin_loop};

/// The reader counters of one processor. A cache line of their own, since every interrupt writes them.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct ReaderCounters {
    /// By epoch.
    epochs: [EpochCounters; 2],
}

/// Counters of the readers that entered in one of the two epochs.
#[derive(Debug, Default)]
struct EpochCounters {
    /// Readers that hold a guard: more than one where an interrupt was interrupted.
    active: AtomicU64,
    seen: AtomicU64,
    missed: AtomicU64,
    outside: AtomicU64,
}

/// Counts of the interrupts so far, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Statistics {
    /// Interrupts dispatched.
    pub seen: u64,
    /// Interrupts that at least one object acted on.
    pub hit: u64,
    /// Interrupts that no object acted on.
    pub missed: u64,
    /// Counts that Windows, at the version selected, would have written outside a buffer.
    pub outside: u64,
}

/// The read guard of a profile interrupt dispatch. What its holder reads of the lists stays valid until
/// [`unlock`](Self::unlock).
#[derive(Clone, Copy)]
pub(crate) struct ReadGuard<'r>(&'r EpochCounters);

impl ReadGuard<'_> {
    /// Counts an object for which Windows would have counted outside the buffer.
    pub(crate) fn count_outside(self) {
        self.0.outside.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the read-side critical section, and counts the interrupt as a hit or a miss.
    #[inline]
    pub(crate) fn unlock(self, hit: bool) {
        self.0.seen.fetch_add(1, Ordering::Relaxed);
        if !hit {
            // After `seen`: `add_to` reads them in the opposite order.
            self.0.missed.fetch_add(1, Ordering::Release);
        }
        self.0.active.fetch_sub(1, Ordering::Release);
    }
}

impl ReaderCounters {
    const_fn! {
        pub(crate) const fn new() -> Self {
            Self { epochs: array_of!(EpochCounters::new()) }
        }
    }

    #[inline]
    fn of_epoch(&self, epoch: usize) -> &EpochCounters {
        let [even, _] = &self.epochs;
        self.epochs.get(epoch & 1).unwrap_or(even)
    }

    /// Begins a read-side critical section.
    #[inline]
    pub(crate) fn read_lock(&self, epoch: &AtomicUsize) -> ReadGuard<'_> {
        // A stale epoch does no harm: `synchronize` waits for the readers of both.
        let counters = self.of_epoch(epoch.load(Ordering::Relaxed));
        // Acquires what a writer published before `synchronize` found no reader here.
        counters.active.fetch_add(1, Ordering::AcqRel);
        ReadGuard(counters)
    }

    /// Tells whether a reader on this processor holds a guard.
    pub(crate) fn is_read_locked(&self) -> bool {
        self.epochs.iter().any(|counters| counters.active.load(Ordering::Relaxed) != 0)
    }

    /// Spins until no reader that entered in an epoch holds a guard.
    fn wait_for_readers(&self, epoch: usize) {
        // A read-modify-write: a reader that enters after it acquires what was published before it.
        while self.of_epoch(epoch).active.fetch_add(0, Ordering::AcqRel) != 0 {
            spin_loop();
        }
    }

    pub(crate) fn add_to(&self, total: &mut Statistics) {
        for counters in &self.epochs {
            // `missed` first, so that it never exceeds `seen`.
            let missed = counters.missed.load(Ordering::Acquire);
            let seen = counters.seen.load(Ordering::Acquire);
            total.seen += seen;
            total.hit += seen.saturating_sub(missed);
            total.missed += missed;
            total.outside += counters.outside.load(Ordering::Relaxed);
        }
    }
}

impl EpochCounters {
    const_fn! {
        const fn new() -> Self {
            Self {
                active: AtomicU64::new(0),
                seen: AtomicU64::new(0),
                missed: AtomicU64::new(0),
                outside: AtomicU64::new(0),
            }
        }
    }
}

/// Waits for a grace period: until each reader that held a guard has released it. Later readers see what was
/// published before the call: each counter was 0 at some time since, so a reader that it counts now entered
/// after that.
///
/// The caller holds the write guard, so there is one caller at a time.
pub(crate) fn synchronize(readers: &[ReaderCounters], epoch: &AtomicUsize) {
    let now = epoch.load(Ordering::Relaxed);
    // Only readers that loaded the epoch before it last flipped are counted here.
    readers.iter().for_each(|counters| counters.wait_for_readers(now ^ 1));
    epoch.store(now ^ 1, Ordering::Relaxed);
    readers.iter().for_each(|counters| counters.wait_for_readers(now));
}
