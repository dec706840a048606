//! The lists of started profiles, and the dispatch of a profile interrupt.
//!
//! The lists are a double-buffered snapshot of an index, read under SRCU. The dispatch of an interrupt takes a
//! read guard, loads which snapshot is current, and reads that one. A writer holds the write guard, fills the
//! other snapshot, makes it current, and waits for a grace period. So the interrupt path is wait-free, and a
//! removed object is the caller's alone once `stop` returns.

mod write;

use core::cell::Cell;
use core::sync::atomic::Ordering;

use critical_section::Mutex;
use pmu_core::{InterruptFrame, KProfileSource, ProcessId, ProcessorNumber};

use crate::affinity::mask_of;
use crate::index::Index;
use crate::object::{Basic, Outcome};
use crate::readers::{ReadGuard, ReaderCounters, Statistics};
use crate::sync::{AtomicUsize, UnsafeCell, array_of, const_fn};
use crate::{ProfileError, ProfileHardware, ProfileObject, Rules};
use write::WriteGuard;

/// The started profile objects of a system: each process's list and the global list, for at most `N`
/// objects on processors whose [index](ProcessorNumber::index) is below `P`. Nothing is started on others.
///
/// Starting and stopping are serialized: concurrent callers spin until the first one is done. On one
/// processor with priorities, keep the tasks that do so from preempting each other. The flag that tells is
/// guarded by [`critical_section`], for which every kernel provides the implementation.
///
/// Everything is inside; a `static` is the usual place:
///
/// ```
/// use pmu_kprofile::Profiles;
/// static PROFILES: Profiles<64, 4> = Profiles::new();
/// assert_eq!(PROFILES.statistics().seen, 0);
/// ```
#[repr(C)] // The snapshots first: an interrupt has their address then.
pub struct Profiles<const N: usize, const P: usize> {
    snapshots: [Snapshot<N>; 2],
    readers: [ReaderCounters; P],
    rules: Rules,
    /// The index of the snapshot that interrupts read.
    current: AtomicUsize,
    /// The epoch of new readers, which selects the set of counters that they enter.
    epoch: AtomicUsize,
    started: AtomicUsize,
    /// Set while the write guard is held.
    writing: Mutex<Cell<bool>>,
}

/// One snapshot of the lists.
struct Snapshot<const N: usize>(UnsafeCell<Index<N>>);

// SAFETY: (1) readers read a snapshot under a read guard, taken before they load which snapshot is current;
// (2) only the holder of the write guard writes a snapshot, while it is not current and a grace period has
// passed since it was; so no write meets a read. The pointers in it are those of `Sync` objects, shared.
unsafe impl<const N: usize> Sync for Snapshot<N> {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl<const N: usize> Send for Snapshot<N> {}

/// Dereferences an object on the lists, for as long as the read guard or the write guard is held.
///
/// # Safety
/// - `object` comes from a snapshot that is current, or that a read guard keeps from being written, or
///   whose writer is the caller.
#[inline]
unsafe fn deref_object<'l>(object: *const ProfileObject<'static>) -> &'l ProfileObject<'static> {
    // SAFETY: (1) the object is started, and its `stop` waits for a grace period before it returns; (2) until
    // then it lives: it is 'static, or that was promised to `start_borrowed`.
    unsafe { &*object }
}

/// Dereferences what a basic object on the lists counts, for as long as [`deref_object`] may its object.
///
/// # Safety
/// As [`deref_object`].
#[inline]
unsafe fn deref_basic<'l>(basic: *const Basic<'static>) -> &'l Basic<'static> {
    // SAFETY: it is a part of an object on the lists.
    unsafe { &*basic }
}

// SAFETY: what is not an atomic is either a snapshot, see above, or belongs to the holder of the write guard.
unsafe impl<const N: usize, const P: usize> Sync for Profiles<N, P> {}

/// The outcome of one profile interrupt's dispatch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct DispatchOutcome {
    /// Objects that acted on it.
    pub hits: u32,
    /// Objects for which Windows, at the version selected, would have counted outside the buffer.
    pub outside: u32,
}

/// The accumulator of a dispatch: one number, to be added to in one instruction. Hits are in its low half,
/// counts that would have been outside in its high one.
struct Accumulator(u64);

impl Accumulator {
    const ZERO: Self = Self(0);

    #[inline]
    fn add(&mut self, outcome: Outcome, guard: ReadGuard<'_>) {
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

    #[inline]
    fn hits(&self) -> u32 {
        self.0 as u32
    }
}

impl From<Accumulator> for DispatchOutcome {
    #[inline]
    fn from(accumulator: Accumulator) -> Self {
        Self { hits: accumulator.hits(), outside: (accumulator.0 >> 32) as u32 }
    }
}

impl<const N: usize, const P: usize> Profiles<N, P> {
    const_fn! {
        /// Empty lists that behave like the latest Windows, correctly: those of
        /// [`Rules::LATEST`].
        pub const fn new() -> Self {
            Self::with_rules(Rules::LATEST)
        }
    }

    const_fn! {
        /// Empty lists of a given Windows. They take objects that were created with the same rules, and
        /// refuse others ([`OtherRules`](ProfileError::OtherRules)).
        pub const fn with_rules(rules: Rules) -> Self {
            Self {
                rules,
                snapshots: array_of!(Snapshot(UnsafeCell::new(Index::new()))),
                current: AtomicUsize::new(0),
                epoch: AtomicUsize::new(0),
                started: AtomicUsize::new(0),
                readers: array_of!(ReaderCounters::new()),
                writing: Mutex::new(Cell::new(false)),
            }
        }
    }

    /// The Windows that these lists are like.
    pub const fn rules(&self) -> Rules {
        self.rules
    }

    /// Dispatches a profile interrupt with its source: `KeProfileInterruptWithSource`. The objects of the
    /// interrupted process come first, then the global ones; of each, callback objects in the order in
    /// which they were started, then basic ones, whose order does not matter to what they count.
    ///
    /// Interrupt or NMI context, on the processor that the frame names. Wait-free: bounded by the
    /// number of started objects, no lock, no allocation, no panic but a callback's. An interrupt of
    /// a processor beyond the `P`th finds nothing and is not counted.
    #[inline]
    pub fn interrupt<F: InterruptFrame>(
        &self,
        frame: &F,
        source: KProfileSource,
    ) -> DispatchOutcome {
        let processor = frame.processor().index();
        let Some(counters) = self.readers.get(processor) else { return DispatchOutcome::default() };
        let guard = counters.read_lock(&self.epoch);
        self.current().with(|lists| {
            // SAFETY: the read guard keeps the snapshot from being written until it is released.
            let lists = unsafe { &*lists };
            let Some(group) = lists.only_ranges(source.value()) else {
                // That releases the guard, so that this function calls nothing.
                return self.dispatch_all(frame, source, processor, guard);
            };
            let pc = frame.pc();
            let mut accumulator = Accumulator::ZERO;
            lists.ranges(group, pc, |basic| {
                // SAFETY: as above.
                accumulator.add(unsafe { deref_basic(basic) }.count(pc, processor), guard);
            });
            guard.unlock(accumulator.hits() != 0);
            accumulator.into()
        })
    }

    /// Dispatches to all objects of a source: the process's list, then the global one; of each, callback
    /// objects, then basic ones. Releases the guard.
    #[inline(never)]
    fn dispatch_all<F: InterruptFrame>(
        &self,
        frame: &F,
        source: KProfileSource,
        processor: usize,
        guard: ReadGuard<'_>,
    ) -> DispatchOutcome {
        let pc = frame.pc();
        let mut accumulator = Accumulator::ZERO;
        self.current().with(|lists| {
            // SAFETY: the read guard keeps the snapshot from being written until it is released.
            let lists = unsafe { &*lists };
            let Some(found) = lists.source(source.value()) else { return };
            let process = frame.process().and_then(|process| lists.process(found, process.get()));
            for group in process.into_iter().chain(found.global()) {
                for object in lists.callbacks(group) {
                    // SAFETY: as above.
                    unsafe { deref_object(object) }.call_back(frame, source);
                    accumulator.add(Outcome::Acted, guard);
                }
                lists.ranges(group, pc, |basic| {
                    // SAFETY: as above.
                    let basic = unsafe { deref_basic(basic) };
                    if basic.has_segment_of(frame) {
                        accumulator.add(basic.count(pc, processor), guard);
                    }
                });
            }
        });
        guard.unlock(accumulator.hits() != 0);
        accumulator.into()
    }

    /// Returns the current snapshot.
    #[inline]
    fn current(&self) -> &UnsafeCell<Index<N>> {
        self.snapshot(self.current.load(Ordering::Acquire))
    }

    /// Dispatches an interrupt of the profile timer: `KeProfileInterrupt`.
    #[inline]
    pub fn timer_interrupt<F: InterruptFrame>(&self, frame: &F) -> DispatchOutcome {
        self.interrupt(frame, KProfileSource::TIME)
    }

    #[inline]
    fn snapshot(&self, number: usize) -> &UnsafeCell<Index<N>> {
        let [even, _] = &self.snapshots;
        &self.snapshots.get(number & 1).unwrap_or(even).0
    }

    /// Starts a profile: starts the source on each of its active processors on which it does not run yet,
    /// then puts the object at its list's end. Other objects and other processors are not touched.
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// See [`ProfileError`]. The object is started on all of its active processors or on none: nothing is
    /// changed, except that a counter that [faulted](pmu_core::CounterError::Faulted) stays so.
    pub fn start<H: ProfileHardware>(
        &self,
        object: &'static ProfileObject<'static>,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        // SAFETY: the object and what it borrows live forever.
        unsafe { self.start_borrowed(object, hardware) }
    }

    /// [Starts](Self::start) a profile object that does not live forever.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    ///
    /// # Safety
    /// Unless this fails, until [`stop`](Self::stop) of the object on these lists, wherever they are
    /// moved, has returned anything but
    /// [`WrongContext`](ProfileError::WrongContext) or
    /// [`OnAnotherList`](ProfileError::OnAnotherList):
    /// - the object is neither moved nor dropped, not even by unwinding;
    /// - its buffer, or its callback, is not freed.
    pub unsafe fn start_borrowed<H: ProfileHardware>(
        &self,
        object: &ProfileObject<'_>,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        let guard = self.write(hardware)?;
        // SAFETY: the caller's promise.
        unsafe { guard.start(object, hardware) }
    }

    /// Stops a profile: takes the object off its list, waits for a grace period, so that no processor can be
    /// reading it, and stops the source on each processor where no other object has it. Afterwards the
    /// object and its buffer are the caller's alone.
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// See [`ProfileError`]. With [`Hardware`](ProfileError::Hardware) the object is stopped all the
    /// same.
    pub fn stop<H: ProfileHardware>(
        &self,
        object: &ProfileObject<'_>,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        self.write(hardware)?.stop(object, hardware)
    }

    /// Stops every profile of a process, which is about to end.
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// The first error of the hardware; every object was stopped all the same.
    /// [`WrongContext`](ProfileError::WrongContext): none was.
    pub fn stop_process<H: ProfileHardware>(
        &self,
        process: ProcessId,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        let guard = self.write(hardware)?;
        let mut outcome = Ok(());
        while let Some(object) = guard.objects().find(|o| o.process() == Some(process)) {
            outcome = outcome.and(guard.stop(object, hardware));
        }
        outcome
    }

    /// Starts what the started profiles want and do not have: on processors that became active, and where
    /// a source could not be started before. Call it when a processor came up with its session
    /// initialized, and when one went down.
    ///
    /// A processor that this call, or any other that starts or stops, sees inactive is known to run
    /// nothing any more. One that went down and came back between two calls is taken to run what it ran:
    /// say so with [`restart_processor`](Self::restart_processor).
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// See [`ProfileError`]: what failed first. Each source on each processor stands for itself: all
    /// others were started, and what failed is tried again by the next call.
    /// [`ProfileObject::runs_on`] tells what an object has.
    pub fn update_processors<H: ProfileHardware>(
        &self,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        let guard = self.write(hardware)?;
        guard.start_missing(|group| guard.active().mask(group), hardware)
    }

    /// Starts again what the started profiles want on a processor that lost its state: it went down and
    /// came back, or its session was shut down and is another one now. Of a processor that is not active,
    /// only takes note.
    ///
    /// # Context
    /// Task. On the processor nothing runs that a profile started.
    ///
    /// # Errors
    /// As [`update_processors`](Self::update_processors), of this processor.
    pub fn restart_processor<H: ProfileHardware>(
        &self,
        processor: ProcessorNumber,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        let guard = self.write(hardware)?;
        let there = |group| if group == processor.group.into() { mask_of(processor) } else { 0 };
        guard.keep_running(|group| !there(group));
        guard.start_missing(|group| guard.active().mask(group) & there(group), hardware)
    }

    /// How many objects are started. Any context.
    pub fn started(&self) -> usize {
        self.started.load(Ordering::Relaxed)
    }

    /// What became of the interrupts so far, on all processors. Any context.
    pub fn statistics(&self) -> Statistics {
        let mut total = Statistics::default();
        self.readers.iter().for_each(|counters| counters.add_to(&mut total));
        total
    }

    /// Takes the write guard, after its present holder; refuses interrupts, which could wait for the task that
    /// they interrupted, and callbacks, which would wait for themselves.
    fn write<H: ProfileHardware>(
        &self,
        hardware: &H,
    ) -> Result<WriteGuard<'_, N, P>, ProfileError> {
        let counters = self.readers.get(hardware.this_processor().index());
        if hardware.in_interrupt() || counters.is_some_and(ReaderCounters::is_read_locked) {
            return Err(ProfileError::WrongContext);
        }
        Ok(WriteGuard::take(self, hardware))
    }
}

impl<const N: usize, const P: usize> core::fmt::Debug for Profiles<N, P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Profiles")
            .field("rules", &self.rules)
            .field("started", &self.started())
            .field("statistics", &self.statistics())
            .finish_non_exhaustive()
    }
}

impl<const N: usize, const P: usize> Default for Profiles<N, P> {
    fn default() -> Self {
        Self::new()
    }
}
