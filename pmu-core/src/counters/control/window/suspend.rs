//! Suspend: the counters stop, memory keeps their counts, and the counters are programmed again afterwards.

use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::interrupt::sample::Sample;
use crate::counters::names::counter_id::CounterSet;
use crate::counters::names::event_id::EventId;
use crate::counters::shared::entry::EventState;
use crate::counters::shared::slot::SlotState;
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    /// Stops this processor's counters before a suspend. The session's memory keeps the count of each opened event, and
    /// the remainder of its period. Until [`resume`](Self::resume), no interrupt accesses a register, and the registers
    /// may lose their contents. Before `resume`, call no other method of the session than
    /// [`shut_down`](Self::shut_down).
    ///
    /// The call also suspends the [facilities](crate::EventSource::Facility) of the session's event source, such as a
    /// [`BranchRecorder`](crate::branch_recording::BranchRecorder)'s records, and `resume` programs them again. A
    /// facility that the source does not have is programmed again by its own method.
    ///
    /// This call reports to `overflowed` what [`lend`](Self::lend) reports.
    ///
    /// ```
    /// # use pmu_core::{CounterError, CounterSession, EventSource, Platform};
    /// # use pmu_core::msr::MsrBackend;
    /// # fn sample(_tag: u64) {}
    /// /// Suspends one processor. No event loses a count, or begins a period anew.
    /// fn suspend<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
    ///     clock: impl Fn() -> u64,
    ///     sleep: impl FnOnce(),
    /// ) -> Result<(), CounterError> {
    ///     counters.suspend(clock(), |overflow| sample(overflow.tag))?;
    ///     sleep();
    ///     counters.resume(clock(), |_overflow| ()).map(|_| ())
    /// }
    /// ```
    ///
    /// # Errors
    /// The errors of [`lend`](Self::lend). After an error, the counters are not suspended.
    pub fn suspend(
        &mut self,
        now: u64,
        overflowed: impl FnMut(Sample<'_, S::Facility>),
    ) -> Result<(), CounterError> {
        self.lend(now, overflowed).map(|window| window.keep_counts())
    }

    /// Programs this processor's counters again after [`suspend`](Self::suspend), whether the registers lost their
    /// contents or not. Each opened event continues with its count and with the remainder of its period. The events'
    /// `enabled` and `running` times do not include the time of the suspend. An event that is a row of the
    /// [`EventSource`]'s table begins a new period.
    ///
    /// Returns the counters of all running events. If [`suspend`](Self::suspend) was not called before, this method is
    /// the same as [`reprogram`](Self::reprogram), and returns the counters that `reprogram` returns.
    ///
    /// # Errors
    /// The errors of [`reprogram`](Self::reprogram).
    pub fn resume(
        &mut self,
        now: u64,
        overflowed: impl FnMut(Sample<'_, S::Facility>),
    ) -> Result<CounterSet, CounterError> {
        if !self.memory.is_lent() {
            return self.reprogram(overflowed);
        }
        let own = self.candidates();
        for (_, slot) in self.slots_of(own) {
            // An event that was stopped or closed meanwhile left its counter.
            if slot.running().is_some_and(|event| !self.is_counting(event)) {
                slot.store(SlotState::Free);
            }
        }
        self.table().opened().for_each(|(_, entry)| entry.skip_time(now));
        self.program_again(own, true, overflowed)
    }

    /// Returns whether an event's state is that of an event on a counter.
    fn is_counting(&self, event: EventId) -> bool {
        let entry = self.table().entry(event);
        event.row().is_some() || entry.is_some_and(|entry| entry.state() == EventState::Counting)
    }
}
