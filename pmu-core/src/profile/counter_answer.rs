//! Record of whether a machine's counters responded when sessions took them.

use core::sync::atomic::{AtomicU8, Ordering};

const NONE_ANSWERED: u8 = 1;
const ANSWERED: u8 = 2;

/// Record of whether the counters of a machine work. A counter works if it keeps a value that was written to it. A
/// session records the result when it takes ownership of a processor's counters.
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
            // Another processor's may have answered.
            let silent = NONE_ANSWERED;
            let _ = self.0.compare_exchange(0, silent, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    pub(crate) fn none_answered(&self) -> bool {
        self.0.load(Ordering::Relaxed) == NONE_ANSWERED
    }
}
