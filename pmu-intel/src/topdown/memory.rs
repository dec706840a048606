//! The memory that tasks and the interrupt path of the top-down counters share.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU8, AtomicU64};

use crate::topdown::counts::{PARTS, TopDownCounts};

/// Memory for the top-down counters of one processor: 88 bytes.
///
/// The embedder provides the memory, commonly one static per processor. Tasks use the memory through
/// [`TopDownCounter`](crate::topdown::TopDownCounter). The interrupt handler uses the same memory through
/// [`TopDownInterrupt`](crate::topdown::TopDownInterrupt). The interrupt may come at any time, even before a task has
/// taken the memory. A flag in the memory tells the interrupt handler whether a task has taken the memory.
///
/// ```
/// use pmu_intel::topdown::TopDownMemory;
/// const PROCESSORS: usize = 4;
/// static TOP_DOWN: [TopDownMemory; PROCESSORS] = [const { TopDownMemory::new() }; PROCESSORS];
/// ```
#[derive(Debug)]
pub struct TopDownMemory {
    /// Everything counted up to the last harvest.
    totals: [AtomicU64; PARTS + 2],
    state: AtomicU8,
}

/// Bits of `state`.
const TAKEN: u8 = 1 << 0;

/// The registers hold what is counted.
const COUNTING: u8 = 1 << 1;

/// A harvest is under way: an interrupt leaves the registers alone.
const HARVESTING: u8 = 1 << 2;

/// The slots' counter wrapped, and the next harvest has to count that.
const WRAPPED: u8 = 1 << 3;

/// An overflow was acknowledged whose interrupt may still come.
const LATE: u8 = 1 << 4;

/// The registers do not begin at 0: a write of them failed.
const STALE: u8 = 1 << 5;

/// The slots' counter could not be started again. The registers hold what was counted.
const HALTED: u8 = 1 << 6;

impl TopDownMemory {
    /// Creates memory that no [`TopDownCounter`](crate::topdown::TopDownCounter) has taken.
    pub const fn new() -> Self {
        Self { totals: [const { AtomicU64::new(0) }; PARTS + 2], state: AtomicU8::new(0) }
    }

    /// Takes the memory for a counter; `false` if a counter has it.
    pub(crate) fn take(&self) -> bool {
        let take = |state: u8| (state & TAKEN == 0).then_some(state & LATE | TAKEN | STALE);
        let taken = self.state.fetch_update(AcqRel, Relaxed, take).is_ok();
        if taken {
            self.totals.iter().for_each(|word| word.store(0, Relaxed));
        }
        taken
    }

    /// Gives the memory back. A late interrupt stays expected.
    pub(crate) fn give_back(&self) {
        self.state.fetch_and(LATE, Release);
    }

    /// Returns whether a counter has the memory.
    pub(crate) fn is_taken(&self) -> bool {
        self.has(TAKEN)
    }

    /// Returns whether the registers hold what is counted.
    pub(crate) fn is_counting(&self) -> bool {
        self.has(COUNTING)
    }

    pub(crate) fn set_counting(&self, counting: bool) {
        self.set(COUNTING, counting);
    }

    /// Returns whether the registers may hold what is not counted: their contents are unknown.
    pub(crate) fn is_stale(&self) -> bool {
        self.has(STALE)
    }

    pub(crate) fn set_stale(&self, stale: bool) {
        self.set(STALE, stale);
    }

    /// Returns whether the slots' counter stands still after a failed access.
    pub(crate) fn is_halted(&self) -> bool {
        self.has(HALTED)
    }

    pub(crate) fn set_halted(&self, halted: bool) {
        self.set(HALTED, halted);
    }

    /// Begins a harvest. Returns `false` if one is under way.
    pub(crate) fn begin(&self) -> bool {
        self.state.fetch_or(HARVESTING, Acquire) & HARVESTING == 0
    }

    /// Ends a harvest.
    pub(crate) fn end(&self) {
        self.state.fetch_and(!HARVESTING, Release);
    }

    pub(crate) fn is_harvesting(&self) -> bool {
        self.has(HARVESTING)
    }

    /// Notes that the slots' counter wrapped.
    pub(crate) fn note_wrap(&self) {
        self.set(WRAPPED, true);
    }

    /// Returns whether the slots' counter wrapped, and forgets the wrap.
    pub(crate) fn take_wrap(&self) -> bool {
        self.take_bit(WRAPPED)
    }

    /// Expects the interrupt of an overflow that was acknowledged.
    pub(crate) fn expect_late(&self) {
        self.set(LATE, true);
    }

    /// Returns whether a late interrupt was expected, and expects none any more.
    pub(crate) fn take_late(&self) -> bool {
        self.take_bit(LATE)
    }

    /// Returns everything counted up to the last harvest.
    pub(crate) fn totals(&self) -> TopDownCounts {
        TopDownCounts::of_words(self.totals.each_ref().map(|word| word.load(Relaxed)))
    }

    /// Adds what was counted since the last harvest. Called within a harvest only.
    pub(crate) fn add(&self, more: &TopDownCounts) {
        let sum = self.totals().plus(more);
        self.totals.iter().zip(sum.words()).for_each(|(word, value)| word.store(value, Relaxed));
    }

    fn has(&self, bit: u8) -> bool {
        self.state.load(Acquire) & bit != 0
    }

    fn set(&self, bit: u8, on: bool) {
        if on {
            self.state.fetch_or(bit, AcqRel);
        } else {
            self.state.fetch_and(!bit, AcqRel);
        }
    }

    fn take_bit(&self, bit: u8) -> bool {
        self.state.fetch_and(!bit, AcqRel) & bit != 0
    }
}

impl Default for TopDownMemory {
    fn default() -> Self {
        Self::new()
    }
}

const _: () = assert!(size_of::<TopDownMemory>() == 88);
