//! The control handle of a processor's top-down counters.
//!
//! The session gives up the slots' counter. The counter's bits in shared registers are set through the session, like
//! the bits of any other owner.

use core::marker::PhantomData;

use pmu_core::{
    CounterError, CounterId, CounterSession, CounterSet, EventCount, EventSource, GroupId,
    MsrBackend, Platform,
};

use crate::topdown::access::{BITS, NotWritten};
use crate::topdown::counts::TopDownCounts;
use crate::topdown::error::TopDownError;
use crate::topdown::filter::TopDownFilter;
use crate::topdown::harvest::NotHarvested;
use crate::topdown::memory::TopDownMemory;
use crate::topdown::unit::{SLOTS, TopDownUnit};
use crate::topdown::view::TopDownView;

/// The control handle of one processor's top-down counters. The handle divides the issue slots of the processor or of a
/// thread into [parts](crate::topdown::TopDownPart).
///
/// On a P-core, the handle uses fixed counter 3, which counts the slots, and `MSR_PERF_METRICS`. This register has each
/// part's fraction of the slots, in units of 1/255. Each read sets both registers to 0. So the error of the next read
/// is at most 1/255 of the slots since this read. Reads at each timer tick keep the error small.
///
/// On an E-core, the handle opens a group of four events, which needs four free entries in the session's event table.
///
/// On a P-core, [`take`](Self::take) removes fixed counter 3 from the session, and [`shut_down`](Self::shut_down)
/// returns the counter to the session. The facility [`TopDownInterrupt`](crate::topdown::TopDownInterrupt) handles
/// overflows of fixed counter 3 and `MSR_PERF_METRICS`.
///
/// The handle cannot move to another thread. Before dropping the handle, call [`shut_down`](Self::shut_down) on the
/// session's processor.
///
/// ```
/// use pmu_core::{CounterSession, EventSource, MsrBackend, Platform};
/// use pmu_intel::topdown::{
///     TopDownCounter, TopDownError, TopDownFilter, TopDownMemory, TopDownPart, TopDownUnit,
/// };
/// static TOP_DOWN: TopDownMemory = TopDownMemory::new(); // one per processor
///
/// /// Returns the thousandths of a function's issue slots that retired.
/// fn retiring<S: EventSource, M: MsrBackend + Copy, P: Platform>(
///     counters: &mut CounterSession<'_, S, M, P>,
///     (unit, msr): (TopDownUnit, M),
///     function: impl FnOnce(),
/// ) -> Result<Option<u32>, TopDownError> {
///     let mut topdown = TopDownCounter::take(unit, msr, counters, &TOP_DOWN)?;
///     let counted = topdown.start(counters, TopDownFilter::ALL).and_then(|()| {
///         function();
///         topdown.read(counters)
///     });
///     topdown.shut_down(counters)?; // also after an error
///     Ok(counted?.per_mille(TopDownPart::Retiring))
/// }
/// ```
///
/// # Context
/// Every method: task, on the processor of the session. The performance interrupt may come at any time.
///
/// ```compile_fail,E0277
/// fn needs_send<T: Send>() {}
/// needs_send::<pmu_intel::topdown::TopDownCounter<'static, ()>>();
/// ```
#[derive(Debug)]
pub struct TopDownCounter<'a, M> {
    pub(crate) unit: TopDownUnit,
    pub(crate) msr: M,
    pub(crate) memory: &'a TopDownMemory,
    /// The filter of the slots that are to be counted; `None`: none are.
    pub(crate) filter: Option<TopDownFilter>,
    /// The totals when the processor's slots, and the thread's, began to be counted.
    pub(crate) processor: Option<TopDownCounts>,
    pub(crate) thread: Option<TopDownCounts>,
    /// The processor's counts of former starts.
    counted: TopDownCounts,
    /// An E-core's events, and their counts that are in the totals already.
    group: Option<(GroupId, TopDownCounts)>,
    /// Fixed counter 3 was the session's.
    was_session_s: bool,
    pub(crate) is_open: bool,
    /// Suspended beside lent counters; `true` if slots were counted.
    pub(crate) lent: Option<bool>,
    not_send: PhantomData<*mut ()>,
}

impl<'a, M: MsrBackend> TopDownCounter<'a, M> {
    /// Takes ownership of the top-down counters of the processor that executes the call. `unit` describes this
    /// processor, and `counters` is this processor's session. On a P-core, the call removes fixed counter 3 from the
    /// session, and fails if this counter runs an event. To verify that this counter and `MSR_PERF_METRICS` work, the
    /// call writes both registers, and reads them back by RDPMC.
    ///
    /// # Errors
    /// - [`MemoryInUse`](TopDownError::MemoryInUse).
    /// - [`SlotsInUse`](TopDownError::SlotsInUse): fixed counter 3 runs an event, or is the
    ///   session's only counter.
    /// - [`Unresponsive`](TopDownError::Unresponsive): a write to the registers has no effect, as under a hypervisor
    ///   that does not implement these registers.
    /// - [`Session`](TopDownError::Session), [`Access`](TopDownError::Access).
    ///
    /// If the call fails after it has removed fixed counter 3, the call tries to return this counter to the session.
    pub fn take<S: EventSource, N: MsrBackend, P: Platform>(
        unit: TopDownUnit,
        msr: M,
        counters: &mut CounterSession<'_, S, N, P>,
        memory: &'a TopDownMemory,
    ) -> Result<Self, TopDownError> {
        if !memory.take() {
            return Err(TopDownError::MemoryInUse);
        }
        let mut taken = Self {
            unit,
            msr,
            memory,
            filter: None,
            processor: None,
            thread: None,
            counted: TopDownCounts::NONE,
            group: None,
            was_session_s: false,
            is_open: true,
            lent: None,
            not_send: PhantomData,
        };
        if unit.has_metrics()
            && let Err(error) = taken.take_slots(counters)
        {
            let _ = taken.give_slots_back(counters);
            memory.give_back();
            return Err(error);
        }
        Ok(taken)
    }

    fn take_slots<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        counters: &mut CounterSession<'_, S, N, P>,
    ) -> Result<(), TopDownError> {
        if has_slots(counters) {
            counters.give_back(slots_counter()).map_err(|error| match error {
                CounterError::NotAvailable(_) => TopDownError::SlotsInUse,
                error => TopDownError::Session(error),
            })?;
            self.was_session_s = true;
        }
        counters.set_others_fixed_control(self.unit.mask(), 0)?;
        if !self.unit.answers(&self.msr).map_err(TopDownError::Access)? {
            return Err(TopDownError::Unresponsive);
        }
        self.clear()?;
        counters.acknowledge_others(BITS)?;
        Ok(counters.set_others_control(BITS, true)?)
    }

    fn give_slots_back<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        counters: &mut CounterSession<'_, S, N, P>,
    ) -> Result<(), TopDownError> {
        counters.set_others_control(BITS, false)?;
        if self.was_session_s {
            counters.take_more(&self.unit.processor, slots_counter())?;
            self.was_session_s = false;
        }
        Ok(())
    }

    /// Starts counting the processor's issue slots at the privilege levels of `filter`.
    ///
    /// # Errors
    /// - [`AlreadyStarted`](TopDownError::AlreadyStarted).
    /// - [`Filter`](TopDownError::Filter): `filter` has no privilege level, or a thread's slots are being counted with
    ///   a different filter.
    /// - [`Session`](TopDownError::Session): an operation of the session failed, and the slots are not counted.
    /// - [`Access`](TopDownError::Access): a register access failed, and the slots are not counted.
    /// - [`Faulted`](TopDownError::Faulted), [`ShutDown`](TopDownError::ShutDown), [`Lent`](TopDownError::Lent).
    pub fn start<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        counters: &mut CounterSession<'_, S, N, P>,
        filter: TopDownFilter,
    ) -> Result<(), TopDownError> {
        self.check()?;
        if self.processor.is_some() {
            return Err(TopDownError::AlreadyStarted);
        }
        self.join(counters, filter)?;
        self.processor = Some(self.memory.totals());
        Ok(())
    }

    /// Returns the counts of the processor's issue slots. The counts are sums over all intervals from
    /// [`start`](Self::start) to [`stop`](Self::stop). The difference between two successive reads has an error of at
    /// most 1/255 of the slots between the two reads.
    ///
    /// # Errors
    /// - [`Access`](TopDownError::Access): nothing was changed, and no count is lost.
    /// - [`Faulted`](TopDownError::Faulted): counting has stopped. The next read starts counting again.
    /// - [`Session`](TopDownError::Session), [`ShutDown`](TopDownError::ShutDown), [`Lent`](TopDownError::Lent).
    pub fn read<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        counters: &mut CounterSession<'_, S, N, P>,
    ) -> Result<TopDownCounts, TopDownError> {
        self.check()?;
        self.renew(counters)?;
        Ok(self.of_processor())
    }

    /// Stops counting the processor's issue slots. If the slots of a thread are also being counted, the counting for
    /// that thread continues.
    ///
    /// # Errors
    /// - [`NotStarted`](TopDownError::NotStarted).
    /// - The errors of [`read`](Self::read). After [`Faulted`](TopDownError::Faulted), the slots are no longer counted.
    ///   After any other error, the slots are still counted.
    pub fn stop<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        counters: &mut CounterSession<'_, S, N, P>,
    ) -> Result<(), TopDownError> {
        self.check()?;
        if self.processor.is_none() {
            return Err(TopDownError::NotStarted);
        }
        let left = self.leave(counters, self.thread.is_some());
        if matches!(left, Ok(()) | Err(TopDownError::Faulted(_))) {
            self.counted = self.of_processor();
            self.processor = None;
        }
        left
    }

    /// Programs the top-down registers again after their contents were lost, as in a suspend. Call this method after
    /// [`CounterSession::reprogram`]. The counts since the last [`read`](Self::read) are lost.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn reprogram<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        counters: &mut CounterSession<'_, S, N, P>,
    ) -> Result<(), TopDownError> {
        self.check()?;
        if !self.unit.has_metrics() {
            return Ok(()); // The session has programmed the events.
        }
        self.memory.set_counting(false);
        self.memory.set_stale(true);
        counters.set_others_fixed_control(self.unit.mask(), 0)?;
        match self.filter {
            Some(filter) => self.begin(counters, filter),
            None => self.clear(),
        }
    }

    /// Stops counting, returns fixed counter 3 to the session, and releases the handle's memory for another handle.
    /// Call this method before the session is shut down. After an error, the call can be repeated. If `counters` is a
    /// later session than that of [`take`](Self::take), the call only releases the memory.
    ///
    /// # Errors
    /// [`Session`](TopDownError::Session), [`Access`](TopDownError::Access), [`Faulted`](TopDownError::Faulted): an
    /// operation of the session or a register access failed. The handle keeps the memory.
    pub fn shut_down<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        counters: &mut CounterSession<'_, S, N, P>,
    ) -> Result<(), TopDownError> {
        if !self.is_open {
            return Ok(());
        }
        self.check()?;
        let is_of_later_session = self.unit.has_metrics() && has_slots(counters);
        if self.filter.is_some() && !is_of_later_session {
            match self.leave(counters, false) {
                Err(TopDownError::Session(CounterError::NoSuchGroup(_))) => {} // closed with the earlier session
                left => left?,
            }
        }
        (self.processor, self.thread) = (None, None);
        if self.unit.has_metrics() && !is_of_later_session {
            self.give_slots_back(counters)?;
        }
        self.is_open = false;
        self.memory.give_back();
        Ok(())
    }

    /// Returns whether issue slots are being counted, for the processor or for a thread. If a failed register access
    /// has stopped the counting, the result is `false`.
    pub fn is_counting(&self) -> bool {
        let has_slots = self.memory.is_counting() && !self.memory.is_halted();
        self.is_open && (has_slots || self.group.is_some())
    }

    /// Returns the description of the processor's top-down counters.
    pub const fn unit(&self) -> &TopDownUnit {
        &self.unit
    }

    /// Returns the data from which user mode computes the processor's top-down counts. The data is valid until the
    /// kernel calls another method of this handle, or until fixed counter 3 overflows. This counter counts the slots,
    /// and overflows only if the kernel does not read the counts for hours. To prevent the overflow, a kernel that
    /// shares the data with user mode calls [`read`](Self::read) at each timer tick.
    ///
    /// On an E-core, user mode cannot compute the counts, and must ask the kernel for the counts.
    pub fn view(&self) -> TopDownView {
        self.view_of(self.of_processor(), self.processor.is_some())
    }

    pub(crate) fn view_of(&self, counted: TopDownCounts, started: bool) -> TopDownView {
        let counting = started && self.is_counting() && self.unit.has_metrics();
        TopDownView::new(counted, counting, self.unit.has_level_2())
    }

    /// Returns the processor's counts up to the last harvest.
    fn of_processor(&self) -> TopDownCounts {
        let now = self.processor.map(|begun| self.memory.totals().since(&begun));
        self.counted.plus(&now.unwrap_or_default())
    }

    pub(crate) fn check(&self) -> Result<(), TopDownError> {
        match (self.is_open, self.lent) {
            (false, _) => Err(TopDownError::ShutDown),
            (true, Some(_)) => Err(TopDownError::Lent),
            (true, None) => Ok(()),
        }
    }

    /// Counts slots for one more user, the processor or a thread: starts the counters, or renews their counts.
    pub(crate) fn join<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        counters: &mut CounterSession<'_, S, N, P>,
        filter: TopDownFilter,
    ) -> Result<(), TopDownError> {
        let fits = self.filter.is_none_or(|present| present == filter);
        if !fits || !filter.user && !filter.kernel {
            return Err(TopDownError::Filter);
        }
        match self.filter {
            Some(_) => self.renew(counters),
            None => self.begin(counters, filter),
        }
    }

    /// Counts slots for one user less. `others`: the slots of the other user are still to be counted.
    pub(crate) fn leave<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        counters: &mut CounterSession<'_, S, N, P>,
        others: bool,
    ) -> Result<(), TopDownError> {
        if others {
            return self.renew(counters);
        }
        let left = self.halt(counters);
        if matches!(left, Ok(()) | Err(TopDownError::Faulted(_))) {
            self.filter = None;
        }
        left
    }

    /// Starts both registers from 0, or an E-core's events.
    fn begin<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        counters: &mut CounterSession<'_, S, N, P>,
        filter: TopDownFilter,
    ) -> Result<(), TopDownError> {
        if self.unit.has_metrics() {
            self.clear()?;
            // Before the slots are counted, so that an interrupt finds them counting.
            self.memory.set_halted(false);
            self.memory.set_counting(true);
            let started = counters.set_others_fixed_control(self.unit.mask(), self.bits(filter));
            started.inspect_err(|_| self.memory.set_counting(false))?;
        } else {
            let events = self.unit.events(filter, counters.counters().usable);
            let group = counters.open_group(&self.unit.processor, &events)?;
            if let Err(error) = counters.start_group(group, 0) {
                let _ = counters.close_group(group, 0);
                return Err(error.into());
            }
            self.group = Some((group, TopDownCounts::NONE));
        }
        self.filter = Some(filter);
        Ok(())
    }

    /// Adds what was counted to the totals, and begins the next fractions. After a failed access, starts again.
    pub(crate) fn renew<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        counters: &mut CounterSession<'_, S, N, P>,
    ) -> Result<(), TopDownError> {
        let Some(filter) = self.filter else { return Ok(()) };
        if !self.unit.has_metrics() {
            return self.read_events(counters);
        }
        if !self.memory.is_counting() {
            return self.begin(counters, filter);
        }
        self.harvest(counters, Some(filter))
    }

    /// Adds what was counted to the totals, and stops.
    fn halt<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        counters: &mut CounterSession<'_, S, N, P>,
    ) -> Result<(), TopDownError> {
        if self.unit.has_metrics() {
            return if self.memory.is_counting() { self.harvest(counters, None) } else { Ok(()) };
        }
        let Some((group, _)) = self.group else { return Ok(()) };
        self.read_events(counters)?;
        counters.close_group(group, 0)?;
        self.group = None;
        Ok(())
    }

    /// Stops the slots' counter, harvests, and starts the counter again with the filter `then`.
    fn harvest<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        counters: &mut CounterSession<'_, S, N, P>,
        then: Option<TopDownFilter>,
    ) -> Result<(), TopDownError> {
        self.memory.begin();
        let harvested = self.harvest_stopped(counters, then);
        self.memory.end();
        harvested
    }

    fn harvest_stopped<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        counters: &mut CounterSession<'_, S, N, P>,
        then: Option<TopDownFilter>,
    ) -> Result<(), TopDownError> {
        counters.set_others_fixed_control(self.unit.mask(), 0)?;
        let (outcome, then) = match self.unit.harvest(&self.msr, self.memory) {
            Ok(()) => (Ok(()), then),
            Err(NotHarvested::Unchanged(fault)) => (Err(TopDownError::Access(fault)), self.filter),
            Err(NotHarvested::Stale(fault)) => {
                self.memory.set_stale(true);
                (Err(TopDownError::Faulted(fault)), None)
            }
        };
        let Some(filter) = then else {
            self.memory.set_counting(false);
            return outcome;
        };
        let bits = self.bits(filter);
        let restarted = counters.set_others_fixed_control(self.unit.mask(), bits);
        self.memory.set_halted(restarted.is_err());
        restarted.map_err(|error| match error {
            CounterError::Access(fault) => TopDownError::Faulted(fault),
            error => TopDownError::Session(error),
        })?;
        outcome
    }

    /// Adds an E-core's counts to the totals.
    fn read_events<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        counters: &mut CounterSession<'_, S, N, P>,
    ) -> Result<(), TopDownError> {
        let Some((group, added)) = self.group else { return Ok(()) };
        let mut counts = [EventCount::default(); 4];
        counters.read_group(group, 0, &mut counts)?;
        let now = TopDownCounts::of_counts(counts.map(|count| count.value));
        self.memory.add(&now.since(&added));
        self.group = Some((group, now));
        Ok(())
    }

    /// Sets both registers to 0 while the slots' counter is stopped.
    fn clear(&self) -> Result<(), TopDownError> {
        let cleared = self.unit.clear_pair(&self.msr).map_err(NotWritten::fault);
        cleared.map_err(TopDownError::Access)?;
        self.memory.take_wrap();
        self.memory.set_stale(false);
        Ok(())
    }

    /// Returns the values of these bits with which the slots are counted, and interrupt.
    fn bits(&self, filter: TopDownFilter) -> u64 {
        let deny = self.unit.processor.has_user_rdpmc_control() && !filter.user_rdpmc;
        let modes = filter.kernel as u64 | (filter.user as u64) << 1;
        (modes | 1 << 3 | (deny as u64) << 33) << (4 * SLOTS)
    }

    /// Returns the value of these bits while slots are counted.
    pub(crate) fn running_bits(&self) -> u64 {
        self.filter.map_or(0, |filter| self.bits(filter))
    }
}

/// Returns whether the counter of the slots is among the session's.
fn has_slots<S: EventSource, M: MsrBackend, P: Platform>(
    counters: &CounterSession<'_, S, M, P>,
) -> bool {
    slots_counter().without(counters.counters().usable).is_empty()
}

fn slots_counter() -> CounterSet {
    CounterId::fixed(SLOTS).map_or(CounterSet::NONE, CounterId::only)
}
