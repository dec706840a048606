//! Record of whether a machine's counters responded when sessions took them.

use core::sync::atomic::{AtomicU8, Ordering};

use crate::profile::source::KProfileSource;

// From the worst result to the best.
const NO_MEMORY: u8 = 1;
const NONE_ANSWERED: u8 = 2;
const ANSWERED: u8 = 3;

/// Record of whether the counters of a machine work, and have memory. A counter works if it keeps a value that was
/// written to it. A session records the result when it takes ownership of a processor's counters, or lacks the memory
/// for this.
///
/// ```
/// use pmu_core::profile::CounterAnswer;
/// // A `SourceInterface` returns a reference to such a value.
/// static ANSWER: CounterAnswer = CounterAnswer::new();
/// # let _ = &ANSWER;
/// ```
#[derive(Debug, Default)]
pub struct CounterAnswer(AtomicU8);

impl CounterAnswer {
    /// Creates a record without a result.
    pub const fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    /// Notes that a processor's counters answered, or that none of them did.
    pub(crate) fn note(&self, answered: bool) {
        self.note_result(if answered { ANSWERED } else { NONE_ANSWERED });
    }

    /// Notes that the kernel had no memory for a processor's counters.
    pub(crate) fn note_no_memory(&self) {
        self.note_result(NO_MEMORY);
    }

    /// Notes a processor's result. Of the results of all processors, the best is kept.
    #[inline(never)] // Linked once: two results are noted by it.
    fn note_result(&self, result: u8) {
        self.0.fetch_max(result, Ordering::Relaxed);
    }

    /// Returns whether the record makes a source unsupported. Without memory, all sources are.
    pub(crate) fn excludes(&self, source: KProfileSource) -> bool {
        match self.0.load(Ordering::Relaxed) {
            NONE_ANSWERED => source != KProfileSource::TIME,
            result => result == NO_MEMORY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_result_of_all_processors_stays() {
        let (time, other) = (KProfileSource::TIME, KProfileSource::TOTAL_CYCLES);
        let answer = CounterAnswer::new();
        let excluded = || [time, other].map(|source| answer.excludes(source));
        assert_eq!(excluded(), [false, false]);
        answer.note_no_memory();
        assert_eq!(excluded(), [true, true]);
        answer.note(false);
        answer.note_no_memory();
        assert_eq!(excluded(), [false, true]);
        answer.note(true);
        answer.note(false);
        assert_eq!(excluded(), [false, false]);
    }
}
