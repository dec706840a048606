//! Per-processor marks of interrupts in flight, and their statistics.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pmu_core::ProcessorNumber;

/// Where one processor's interrupts say that they are looking at the lists. A cache line of its own,
/// since every interrupt writes it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Mark {
    /// How many examinations are under way: more than one where an interrupt was interrupted.
    in_flight: AtomicU32,
    seen: AtomicU64,
    hit: AtomicU64,
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

impl Mark {
    pub(crate) const fn new() -> Self {
        Self {
            in_flight: AtomicU32::new(0),
            seen: AtomicU64::new(0),
            hit: AtomicU64::new(0),
            outside: AtomicU64::new(0),
        }
    }

    /// An examination begins. What it then reads of the lists stays valid until it
    /// [leaves](Self::leave).
    #[inline]
    pub(crate) fn enter(&self) {
        // A read-modify-write, ordered before the load of the current generation: see `is_idle`.
        self.in_flight.fetch_add(1, Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn leave(&self, hits: u32, outside: u32) {
        self.seen.fetch_add(1, Ordering::Relaxed);
        if hits != 0 {
            self.hit.fetch_add(1, Ordering::Relaxed);
        }
        if outside != 0 {
            self.outside.fetch_add(outside.into(), Ordering::Relaxed);
        }
        self.in_flight.fetch_sub(1, Ordering::Release);
    }

    /// Whether no examination is under way. Once this was seen true after a generation was replaced,
    /// no examination on this processor uses the old one: a later one enters after this
    /// read-modify-write, and so sees the new one.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.fetch_add(0, Ordering::SeqCst) == 0
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
