//! The dispatch of a profile interrupt, top to bottom: take the read guard, find the groups of its source, act for
//! each object, release the guard.

use core::sync::atomic::Ordering;

use pmu_core::frame::InterruptFrame;
use pmu_core::profile::KProfileSource;

use crate::index::lookup::{Group, Index, Source};
use crate::object::bucket::{Basic, Outcome};
use crate::object::profile_object::{ObjectPtr, ProfileObject};
use crate::registry::profiles::Profiles;
use crate::registry::srcu::ReadLock;
use crate::sync::{ConstPtr, UnsafeCell};

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

    /// Returns one of the two snapshots.
    #[inline]
    pub(super) fn snapshot(&self, number: usize) -> &UnsafeCell<Index<N>> {
        let [even, _] = &self.snapshots;
        &self.snapshots.get(number & 1).unwrap_or(even).0
    }
}

/// Dispatches to all objects of a source: the process's list, then the global one; of each, callback objects,
/// then basic ones.
// So that the dispatch to ranges alone calls nothing.
#[inline(never)] // 256 bytes of the Hermit-like glue, at `opt-level` 3.
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

/// A snapshot of the lists, protected by a guard: while it is held, the snapshot is not written and its objects live.
pub(super) struct Lists<'g, const N: usize>(&'g Index<N>);

impl<const N: usize> Clone for Lists<'_, N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<const N: usize> Copy for Lists<'_, N> {}

impl<'g, const N: usize> Lists<'g, N> {
    /// # Safety
    /// For `'g`, the holder of a guard:
    /// - holds a read guard that it took before it loaded that this snapshot is current, or
    /// - holds the write lock, and this snapshot is current and not replaced.
    pub(super) unsafe fn new(index: &'g Index<N>) -> Self {
        Self(index)
    }

    /// Dereferences a pointer found in the lists.
    #[inline]
    fn get<T>(self, object: ObjectPtr<T>) -> &'g T {
        // SAFETY: (1) the pointer is to an object on these lists, or to a part of one: only this type calls this, with
        // pointers from its index; (2) an object is taken off the lists before it dies, and lives until a grace period
        // has passed since: it is 'static, or its owner promised so, see `try_start_borrowed`; (3) by `new`, for `'g`
        // the object is on the lists, or the grace period has not passed. So it lives.
        unsafe { &*object.as_ptr() }
    }

    pub(super) fn index(self) -> &'g Index<N> {
        self.0
    }

    /// Returns the started objects, ordered by key.
    pub(super) fn objects(self) -> impl Iterator<Item = &'g ProfileObject<'static>> {
        self.0.objects().map(move |object| self.get(object))
    }

    /// See [`Index::only_ranges`].
    #[inline]
    pub(super) fn only_ranges(self, source: u32) -> Option<&'g Group> {
        self.0.only_ranges(source)
    }

    /// See [`Index::source`].
    pub(super) fn source(self, source: u32) -> Option<&'g Source<N>> {
        self.0.source(source)
    }

    /// See [`Index::process`].
    pub(super) fn process(self, source: &Source<N>, process: u64) -> Option<&'g Group> {
        self.0.process(source, process)
    }

    /// Returns a group's callback objects, in the order in which they were started.
    pub(super) fn callbacks(
        self,
        group: &Group,
    ) -> impl Iterator<Item = &'g ProfileObject<'static>> {
        self.0.callbacks(group).map(move |object| self.get(object))
    }

    /// Calls `hit` with the counting part of each of a group's basic objects whose range has `pc`.
    #[inline(always)]
    pub(super) fn ranges(self, group: &Group, pc: u64, mut hit: impl FnMut(&'g Basic<'static>)) {
        self.0.ranges(group, pc, |basic| hit(self.get(basic)));
    }
}

/// The read guard of a profile interrupt's dispatch.
pub(super) struct ReadGuard<'r, const N: usize> {
    lock: ReadLock<'r>,
    /// The snapshot that was current after the lock was taken.
    snapshot: ConstPtr<Index<N>>,
}

impl<'r, const N: usize> ReadGuard<'r, N> {
    /// Takes the guard on a processor, given by its index; `None` if the lists do not cover it.
    #[inline]
    pub(super) fn take<const P: usize>(
        profiles: &'r Profiles<N, P>,
        processor: usize,
    ) -> Option<Self> {
        let lock = profiles.readers.get(processor)?.read_lock(&profiles.epoch);
        // After the lock was taken: a writer that replaces this snapshot waits for it.
        let snapshot = profiles.snapshot(profiles.current.load(Ordering::Acquire)).get();
        Some(Self { lock, snapshot })
    }

    #[inline]
    pub(super) fn lists(&self) -> Lists<'_, N> {
        // SAFETY: (1) the snapshot is a part of the lists, which are borrowed; (2) by `take`, the lock was taken
        // before the snapshot was loaded, and is held while this borrow lives; a writer waits for it before it
        // writes the snapshot.
        unsafe { Lists::new(self.snapshot.deref()) }
    }

    /// Counts an object for which Windows would have counted outside the buffer.
    pub(super) fn count_outside(&self) {
        self.lock.count_outside();
    }

    /// Ends the read-side critical section, and counts the interrupt as a hit or a miss.
    #[inline]
    pub(super) fn unlock(self, hit: bool) {
        let Self { lock, snapshot } = self;
        snapshot.end();
        lock.unlock(hit);
    }
}
