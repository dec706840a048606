//! Per-processor marks of interrupts in flight, and their statistics.

use core::sync::atomic::Ordering;

use pmu_core::ProcessorNumber;

use crate::sync::{AtomicU64, const_fn, spin_loop};

/// Where one processor's interrupts say that they are looking at the lists. A cache line of its own,
/// since every interrupt writes it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Mark {
    /// Low half: how many examinations are under way, more than one where an interrupt was
    /// interrupted. High half: how often there was none after there had been.
    in_flight: AtomicU64,
    seen: AtomicU64,
    hit: AtomicU64,
    outside: AtomicU64,
}

/// The half that counts examinations under way.
const UNDER_WAY: u64 = ONCE_NONE - 1;
/// One more in the half that counts how often there was none.
const ONCE_NONE: u64 = 1 << 32;

/// How often leaving is tried in one step. Each failure means that an interrupt came in between.
const TRIES: usize = 4;

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

impl Mark {
    const_fn! {
        pub(crate) const fn new() -> Self {
            Self {
                in_flight: AtomicU64::new(0),
                seen: AtomicU64::new(0),
                hit: AtomicU64::new(0),
                outside: AtomicU64::new(0),
            }
        }
    }

    /// An examination begins. What it then reads of the lists stays valid until it
    /// [leaves](Self::leave).
    #[inline]
    pub(crate) fn enter(&self) {
        // A read-modify-write, ordered before the load of the current generation: see `wait_idle`.
        self.in_flight.fetch_add(1, Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn leave(&self, hits: u32, outside: u32) {
        self.seen.fetch_add(1, Ordering::Relaxed);
        if hits != 0 {
            // After `seen`, for whoever reads them in the opposite order: see `add_to`.
            self.hit.fetch_add(1, Ordering::Release);
        }
        if outside != 0 {
            self.outside.fetch_add(outside.into(), Ordering::Relaxed);
        }
        let mut before = self.in_flight.load(Ordering::Relaxed);
        for _ in 0..TRIES {
            let none_after = before & UNDER_WAY == 1;
            let after = before - 1 + if none_after { ONCE_NONE } else { 0 };
            let left = self.in_flight.compare_exchange(
                before,
                after,
                Ordering::Release,
                Ordering::Relaxed,
            );
            match left {
                Ok(_) => return,
                Err(now) => before = now,
            }
        }
        // Without the hint for those who wait; they see that there is none when there is none.
        self.in_flight.fetch_add(u64::MAX, Ordering::Release); // One less.
    }

    /// Whether an examination is under way on this processor.
    pub(crate) fn is_under_way(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) & UNDER_WAY != 0
    }

    /// Waits until no examination that is now under way still is. If a generation was replaced before,
    /// none uses the old one afterwards: a later one enters after this read-modify-write, and so sees
    /// the new one.
    pub(crate) fn wait_idle(&self) {
        let first = self.in_flight.fetch_add(0, Ordering::SeqCst);
        let mut now = first;
        while now & UNDER_WAY != 0 && now / ONCE_NONE == first / ONCE_NONE {
            spin_loop();
            now = self.in_flight.fetch_add(0, Ordering::SeqCst);
        }
    }

    pub(crate) fn add_to(&self, total: &mut Statistics) {
        // `hit` first: it never exceeds what is then read as seen.
        let hit = self.hit.load(Ordering::Acquire);
        let seen = self.seen.load(Ordering::Acquire);
        total.seen += seen;
        total.hit += hit;
        total.missed += seen.saturating_sub(hit);
        total.outside += self.outside.load(Ordering::Relaxed);
    }
}

/// The mark of a processor; `None` if there are fewer marks than processors.
#[inline]
pub(crate) fn mark_of(marks: &[Mark], processor: ProcessorNumber) -> Option<&Mark> {
    marks.get(processor.index())
}
