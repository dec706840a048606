//! The data of a profile interface: the boot processor's counters, and the intervals of the sources.

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crate::counters::registers::unit::CounterUnit;
use crate::interval::IntervalLimits;
use crate::profile::source::KProfileSource;

// From the worst result to the best.
const NO_MEMORY: u8 = 1;
const NONE_ANSWERED: u8 = 2;
const ANSWERED: u8 = 3;

/// The intervals of a machine's profile sources, the counters of the boot processor, and a record of whether the
/// machine's counters answered. A session makes this record when it takes a processor's counters; afterwards
/// [`query`](crate::EventSource::query) does not report a source as supported if no processor's counters
/// answered, and no source at all, time included, if no processor had memory for them.
///
/// ```
/// use core::sync::atomic::AtomicU32;
/// use pmu_core::CounterUnit;
/// use pmu_core::profile::ProfileSources;
/// // What an interface of four sources has. The intervals have their defaults.
/// let sources: ProfileSources<[AtomicU32; 4]> = ProfileSources::new("Four", CounterUnit::NONE);
/// # let _ = sources;
/// ```
#[derive(Debug)]
pub struct ProfileSources<I: ?Sized = [AtomicU32]> {
    pub(crate) name: &'static str,
    pub(crate) unit: CounterUnit,
    pub(crate) answer: CounterAnswer,
    pub(crate) intervals: I,
}

impl<const N: usize> ProfileSources<[AtomicU32; N]> {
    /// Creates the data of the interface `name`, with a variable for the interval of each row of its table. `unit`
    /// describes the boot processor's counters.
    pub const fn new(name: &'static str, unit: CounterUnit) -> Self {
        let mut intervals = [const { AtomicU32::new(IntervalLimits::EVENTS.default) }; N];
        if let Some(time) = intervals.first_mut() {
            *time = AtomicU32::new(IntervalLimits::TIME.default);
        }
        Self { name, unit, answer: CounterAnswer::new(), intervals }
    }

    /// Returns the sources with other counters.
    pub const fn with_unit(self, unit: CounterUnit) -> Self {
        Self { unit, ..self }
    }
}

impl<I: ?Sized> ProfileSources<I> {
    /// Returns the description of the boot processor's counters.
    #[inline]
    pub const fn unit(&self) -> &CounterUnit {
        &self.unit
    }
}

/// Record of whether the counters of a machine work, and have memory. A counter works if it keeps a value that was
/// written to it. A session records the result when it takes ownership of a processor's counters, or lacks the memory
/// for this.
#[derive(Debug)]
pub(crate) struct CounterAnswer(AtomicU8);

impl CounterAnswer {
    const fn new() -> Self {
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
