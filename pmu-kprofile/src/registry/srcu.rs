//! Per-CPU reader counters, grace periods, and the statistics of interrupts: Linux' sleepable RCU (SRCU).
//!
//! A reader is the dispatch of a profile interrupt. A reader holds a [`ReadLock`], which is counted in one of the two
//! sets of counters of the reader's processor: the epoch selects the set. A [`GracePeriod`] waits until the set that
//! the epoch does not select counts no reader, flips the epoch, and waits until the other set counts no reader. New
//! readers do not enter the set for which the grace period waits, so back-to-back readers do not delay it.
//!
//! A grace period is polled, as by Linux' `poll_state_synchronize_srcu`, one step at a time. A caller that waits polls
//! until the grace period is over; a caller that must not wait polls once.

#[cfg(all(test, loom))]
mod loom_models;

use core::sync::atomic::Ordering;

use crate::sync::{AtomicU64, AtomicUsize, array_of, const_fn, seed_earlier_epoch};

/// The reader counters of one processor, on a cache line of their own because every interrupt writes them.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct ReaderCounters {
    /// The counters of each epoch.
    epochs: [EpochCounters; 2],
}

/// Counters of the readers that entered in one of the two epochs.
#[derive(Debug, Default)]
struct EpochCounters {
    /// Number of readers that hold a lock: more than one if an interrupt was interrupted.
    active: AtomicU64,
    seen: AtomicU64,
    missed: AtomicU64,
    outside: AtomicU64,
}

/// Numbers of the profile interrupts that were dispatched so far: all interrupts, interrupts on which an object acted,
/// and interrupts on which no object acted. See [`Profiles::statistics`](crate::Profiles::statistics).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Statistics {
    /// Number of dispatched interrupts.
    pub seen: u64,
    /// Number of interrupts on which at least one object acted.
    pub hit: u64,
    /// Number of interrupts on which no object acted.
    pub missed: u64,
    /// Number of counts that belong outside an object's buffer. The Windows version in the object's
    /// [rules](crate::ProfileObject::rules) writes such counts; this crate does not.
    pub outside: u64,
}

/// A read-side critical section: the current snapshot at its beginning stays valid until [`unlock`](Self::unlock).
pub(super) struct ReadLock<'r>(&'r EpochCounters);

impl ReadLock<'_> {
    /// Counts an object for which Windows would have counted outside the buffer.
    pub(super) fn count_outside(&self) {
        self.0.outside.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the read-side critical section, and counts the interrupt as a hit or a miss.
    #[inline]
    pub(super) fn unlock(self, hit: bool) {
        self.0.seen.fetch_add(1, Ordering::Relaxed);
        if !hit {
            // After `seen`: `add_to` reads them in the opposite order.
            self.0.missed.fetch_add(1, Ordering::Release);
        }
        // Release: a writer that finds no reader here writes after this reader's last read.
        self.0.active.fetch_sub(1, Ordering::Release);
    }
}

impl ReaderCounters {
    const_fn! {
        pub(super) const fn new() -> Self {
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
    pub(super) fn read_lock(&self, epoch: &AtomicUsize) -> ReadLock<'_> {
        // A stale epoch does no harm: a grace period waits for the readers of both.
        let counters = self.of_epoch(epoch.load(Ordering::Relaxed));
        // Acquires what a writer published before a grace period found no reader here.
        counters.active.fetch_add(1, Ordering::AcqRel);
        ReadLock(counters)
    }

    /// Returns whether a reader on this processor holds a lock.
    pub(super) fn is_read_locked(&self) -> bool {
        // Relaxed: the question is for the caller's own processor, which sees its own dispatches in order.
        self.epochs.iter().any(|counters| counters.active.load(Ordering::Relaxed) != 0)
    }

    /// Returns whether a reader that entered in an epoch holds a lock.
    fn is_active(&self, epoch: usize) -> bool {
        // A read-modify-write, so a reader that enters later acquires what was published earlier.
        self.of_epoch(epoch).active.fetch_add(0, Ordering::AcqRel) != 0
    }

    pub(super) fn add_to(&self, total: &mut Statistics) {
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

/// The progress of a grace period, which is over once each reader that held a lock at its beginning has released it.
/// Later readers see everything published before it began: each counter was 0 at some time since, so a reader that it
/// counts now entered after that.
///
/// Only the holder of the write lock accesses it, so one grace period is polled at a time.
#[derive(Debug, Default)]
pub(super) struct GracePeriod {
    /// Number of the two counter sets that remain to be waited for.
    sets: u8,
    /// The first processor whose readers have not been seen to drain.
    next: usize,
}

impl GracePeriod {
    /// A grace period that is over.
    pub(super) const OVER: Self = Self { sets: 0, next: 0 };

    /// A grace period that begins now.
    pub(super) const BEGUN: Self = Self { sets: 2, next: 0 };

    /// Takes all steps that are possible without waiting, and returns whether the grace period is over.
    pub(super) fn poll(&mut self, readers: &[ReaderCounters], epoch: &AtomicUsize) -> bool {
        while self.sets > 0 {
            // At first, only readers that loaded the epoch before its last flip are counted there.
            let other = epoch.load(Ordering::Relaxed) ^ 1;
            seed_earlier_epoch(self.sets == 2);
            while let Some(reader) = readers.get(self.next) {
                if reader.is_active(other) {
                    return false;
                }
                self.next += 1;
            }
            *self = Self { sets: self.sets - 1, next: 0 };
            if self.sets == 1 {
                epoch.store(other, Ordering::Relaxed);
            }
        }
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// P. McKenney, "Sleepable RCU" (LWN, 2006): readers that enter after the flip are counted in the other set.
    #[test]
    fn readers_that_follow_each_other_without_a_gap_do_not_delay_a_grace_period() {
        let readers = [ReaderCounters::new(), ReaderCounters::new()];
        let epoch = AtomicUsize::new(0);
        let mut earlier = readers[0].read_lock(&epoch);
        for number in 0..4 {
            let mut period = GracePeriod::BEGUN;
            assert!(!period.poll(&readers, &epoch), "{number}: an earlier reader holds its lock");
            let later = readers[1].read_lock(&epoch);
            earlier.unlock(true);
            assert!(period.poll(&readers, &epoch), "{number}: only a later reader holds a lock");
            earlier = later;
        }
        earlier.unlock(true);
    }
}
