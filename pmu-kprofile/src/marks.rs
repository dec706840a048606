//! Per-processor marks of interrupts in flight, and their statistics.
//!
//! An examination is counted in one of two halves of its processor's mark, by the epoch. Who waits for
//! examinations to end waits for both halves, and changes the epoch in between: what he waits for is then
//! the half that no new examination enters, so he is not kept waiting by those that follow each other
//! without a gap. (As Linux' sleepable RCU.)

use core::sync::atomic::Ordering;

use crate::sync::{AtomicU64, AtomicUsize, array_of, const_fn, spin_loop};

/// Where one processor's interrupts say that they are looking at the lists. A cache line of its own,
/// since every interrupt writes it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Mark {
    /// By epoch.
    counts: [Counts; 2],
}

/// Of the examinations that entered in one of the two epochs.
#[derive(Debug, Default)]
struct Counts {
    /// How many are under way, more than one where an interrupt was interrupted.
    under_way: AtomicU64,
    seen: AtomicU64,
    missed: AtomicU64,
    outside: AtomicU64,
}

/// What became of the interrupts so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Statistics {
    /// Interrupts examined.
    pub seen: u64,
    /// Interrupts that at least one object acted on.
    pub hit: u64,
    /// Interrupts that no object acted on.
    pub missed: u64,
    /// Counts that Windows, at the version selected, would have written outside a buffer.
    pub outside: u64,
}

/// An examination under way.
#[derive(Clone, Copy)]
pub(crate) struct Entered<'m>(&'m Counts);

impl Entered<'_> {
    /// For an object, Windows would have counted outside the buffer.
    pub(crate) fn outside(self) {
        self.0.outside.fetch_add(1, Ordering::Relaxed);
    }

    /// The examination ends.
    #[inline]
    pub(crate) fn leave(self, hit: bool) {
        self.0.seen.fetch_add(1, Ordering::Relaxed);
        if !hit {
            // After `seen`, for whoever reads them in the opposite order: see `add_to`.
            self.0.missed.fetch_add(1, Ordering::Release);
        }
        self.0.under_way.fetch_sub(1, Ordering::Release);
    }
}

impl Mark {
    const_fn! {
        pub(crate) const fn new() -> Self {
            Self { counts: array_of!(Counts::new()) }
        }
    }

    #[inline]
    fn counts(&self, epoch: usize) -> &Counts {
        let [even, _] = &self.counts;
        self.counts.get(epoch & 1).unwrap_or(even)
    }

    /// An examination begins. What it then reads of the lists stays valid until it
    /// [leaves](Entered::leave).
    #[inline]
    pub(crate) fn enter(&self, epoch: &AtomicUsize) -> Entered<'_> {
        // An epoch that is no longer the current one does no harm: see `wait_until_left`.
        let counts = self.counts(epoch.load(Ordering::Relaxed));
        // Acquires what a waiter published before he found nobody here.
        counts.under_way.fetch_add(1, Ordering::AcqRel);
        Entered(counts)
    }

    /// Whether an examination is under way on this processor.
    pub(crate) fn is_under_way(&self) -> bool {
        self.counts.iter().any(|counts| counts.under_way.load(Ordering::Relaxed) != 0)
    }

    /// Waits until nobody who entered in an epoch is under way.
    fn wait(&self, epoch: usize) {
        // A read-modify-write: whoever enters after it acquires what was published before it.
        while self.counts(epoch).under_way.fetch_add(0, Ordering::AcqRel) != 0 {
            spin_loop();
        }
    }

    pub(crate) fn add_to(&self, total: &mut Statistics) {
        for counts in &self.counts {
            // `missed` first: it never exceeds what is then read as seen.
            let missed = counts.missed.load(Ordering::Acquire);
            let seen = counts.seen.load(Ordering::Acquire);
            total.seen += seen;
            total.hit += seen.saturating_sub(missed);
            total.missed += missed;
            total.outside += counts.outside.load(Ordering::Relaxed);
        }
    }
}

impl Counts {
    const_fn! {
        const fn new() -> Self {
            Self {
                under_way: AtomicU64::new(0),
                seen: AtomicU64::new(0),
                missed: AtomicU64::new(0),
                outside: AtomicU64::new(0),
            }
        }
    }
}

/// Waits until each examination that was under way has left. Later ones see what was published before:
/// nobody was in either half at some time since, so who is in it entered after that.
///
/// One caller at a time.
pub(crate) fn wait_until_left(marks: &[Mark], epoch: &AtomicUsize) {
    let now = epoch.load(Ordering::Relaxed);
    // Only those are in it who read the epoch before it last changed.
    marks.iter().for_each(|mark| mark.wait(now ^ 1));
    epoch.store(now ^ 1, Ordering::Relaxed);
    marks.iter().for_each(|mark| mark.wait(now));
}
