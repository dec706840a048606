//! Events whose samples have the last branches.

use crate::branches::filter::{BranchFilter, PackedFilter};
use crate::counters::events::event::Event;

impl Event {
    /// Gives each sample of the event the last branches before the overflow, of those that `filter` selects:
    /// [`Sample::branches`](crate::Sample::branches). The processor records the branches itself (Intel's LBR, AMD's
    /// LbrExtV2 and branch sampling) while the event is on a counter. It may record more branches than `filter`
    /// selects: see [`BranchUnit::recorded`](crate::branches::BranchUnit::recorded).
    ///
    /// The session's event source must have the facility [`Branches`](crate::branches::Branches), and the processor
    /// must be able to record the branches. Otherwise opening the event fails with
    /// [`BranchesUnsupported`](crate::CounterError::BranchesUnsupported). A thread's event is not counted on a core
    /// without such branch records.
    ///
    /// Zen 3 samples branches for one event alone, taken branches (`pmu_amd::branch_sampling_event`), on core counter
    /// 0. A sample then has up to 16 branches that were taken *after* the counter's overflow, and before its
    /// [interrupt](crate::branches::BranchUnit::holds_interrupt). Events that ask for branches take turns on this
    /// counter.
    ///
    /// A processor records by one filter at a time. Events with another filter do not run at the same time:
    /// [rotating](Self::rotating) events take turns.
    ///
    /// [`switch_out`](crate::CounterSession::switch_out) and [`switch_in`](crate::CounterSession::switch_in) clear the
    /// records, so that no thread's sample has branches of another thread. If events of the processor have branches,
    /// the kernel makes both calls at each thread switch, also without events of the thread. A [call
    /// stack](BranchFilter::call_stack) thus begins anew at each switch.
    ///
    /// ```
    /// use pmu_core::branches::BranchFilter;
    /// use pmu_core::{Event, GenericEvent};
    /// let misses = Event::generic(GenericEvent::BranchMisses).every(10_007).with_branches(BranchFilter::USER);
    /// assert_eq!(misses.branches(), Some(BranchFilter::USER));
    /// ```
    pub const fn with_branches(mut self, filter: BranchFilter) -> Self {
        self.branches = PackedFilter::new(filter);
        self
    }

    /// Returns the filter that was given to [`with_branches`](Self::with_branches).
    ///
    /// ```
    /// use pmu_core::{Event, GenericEvent};
    /// assert_eq!(Event::generic(GenericEvent::Cycles).every(10_007).branches(), None);
    /// ```
    pub const fn branches(&self) -> Option<BranchFilter> {
        self.branches.get()
    }
}
