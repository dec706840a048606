//! The dispatch of a profile interrupt, top to bottom: take the read guard, find the groups of its source, act for
//! each object, release the guard.

use pmu_core::frame::InterruptFrame;
use pmu_core::profile::KProfileSource;

use crate::index::groups::Group;
use crate::object::basic::{Basic, Outcome};
use crate::registry::guard::ReadGuard;
use crate::registry::profiles::Profiles;

/// The outcome of dispatching one profile interrupt: how many objects acted on the interrupt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct DispatchOutcome {
    /// Number of objects that acted on the interrupt: basic objects that counted the interrupt, and callback objects
    /// whose callback was called.
    pub hits: u32,
    /// Number of counts that belong outside an object's buffer. The Windows version in the object's
    /// [rules](crate::ProfileObject::rules) writes such counts; this crate does not.
    pub outside: u32,
}

impl<const N: usize, const P: usize> Profiles<N, P> {
    /// Dispatches a profile interrupt to the started objects of its source, as Windows' `KeProfileInterruptWithSource`
    /// does.
    ///
    /// The objects that profile the interrupted process come first. The objects that profile all execution follow.
    /// Within each of these two groups, callback objects come first, in the order in which they were started. Basic
    /// objects follow in any order.
    ///
    /// The function is wait-free: it takes no lock, allocates nothing, and visits each started object at most once. The
    /// function panics only if a callback panics. If the index of the interrupted processor is `P` or more, no object
    /// acts on the interrupt, and the [statistics](Self::statistics) do not include the interrupt.
    ///
    /// # Context
    /// Interrupt or NMI, on the processor whose number `frame` contains.
    ///
    /// # Examples
    /// ```
    /// use pmu_core::frame::InterruptFrame;
    /// use pmu_core::profile::KProfileSource;
    /// use pmu_kprofile::Profiles;
    ///
    /// static PROFILES: Profiles<64, 4> = Profiles::new();
    ///
    /// /// What the handler of the performance interrupt gives to `service` for each overflowed source.
    /// fn overflowed(frame: &impl InterruptFrame, source: KProfileSource) {
    ///     let outcome = PROFILES.interrupt(frame, source);
    ///     if outcome.outside > 0 {
    ///         // A Windows with this defect would have written outside a buffer.
    ///     }
    /// }
    /// ```
    #[inline]
    pub fn interrupt<F: InterruptFrame>(
        &self,
        frame: &F,
        source: KProfileSource,
    ) -> DispatchOutcome {
        let processor = frame.processor().index();
        let Some(guard) = ReadGuard::take(self, processor) else {
            return DispatchOutcome::default();
        };
        let Some(group) = guard.lists().only_ranges(source.value()) else {
            return dispatch_all(frame, source, processor, guard);
        };
        let mut accumulator = Accumulator::ZERO;
        // No other condition: only objects of a process have a segment.
        accumulator.count_ranges(&guard, group, frame.pc(), processor, |_| true);
        accumulator.finish(guard)
    }

    /// Dispatches an interrupt of the profile timer, as Windows' `KeProfileInterrupt` does.
    ///
    /// # Context
    /// Interrupt or NMI, on the processor whose number `frame` contains.
    ///
    /// # Examples
    /// ```
    /// use pmu_core::frame::InterruptFrame;
    /// use pmu_kprofile::Profiles;
    ///
    /// static PROFILES: Profiles<64, 4> = Profiles::new();
    ///
    /// /// The handler of the profile timer, after it told the local APIC where the interrupt ends.
    /// fn on_timer(frame: &impl InterruptFrame) {
    ///     PROFILES.timer_interrupt(frame);
    /// }
    /// ```
    #[inline]
    pub fn timer_interrupt<F: InterruptFrame>(&self, frame: &F) -> DispatchOutcome {
        self.interrupt(frame, KProfileSource::TIME)
    }
}

/// Dispatches to all objects of a source: the process's list, then the global one; of each, callback objects,
/// then basic ones.
#[inline(never)] // So that the dispatch to ranges alone calls nothing.
fn dispatch_all<F: InterruptFrame, const N: usize>(
    frame: &F,
    source: KProfileSource,
    processor: usize,
    guard: ReadGuard<'_, N>,
) -> DispatchOutcome {
    let mut accumulator = Accumulator::ZERO;
    let lists = guard.lists();
    if let Some(found) = lists.source(source.value()) {
        let process = frame.process().and_then(|process| lists.process(found, process.get()));
        for group in process.into_iter().chain(found.global()) {
            for object in lists.callbacks(group) {
                object.call_back(frame, source);
                accumulator.add(Outcome::Acted, &guard);
            }
            let has_segment = |basic: &Basic<'_>| basic.has_segment_of(frame);
            accumulator.count_ranges(&guard, group, frame.pc(), processor, has_segment);
        }
    }
    accumulator.finish(guard)
}

/// The accumulator of a dispatch: one number, to which one instruction adds. The low half counts hits; the high half
/// counts objects for which Windows would have counted outside the buffer.
struct Accumulator(u64);

impl Accumulator {
    const ZERO: Self = Self(0);

    /// Counts the interrupt for each basic object of a group whose range has `pc`, and whose other conditions `of`
    /// accepts.
    #[inline(always)]
    fn count_ranges<const N: usize>(
        &mut self,
        guard: &ReadGuard<'_, N>,
        group: &Group,
        pc: u64,
        processor: usize,
        of: impl Fn(&Basic<'_>) -> bool,
    ) {
        guard.lists().ranges(group, pc, |basic| {
            if of(basic) {
                self.add(basic.count(pc, processor), guard);
            }
        });
    }

    #[inline]
    fn add<const N: usize>(&mut self, outcome: Outcome, guard: &ReadGuard<'_, N>) {
        // There are fewer than 2³¹ objects.
        match outcome {
            Outcome::Passed => {}
            Outcome::Acted => self.0 += 1,
            Outcome::Outside => {
                // This needs no register for a constant while there is nothing outside.
                self.0 = (self.0.rotate_left(32) + 1).rotate_left(32);
                guard.count_outside();
            }
        }
    }

    /// Releases the guard.
    #[inline]
    fn finish<const N: usize>(self, guard: ReadGuard<'_, N>) -> DispatchOutcome {
        let hits = self.0 as u32;
        guard.unlock(hits != 0);
        DispatchOutcome { hits, outside: (self.0 >> 32) as u32 }
    }
}
