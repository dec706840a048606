//! Top-down counts of a thread.

use pmu_core::{CounterSession, EventSource, MsrBackend, Platform};

use crate::topdown::counter::TopDownCounter;
use crate::topdown::counts::TopDownCounts;
use crate::topdown::error::TopDownError;
use crate::topdown::filter::TopDownFilter;
use crate::topdown::view::TopDownView;

/// The top-down counts of a thread. This plain data moves with the thread from processor to processor. On a hybrid
/// machine, the counts are the sum of the counts on P-cores and on E-cores.
///
/// A thread whose slots are not counted, such as an idle thread, needs no `SavedTopDown`. Only a thread that was
/// switched in can be switched out. So after creating a `SavedTopDown` for a running thread, call
/// [`switch_in`](TopDownCounter::switch_in) at once.
///
/// ```
/// use pmu_core::{CounterSession, EventSource, MsrBackend, Platform};
/// use pmu_intel::topdown::{SavedTopDown, TopDownCounter, TopDownError};
/// /// The context switch between two threads. `None`: a thread whose slots are not counted.
/// fn switch<S: EventSource, M: MsrBackend, P: Platform>(
///     topdown: &mut TopDownCounter<'_, M>,
///     counters: &mut CounterSession<'_, S, M, P>,
///     (old, new): (Option<&mut SavedTopDown>, Option<&SavedTopDown>),
/// ) -> Result<(), TopDownError> {
///     let left = old.map_or(Ok(()), |old| topdown.switch_out(counters, old));
///     let entered = new.map_or(Ok(()), |new| topdown.switch_in(counters, new));
///     entered.and(left)
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SavedTopDown {
    filter: TopDownFilter,
    counted: TopDownCounts,
}

impl SavedTopDown {
    /// Creates the top-down counts of a thread, which are all 0. `filter` has the privilege levels at which the
    /// thread's slots are counted.
    pub const fn new(filter: TopDownFilter) -> Self {
        Self { filter, counted: TopDownCounts::NONE }
    }

    /// Returns the thread's counts up to the last [`switch_out`](TopDownCounter::switch_out).
    pub const fn counts(&self) -> TopDownCounts {
        self.counted
    }
}

impl<M: MsrBackend> TopDownCounter<'_, M> {
    /// Begins to count the issue slots of the thread that is about to run. If the slots of the processor are also being
    /// counted, the counting for the processor continues.
    ///
    /// # Errors
    /// - [`AlreadyStarted`](TopDownError::AlreadyStarted): a thread's slots are counted already.
    /// - [`Filter`](TopDownError::Filter): the processor's slots are counted with a different filter.
    /// - The errors of [`start`](TopDownCounter::start).
    pub fn switch_in<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        counters: &mut CounterSession<'_, S, N, P>,
        saved: &SavedTopDown,
    ) -> Result<(), TopDownError> {
        self.check()?;
        if self.thread.is_some() {
            return Err(TopDownError::AlreadyStarted);
        }
        self.join(counters, saved.filter)?;
        self.thread = Some(self.memory.totals());
        Ok(())
    }

    /// Stops counting the issue slots of the thread that leaves the processor, and adds the thread's counts to `saved`.
    /// On a P-core, the call sets fixed counter 3 and `MSR_PERF_METRICS` to 0, so the next thread cannot read this
    /// thread's counts.
    ///
    /// # Errors
    /// - [`NotStarted`](TopDownError::NotStarted): no thread's slots are counted.
    /// - The errors of [`read`](TopDownCounter::read). After an error of `read`, the thread's slots are no longer
    ///   counted, and the thread's counts since the last read may be lost. No other thread gets the lost counts.
    pub fn switch_out<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        counters: &mut CounterSession<'_, S, N, P>,
        saved: &mut SavedTopDown,
    ) -> Result<(), TopDownError> {
        self.check()?;
        let Some(begun) = self.thread else { return Err(TopDownError::NotStarted) };
        let left = self.leave(counters, self.processor.is_some());
        saved.counted = saved.counted.plus(&self.memory.totals().since(&begun));
        self.thread = None;
        left
    }

    /// Returns the top-down counts of the running thread, which was [switched in](TopDownCounter::switch_in) with
    /// `saved`.
    ///
    /// # Errors
    /// - [`NotStarted`](TopDownError::NotStarted): no thread's slots are counted.
    /// - The errors of [`read`](TopDownCounter::read).
    pub fn read_thread<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        counters: &mut CounterSession<'_, S, N, P>,
        saved: &SavedTopDown,
    ) -> Result<TopDownCounts, TopDownError> {
        self.check()?;
        let begun = self.thread.ok_or(TopDownError::NotStarted)?;
        self.renew(counters)?;
        Ok(saved.counted.plus(&self.memory.totals().since(&begun)))
    }

    /// Returns the data from which the running thread computes its top-down counts. [`view`](TopDownCounter::view)
    /// describes how long the data is valid.
    pub fn view_thread(&self, saved: &SavedTopDown) -> TopDownView {
        let now = self.thread.map(|begun| self.memory.totals().since(&begun));
        self.view_of(saved.counted.plus(&now.unwrap_or_default()), self.thread.is_some())
    }
}
