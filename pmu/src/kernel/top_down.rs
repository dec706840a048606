//! The top-down counts of all processors.

use core::fmt;

use pmu_core::{CounterError, CounterUnit, Snapshot, SourceInterface, WriteOnce};
use pmu_intel::topdown::{
    TopDownCounter, TopDownCounts, TopDownError, TopDownFilter, TopDownInterrupt, TopDownMemory,
    TopDownUnit,
};

use crate::kernel::duties::Duties;
use crate::kernel::error::PmuError;
use crate::kernel::of_processor::{Here, PmuSession};
use crate::kernel::pmu::Pmu;
use crate::kernel::required::Kernel;
use crate::per_processor::{Busy, PerProcessor};

/// The top-down counts of all processors of a machine. A kernel `K` keeps this value in a static, beside its static
/// [`Pmu`]. The machine has at most `P` processors.
///
/// A kernel that counts no issue slots does not need this static.
///
/// | operation | |
/// |---|---|
/// | [`Pmu::count_slots`] | where the issue slots go while a function runs |
/// | [`Pmu::take_top_down`], [`Pmu::release_top_down`] | on each processor, for [`Pmu::with_top_down`] |
/// | [`Pmu::with_top_down`] | counts of threads and of the processor, and the steps before and after a guest or a suspend |
/// | [`here`](Self::here) | in the handler of the performance interrupt, if no task reads the slots for hours |
pub struct PmuTopDown<K: Kernel, const P: usize> {
    of: [OfProcessor; P],
    counters: PerProcessor<TopDownCounter<'static, K::Msr>, Duties<K>, P>,
}

/// Memory that the interrupt and the tasks of one processor share.
struct OfProcessor {
    unit: WriteOnce<TopDownUnit>,
    memory: TopDownMemory,
}

impl<K: Kernel, const P: usize> PmuTopDown<K, P> {
    /// Creates a `PmuTopDown`. No processor counts issue slots yet. The value is all zeros, so a static of this type is
    /// in `.bss` and takes no room in the kernel's image.
    pub const fn new() -> Self {
        let of =
            [const { OfProcessor { unit: WriteOnce::new(), memory: TopDownMemory::new() } }; P];
        Self { of, counters: PerProcessor::new() }
    }

    /// Returns the top-down counters of the processor that executes the call, for
    /// [`Pmu::interrupt_beside`](crate::Pmu::interrupt_beside). Returns `None` if no task has
    /// [taken](Pmu::take_top_down) ownership of this processor's top-down counters yet.
    ///
    /// On a P-core, the slots counter overflows, and raises an interrupt, if no task reads it for hours. The returned
    /// value is a [`Facility`](pmu_core::Facility) that counts each overflow. Without the facility, the next read adds
    /// the slots of at most one overflow, and the slots of all other overflows are lost.
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use pmu::core::PlainFrame;
    /// use pmu::{Interrupted, Pmu, PmuTopDown};
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    /// static TOP_DOWN: PmuTopDown<MyKernel, 8> = PmuTopDown::new();
    ///
    /// fn interrupt(frame: &PlainFrame) -> Interrupted {
    ///     PMU.interrupt_beside(frame, TOP_DOWN.here(), |_, _, _| ())
    /// }
    /// # let _ = interrupt;
    /// ```
    ///
    /// # Context
    /// The handler of the performance interrupt, which may be an NMI.
    #[inline]
    pub fn here(&'static self) -> Option<TopDownInterrupt<'static>> {
        let of = self.of.get(K::this_processor())?;
        Some(TopDownInterrupt::new(of.unit.get()?, &of.memory))
    }

    /// Takes the top-down counters of this processor.
    fn take(
        &'static self,
        here: &mut Here<K>,
        this_processor: &Snapshot,
    ) -> Result<TopDownCounter<'static, K::Msr>, PmuError> {
        let processor = K::this_processor();
        let of = self.of.get(processor).ok_or(Busy::NoPlace { processor })?;
        if here.session.interface().unit_of(this_processor) != here.unit {
            return Err(TopDownError::Session(CounterError::OtherProcessor).into());
        }
        let unit = match of.unit.get() {
            Some(unit) => unit,
            None => {
                let unit =
                    TopDownUnit::of(this_processor, &K::msr()).map_err(TopDownError::from)?;
                // The processor's other tasks come to the same.
                let _ = of.unit.set(unit);
                of.unit.get().ok_or(TopDownError::MemoryInUse)?
            }
        };
        let counters = here.session.counters_mut();
        Ok(TopDownCounter::take(*unit, K::msr(), counters, &of.memory)?)
    }

    /// Uses the counters of this processor, which a task has taken.
    fn with<R>(
        &'static self,
        act: impl FnOnce(&mut TopDownCounter<'static, K::Msr>) -> R,
    ) -> Result<R, PmuError> {
        let acted = self.counters.with(|place| place.as_mut().map(act))?;
        Ok(acted.ok_or(TopDownError::ShutDown)?)
    }

    /// Gives the counters of this processor back.
    fn release(&'static self, here: &mut Here<K>) -> Result<(), PmuError> {
        let counters = here.session.counters_mut();
        self.with(|topdown| topdown.shut_down(counters))??;
        Ok(self.counters.with(|place| *place = None)?)
    }

    /// Starts to count for a function. Returns what was counted before, and whether the counters were taken for that.
    fn begin(
        &'static self,
        here: &mut Here<K>,
        this_processor: &Snapshot,
        filter: TopDownFilter,
    ) -> Result<(TopDownCounts, bool), PmuError> {
        let is_new = !self.counters.with(|place| place.is_some())?;
        if is_new {
            let taken = self.take(here, this_processor)?;
            self.counters.with(|place| *place = Some(taken))?;
        }
        let counters = here.session.counters_mut();
        let begun = self.with(|topdown| {
            let before = topdown.view().counted;
            topdown.start(counters, filter).map(|()| (before, is_new))
        })?;
        if begun.is_err() && is_new {
            // The first error is returned.
            let _ = self.release(here);
        }
        Ok(begun?)
    }

    /// Ends what `begin` started, and returns what was counted up to now.
    fn end(&'static self, here: &mut Here<K>, is_new: bool) -> Result<TopDownCounts, PmuError> {
        let counters = here.session.counters_mut();
        let counted = self.with(|topdown| {
            let stopped = topdown.stop(counters);
            stopped.map(|()| topdown.view().counted)
        })?;
        if is_new {
            self.release(here)?;
        }
        Ok(counted?)
    }
}

impl<K: Kernel, const P: usize> Default for PmuTopDown<K, P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Kernel, const P: usize> fmt::Debug for PmuTopDown<K, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PmuTopDown").finish_non_exhaustive()
    }
}

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Pmu<K, P, E, N> {
    /// Counts where this processor's issue slots go while `work` runs. The counts divide the slots into four categories
    /// of level 1: retiring, bad speculation, front-end bound and back-end bound. If the processor has top-down level
    /// 2, the counts also have one [subcategory](crate::intel::topdown::TopDownPart) of each category, such as the
    /// slots that are memory bound. `top_down` is the kernel's static [`PmuTopDown`].
    ///
    /// `work` runs [pinned](Kernel::pinned), so the counts include no other task. The counts include interrupt handlers
    /// that run during `work`. To count only one thread, use [`with_top_down`](Self::with_top_down).
    ///
    /// If no task has [taken](Self::take_top_down) the top-down counters, the call takes the counters, and releases
    /// them before it returns. On an E-core, the call opens four events. These events are among the `E` events that can
    /// be open on the processor.
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use pmu::core::Snapshot;
    /// use pmu::intel::topdown::{TopDownFilter, TopDownPart};
    /// use pmu::{Pmu, PmuError, PmuTopDown};
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    /// static TOP_DOWN: PmuTopDown<MyKernel, 8> = PmuTopDown::new();
    ///
    /// fn where_slots_go(this_processor: &Snapshot, workload: fn()) -> Result<(), PmuError> {
    ///     let counts = PMU.count_slots(&TOP_DOWN, this_processor, TopDownFilter::ALL, workload)?;
    ///     for part in TopDownPart::LEVEL_1.into_iter().chain(TopDownPart::LEVEL_2) {
    ///         counts.per_mille(part).map(|share| println!("{share:4} of 1,000 slots: {part}"));
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// - [`NotUp`](PmuError::NotUp), [`Suspended`](PmuError::Suspended), [`Session`](PmuError::Session): the processor
    ///   is not up or is suspended, or its session is in use.
    /// - [`TopDown`](PmuError::TopDown), and `work` was not run: the processor has [no](TopDownError::NoTopDown)
    ///   supported top-down counters, the counters are in use, or the processor's slots are already being counted. On a
    ///   P-core, the call also fails if the counters were not [released](Self::release_top_down) before the processor
    ///   went down.
    /// - [`TopDown`](PmuError::TopDown), and `work` was run: the counts are lost. If the release of the counters
    ///   failed, the kernel can call [`release_top_down`](Self::release_top_down). If a task had taken the counters
    ///   before this call, the counters may still be running. To stop the counters, call
    ///   [`stop`](TopDownCounter::stop).
    ///
    /// If `work` panics and unwinds, the call ends the count.
    ///
    /// On a processor without supported top-down counters, such as AMD's, a kernel can compute the four categories from
    /// ordinary events. The type `Metric` of the crate `pmu-events` has the events and the formula for each core type.
    /// In the closure of [`with`](Self::with), the kernel opens all events of a formula as one group, by
    /// [`open_group`](pmu_core::CounterSession::open_group).
    pub fn count_slots(
        &'static self,
        top_down: &'static PmuTopDown<K, P>,
        this_processor: &Snapshot,
        filter: TopDownFilter,
        work: impl FnOnce(),
    ) -> Result<TopDownCounts, PmuError> {
        K::pinned(|| {
            let begun = self.here(|here| top_down.begin(here, this_processor, filter))?;
            let (before, is_new) = begun?;
            let counting = Counting { pmu: self, top_down, is_new };
            work();
            let counted = counting.end();
            core::mem::forget(counting);
            Ok(counted?.since(&before))
        })
    }

    /// Takes ownership of the executing processor's top-down counters, for [`with_top_down`](Self::with_top_down).
    /// `this_processor` is the snapshot of that processor. On a P-core, the processor's session cannot use fixed
    /// counter 3 until [`release_top_down`](Self::release_top_down).
    ///
    /// # Context
    /// Task, after [`processor_up`](Self::processor_up).
    ///
    /// # Errors
    /// - [`NotUp`](PmuError::NotUp), [`Suspended`](PmuError::Suspended), [`Session`](PmuError::Session): the processor
    ///   is not up or is suspended, or its session is in use.
    /// - [`TopDown`](PmuError::TopDown): the errors of [`TopDownCounter::take`], or the processor has
    ///   [no](TopDownError::NoTopDown) supported top-down counters. The error is
    ///   [`OtherProcessor`](CounterError::OtherProcessor) if `this_processor` describes another type of core.
    pub fn take_top_down(
        &'static self,
        top_down: &'static PmuTopDown<K, P>,
        this_processor: &Snapshot,
    ) -> Result<(), PmuError> {
        K::pinned(|| {
            self.here(|here| {
                let taken = top_down.take(here, this_processor)?;
                Ok(top_down.counters.with(|place| *place = Some(taken))?)
            })?
        })
    }

    /// Releases the top-down counters of the processor that executes the call. Afterwards, the processor's session can
    /// use these counters again. The kernel calls this before [`processor_down`](Self::processor_down).
    ///
    /// If the kernel omitted this call before `processor_down`, the kernel calls `release_top_down` after the next
    /// [`processor_up`](Self::processor_up), before any event uses fixed counter 3. In this case, the counts after the
    /// last read are lost. Until `release_top_down` succeeds, [`take_top_down`](Self::take_top_down) fails with
    /// [`MemoryInUse`](TopDownError::MemoryInUse). On a P-core, [`count_slots`](Self::count_slots) and
    /// [`start`](TopDownCounter::start) fail, too.
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// - [`NotUp`](PmuError::NotUp), [`Suspended`](PmuError::Suspended), [`Session`](PmuError::Session): the processor
    ///   is not up or is suspended, or its session is in use.
    /// - [`TopDown`](PmuError::TopDown): no task has taken the counters ([`ShutDown`](TopDownError::ShutDown)), or a
    ///   register access failed. If an access failed, the counters are not released, and the kernel can repeat the
    ///   call.
    pub fn release_top_down(
        &'static self,
        top_down: &'static PmuTopDown<K, P>,
    ) -> Result<(), PmuError> {
        K::pinned(|| self.here(|here| top_down.release(here))?)
    }

    /// Calls `act` with three values of the processor that executes the call: the top-down counters, the session, and
    /// the description of the processor's counters. The method [`with`](Self::with) passes the same session and the
    /// same description. Before this call, a task must have [taken](Self::take_top_down) the top-down counters.
    ///
    /// At a context switch, the kernel switches a thread's slot counts and events in one call of `with_top_down`. A
    /// thread whose slots are not counted, such as an idle thread, has no
    /// [`SavedTopDown`](pmu_intel::topdown::SavedTopDown). If a running thread gets a `SavedTopDown`, the kernel must
    /// switch in the slot counts at once:
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use pmu::core::ThreadEvent;
    /// use pmu::intel::topdown::{SavedTopDown, TopDownCounts, TopDownFilter};
    /// use pmu::{Pmu, PmuError, PmuTopDown};
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    /// static TOP_DOWN: PmuTopDown<MyKernel, 8> = PmuTopDown::new(); // `take_top_down` on each processor
    ///
    /// struct Thread {
    ///     events: [ThreadEvent; 4],
    ///     slots: Option<SavedTopDown>, // `None`: the thread's slots are not counted
    /// }
    ///
    /// /// Begins to count the slots of the running thread.
    /// fn begin(thread: &mut Thread) -> Result<(), PmuError> {
    ///     let slots = SavedTopDown::new(TopDownFilter::USER);
    ///     PMU.with_top_down(&TOP_DOWN, |topdown, session, _| {
    ///         topdown.switch_in(session.counters_mut(), &slots)?;
    ///         thread.slots = Some(slots); // from now on, `switch` switches the slots
    ///         Ok(())
    ///     })?
    /// }
    ///
    /// fn switch(from: &mut Thread, to: &mut Thread, now: u64) -> Result<(), PmuError> {
    ///     PMU.with_top_down(&TOP_DOWN, |topdown, session, unit| {
    ///         let counters = session.counters_mut();
    ///         let slots = match &mut from.slots {
    ///             Some(slots) => topdown.switch_out(counters, slots),
    ///             None => Ok(()),
    ///         };
    ///         let events = counters.switch_out(&mut from.events, now, |_overflow| ());
    ///         let events = events.and(counters.switch_in(unit, &mut to.events, now));
    ///         let slots = match &to.slots {
    ///             Some(to) => slots.and(topdown.switch_in(counters, to)),
    ///             None => slots,
    ///         };
    ///         Ok(events.map(|_| slots)??)
    ///     })?
    /// }
    ///
    /// fn of_this_thread(thread: &Thread) -> Result<Option<TopDownCounts>, PmuError> {
    ///     let Some(slots) = &thread.slots else { return Ok(None) };
    ///     let read = PMU.with_top_down(&TOP_DOWN, |topdown, session, _| {
    ///         topdown.read_thread(session.counters_mut(), slots)
    ///     });
    ///     Ok(Some(read??))
    /// }
    /// # let _ = (begin, switch, of_this_thread);
    /// ```
    ///
    /// The counters' registers lose their contents in a suspend, and [`processor_resumed`](Self::processor_resumed)
    /// does not program them again. So the kernel calls [`read`](TopDownCounter::read) before
    /// [`processor_suspended`](Self::processor_suspended), and [`reprogram`](TopDownCounter::reprogram) after
    /// `processor_resumed`. For a [window](pmu_core::CounterWindow) in which a guest runs, call
    /// `session.counters_mut().lend_with(now, topdown, …)`.
    ///
    /// # Context
    /// Task. The call is [pinned](Kernel::pinned). If `act` calls `with` or `with_top_down`, that call fails.
    ///
    /// # Errors
    /// `act` was not called:
    ///
    /// - [`NotUp`](PmuError::NotUp), [`Suspended`](PmuError::Suspended), [`Session`](PmuError::Session): the processor
    ///   is not up or is suspended, or its session is in use.
    /// - [`TopDown`](PmuError::TopDown): no task has taken the counters ([`ShutDown`](TopDownError::ShutDown)).
    pub fn with_top_down<R>(
        &'static self,
        top_down: &'static PmuTopDown<K, P>,
        act: impl FnOnce(&mut TopDownCounter<'static, K::Msr>, &mut PmuSession<K>, &CounterUnit) -> R,
    ) -> Result<R, PmuError> {
        K::pinned(|| {
            self.here(|here| top_down.with(|topdown| act(topdown, &mut here.session, &here.unit)))?
        })
    }
}

/// A count of a function, which ends also while the function unwinds.
struct Counting<K: Kernel, const P: usize, const E: usize, const N: usize> {
    pmu: &'static Pmu<K, P, E, N>,
    top_down: &'static PmuTopDown<K, P>,
    /// The counters were taken for this count.
    is_new: bool,
}

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Counting<K, P, E, N> {
    fn end(&self) -> Result<TopDownCounts, PmuError> {
        self.pmu.here(|here| self.top_down.end(here, self.is_new))?
    }
}

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Drop for Counting<K, P, E, N> {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
