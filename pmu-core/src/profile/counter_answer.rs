//! Record of whether a machine's counters responded when sessions took them.

use core::sync::atomic::{AtomicU8, Ordering};

use crate::profile::source::KProfileSource;

const NONE_ANSWERED: u8 = 1;
const ANSWERED: u8 = 2;
const NO_MEMORY: u8 = 3;

/// Record of whether the counters of a machine work, and have memory. A counter works if it keeps a value that was
/// written to it. A session records the result when it takes ownership of a processor's counters, or lacks the memory
/// for this.
///
/// ```
/// use pmu_core::CounterAnswer;
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
        if answered {
            self.0.store(ANSWERED, Ordering::Relaxed);
        } else {
            self.note_first(NONE_ANSWERED);
        }
    }

    /// Notes that the kernel had no memory for a processor's counters.
    pub(crate) fn note_no_memory(&self) {
        self.note_first(NO_MEMORY);
    }

    /// Notes a result, unless there is one: another processor's counters may have answered.
    fn note_first(&self, result: u8) {
        let _ = self.0.compare_exchange(0, result, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Returns whether the record makes a source unsupported. Without memory, all sources are.
    pub(crate) fn excludes(&self, source: KProfileSource) -> bool {
        match self.0.load(Ordering::Relaxed) {
            NONE_ANSWERED => source != KProfileSource::TIME,
            result => result == NO_MEMORY,
        }
    }
}
