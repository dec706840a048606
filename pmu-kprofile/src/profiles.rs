//! The lists of started profiles, and the examination of an interrupt.
//!
//! The lists exist twice, as two generations of an index. An interrupt marks its processor, looks up
//! which generation is current, and reads that one; a writer fills the other, makes it current, and
//! then waits until no processor can still be reading the old one. So the interrupt path is
//! wait-free, and what was removed is nobody's once `stop` returns.

use core::cell::Cell;
use core::sync::atomic::Ordering;

use critical_section::Mutex;
use pmu_core::{InterruptFrame, KProfileSource, ProcessId, ProcessorNumber};

use crate::index::Index;
use crate::marks::{Entered, Mark, Statistics, wait_until_left};
use crate::object::{Basic, Outcome};
use crate::sync::{AtomicUsize, UnsafeCell, array_of, const_fn, exclusively, spin_loop};
use crate::{Affinity, ProfileError, ProfileHardware, ProfileObject, Rules};

/// The started profile objects of a system: each process's list and the global list, for at most `N`
/// objects on processors whose [index](ProcessorNumber::index) is below `P`.
///
/// Starting and stopping are serialised: who comes second waits, spinning. On one processor with
/// priorities, keep the tasks that do so from preempting each other. The flag that tells is guarded by
/// [`critical_section`], for which every kernel provides the implementation.
///
/// Everything is inside; a `static` is the usual place:
///
/// ```
/// use pmu_kprofile::Profiles;
/// static PROFILES: Profiles<64, 4> = Profiles::new();
/// assert_eq!(PROFILES.statistics().seen, 0);
/// ```
#[repr(C)] // The generations first: an interrupt has their address then.
pub struct Profiles<const N: usize, const P: usize> {
    generations: [Generation<N>; 2],
    marks: [Mark; P],
    rules: Rules,
    /// The index of the generation that interrupts read.
    current: AtomicUsize,
    /// Which of a mark's two counts examinations enter.
    epoch: AtomicUsize,
    started: AtomicUsize,
    /// The processors on which the hardware runs for the started objects that want it. Belongs to
    /// the one who changes the lists.
    processors: UnsafeCell<Affinity>,
    /// Whether somebody is changing the lists.
    changing: Mutex<Cell<bool>>,
}

/// One state of the lists.
struct Generation<const N: usize>(UnsafeCell<Index<N>>);

// SAFETY: an index is read while it is current, and written only by the one who holds the right to
// change the lists, while it is not current and every processor was seen outside the examination
// since it was. The pointers in it are those of `Sync` objects, shared.
unsafe impl<const N: usize> Sync for Generation<N> {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl<const N: usize> Send for Generation<N> {}

/// An object on the lists, for as long as they are looked at.
///
/// # Safety
/// - `object` comes from an index that is current, or that a processor's mark keeps from being
///   written, or whose writer is the caller.
#[inline]
unsafe fn listed<'l>(object: *const ProfileObject<'static>) -> &'l ProfileObject<'static> {
    // SAFETY: the object was started and its `stop` has not returned, which waits for everybody who
    // may be looking; until then it lives: it is 'static, or that was promised to `start_borrowed`.
    unsafe { &*object }
}

/// What a basic object on the lists counts, for as long as they are looked at.
///
/// # Safety
/// As [`listed`].
#[inline]
unsafe fn counting<'l>(basic: *const Basic<'static>) -> &'l Basic<'static> {
    // SAFETY: it is a part of an object on the lists.
    unsafe { &*basic }
}

// SAFETY: what is not an atomic is either a generation, see above, or belongs to the one who holds the
// right to change the lists.
unsafe impl<const N: usize, const P: usize> Sync for Profiles<N, P> {}

/// What became of one interrupt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Examination {
    /// Objects that acted on it.
    pub hits: u32,
    /// Objects for which Windows, at the version selected, would have counted outside the buffer.
    pub outside: u32,
}

/// An examination in the making, as one number, to be added to in one instruction: hits in its low half,
/// what would have been outside in its high one.
struct Tally(u64);

impl Tally {
    const NOTHING: Self = Self(0);

    #[inline]
    fn add(&mut self, outcome: Outcome, entered: Entered<'_>) {
        // There are fewer than 2³¹ objects.
        match outcome {
            Outcome::Passed => {}
            Outcome::Acted => self.0 += 1,
            Outcome::Outside => {
                // This needs no register for a constant while there is nothing outside.
                self.0 = (self.0.rotate_left(32) + 1).rotate_left(32);
                entered.outside();
            }
        }
    }

    #[inline]
    fn hits(&self) -> u32 {
        self.0 as u32
    }
}

impl From<Tally> for Examination {
    #[inline]
    fn from(tally: Tally) -> Self {
        Self { hits: tally.hits(), outside: (tally.0 >> 32) as u32 }
    }
}

impl<const N: usize, const P: usize> Profiles<N, P> {
    const_fn! {
        /// Empty lists that behave like the latest Windows, correctly.
        pub const fn new() -> Self {
            Self::with_rules(Rules::LATEST)
        }
    }

    const_fn! {
        /// Empty lists of a given Windows. Objects for them are created with the same rules.
        pub const fn with_rules(rules: Rules) -> Self {
            Self {
                rules,
                generations: array_of!(Generation(UnsafeCell::new(Index::new()))),
                current: AtomicUsize::new(0),
                epoch: AtomicUsize::new(0),
                started: AtomicUsize::new(0),
                processors: UnsafeCell::new(Affinity::EMPTY),
                marks: array_of!(Mark::new()),
                changing: Mutex::new(Cell::new(false)),
            }
        }
    }

    /// The Windows that these lists are like.
    pub const fn rules(&self) -> Rules {
        self.rules
    }

    /// Examines an interrupt with its source: `KeProfileInterruptWithSource`. The objects of the
    /// interrupted process come first, then the global ones; of each, callback objects in the order in
    /// which they were started, then basic ones, whose order does not matter to what they count.
    ///
    /// Interrupt or NMI context, on the processor that the frame names. Wait-free: bounded by the
    /// number of started objects, no lock, no allocation, no panic but a callback's. An interrupt of
    /// a processor beyond the `P`th finds nothing and is not counted.
    #[inline]
    pub fn interrupt<F: InterruptFrame>(&self, frame: &F, source: KProfileSource) -> Examination {
        let processor = frame.processor().index();
        let Some(mark) = self.marks.get(processor) else { return Examination::default() };
        let entered = mark.enter(&self.epoch);
        self.current().with(|lists| {
            // SAFETY: the mark keeps the index from being written until it is left.
            let lists = unsafe { &*lists };
            let Some(group) = lists.only_ranges(source.value()) else {
                // It leaves, so that this function calls nothing.
                return self.examine_all(frame, source, processor, entered);
            };
            let pc = frame.pc();
            let mut tally = Tally::NOTHING;
            lists.ranges(group, pc, |basic| {
                // SAFETY: as above.
                tally.add(unsafe { counting(basic) }.count(pc, processor), entered);
            });
            entered.leave(tally.hits() != 0);
            tally.into()
        })
    }

    /// Examines everything of a source: the process's list, then the global one; of each, callback
    /// objects, then basic ones. Leaves the mark.
    #[inline(never)]
    fn examine_all<F: InterruptFrame>(
        &self,
        frame: &F,
        source: KProfileSource,
        processor: usize,
        entered: Entered<'_>,
    ) -> Examination {
        let pc = frame.pc();
        let mut tally = Tally::NOTHING;
        self.current().with(|lists| {
            // SAFETY: the mark keeps the index from being written until it is left.
            let lists = unsafe { &*lists };
            let Some(found) = lists.source(source.value()) else { return };
            let process = frame.process().and_then(|process| lists.process(found, process.get()));
            for group in process.into_iter().chain(found.global()) {
                for object in lists.callbacks(group) {
                    // SAFETY: as above.
                    unsafe { listed(object) }.call_back(frame, source);
                    tally.add(Outcome::Acted, entered);
                }
                lists.ranges(group, pc, |basic| {
                    // SAFETY: as above.
                    let basic = unsafe { counting(basic) };
                    if basic.has_segment_of(frame) {
                        tally.add(basic.count(pc, processor), entered);
                    }
                });
            }
        });
        entered.leave(tally.hits() != 0);
        tally.into()
    }

    /// The generation that is current.
    #[inline]
    fn current(&self) -> &UnsafeCell<Index<N>> {
        self.generation(self.current.load(Ordering::Acquire))
    }

    /// Examines an interrupt of the profile timer: `KeProfileInterrupt`.
    #[inline]
    pub fn timer_interrupt<F: InterruptFrame>(&self, frame: &F) -> Examination {
        self.interrupt(frame, KProfileSource::TIME)
    }

    #[inline]
    fn generation(&self, number: usize) -> &UnsafeCell<Index<N>> {
        let [even, _] = &self.generations;
        &self.generations.get(number & 1).unwrap_or(even).0
    }

    /// Starts a profile: starts the source on each processor that wants it first, then puts the
    /// object at its list's end.
    ///
    /// # Errors
    /// See [`ProfileError`]; nothing is changed, except that a counter that
    /// [faulted](pmu_core::InterfaceError::Faulted) stays so. Task context.
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
    /// # Safety
    /// Unless this fails, until [`stop`](Self::stop) of the object on these lists, wherever they are
    /// moved, has returned anything but
    /// [`WrongContext`](ProfileError::WrongContext) or
    /// [`OnAnotherList`](ProfileError::OnAnotherList):
    /// - the object is not moved or dropped, by unwinding neither;
    /// - its buffer, or its callback, is not freed.
    pub unsafe fn start_borrowed<H: ProfileHardware>(
        &self,
        object: &ProfileObject<'_>,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        let change = self.change(hardware)?;
        let me = self.address();
        match object.owner() {
            0 => {}
            owner if owner == me => return Err(ProfileError::AlreadyStarted),
            _ => return Err(ProfileError::OnAnotherList),
        }
        if change.lists().len() >= N {
            return Err(ProfileError::AtLimit);
        }
        change.follow_processors(hardware)?;
        let active = hardware.active_processors();
        let wanted = object.processors(active);
        if wanted.is_empty() {
            return Err(ProfileError::NoProcessor);
        }
        if let Some(beyond) = wanted.difference(Affinity::first(P)).iter().next() {
            return Err(ProfileError::ProcessorBeyondLists(beyond));
        }
        // Lists elsewhere may be taking the object at the same time; the first wins.
        if !object.change_owner(0, me) {
            return Err(ProfileError::OnAnotherList);
        }
        let source = object.source();
        let first = wanted.difference(change.processors_of(source, active));
        let mut started = Affinity::EMPTY;
        for processor in first.iter() {
            if let Err(error) = hardware.start(processor, source) {
                object.change_owner(me, 0);
                let error = ProfileError::Hardware { processor, error };
                return Err(undo(hardware, started, source).err().unwrap_or(error));
            }
            started = started.union(Affinity::of(processor));
        }
        let pointer = core::ptr::from_ref(object).cast::<ProfileObject<'static>>();
        let basic = object.counting().map(|basic| core::ptr::from_ref(basic).cast());
        let range = basic.zip(object.range());
        change.replace(|lists, from| lists.fill_with(from, pointer, object.key(), range));
        Ok(())
    }

    /// Stops a profile: takes the object off its list, waits until no processor can be looking at
    /// it, and stops the source on each processor that nobody else wants it on. Afterwards the
    /// object and its buffer are the caller's alone.
    ///
    /// # Errors
    /// See [`ProfileError`]. With [`Hardware`](ProfileError::Hardware) the object is stopped all the
    /// same. Task context.
    pub fn stop<H: ProfileHardware>(
        &self,
        object: &ProfileObject<'_>,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        let change = self.change(hardware)?;
        self.stop_with(&change, object, hardware)
    }

    fn stop_with<H: ProfileHardware>(
        &self,
        change: &Change<'_, N, P>,
        object: &ProfileObject<'_>,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        let me = self.address();
        match object.owner() {
            0 => return Err(ProfileError::NotStarted),
            owner if owner == me => {}
            _ => return Err(ProfileError::OnAnotherList),
        }
        let pointer = core::ptr::from_ref(object).cast::<ProfileObject<'static>>();
        // Lists that were moved, and others that took their place, have one address.
        if !change.objects().any(|listed| core::ptr::eq(listed, pointer)) {
            return Err(ProfileError::OnAnotherList);
        }
        change.replace(|lists, from| lists.fill_without(from, pointer));
        let active = change.known_processors().intersection(hardware.active_processors());
        let source = object.source();
        let last = object.processors(active).difference(change.processors_of(source, active));
        let mut outcome = Ok(());
        for processor in last.iter() {
            let stopped = hardware.stop(processor, source);
            outcome =
                outcome.and(stopped.map_err(|error| ProfileError::Hardware { processor, error }));
        }
        object.change_owner(me, 0);
        outcome
    }

    /// Starts what the started profiles want on processors that became active since profiles were
    /// last started. A kernel that brings processors up later calls this then; otherwise the next
    /// start does it. It also calls this when a processor has shut its session down and is no longer
    /// active, before that becomes active again: what returns unnoticed is taken to run still.
    ///
    /// # Errors
    /// See [`ProfileError`]. On the processor that it names, nothing was started. Task context.
    pub fn update_processors<H: ProfileHardware>(
        &self,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        self.change(hardware)?.follow_processors(hardware)
    }

    /// Stops every profile of a process, which is about to end. Task context.
    ///
    /// # Errors
    /// The first error of the hardware; every object was stopped all the same.
    /// [`WrongContext`](ProfileError::WrongContext): none was.
    pub fn stop_process<H: ProfileHardware>(
        &self,
        process: ProcessId,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        let change = self.change(hardware)?;
        let mut outcome = Ok(());
        loop {
            let Some(object) = change.objects().find(|o| o.process() == Some(process)) else {
                return outcome;
            };
            outcome = outcome.and(self.stop_with(&change, object, hardware));
        }
    }

    /// How many objects are started. Any context.
    pub fn started(&self) -> usize {
        self.started.load(Ordering::Relaxed)
    }

    /// What became of the interrupts so far, on all processors. Any context.
    pub fn statistics(&self) -> Statistics {
        let mut total = Statistics::default();
        self.marks.iter().for_each(|mark| mark.add_to(&mut total));
        total
    }

    fn address(&self) -> usize {
        core::ptr::from_ref(self) as usize
    }

    /// Becomes the one who changes the lists, waiting for whoever does so now; refuses interrupts,
    /// which could wait for the task that they interrupted, and callbacks, which would wait for themselves.
    fn change<H: ProfileHardware>(&self, hardware: &H) -> Result<Change<'_, N, P>, ProfileError> {
        let mark = self.marks.get(hardware.this_processor().index());
        if hardware.in_interrupt() || mark.is_some_and(Mark::is_under_way) {
            return Err(ProfileError::WrongContext);
        }
        while exclusively(|cs| self.changing.borrow(cs).replace(true)) {
            spin_loop();
        }
        Ok(Change { profiles: self })
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

/// The right to change the lists.
struct Change<'p, const N: usize, const P: usize> {
    profiles: &'p Profiles<N, P>,
}

impl<const N: usize, const P: usize> Change<'_, N, P> {
    /// The lists as they are; nobody else writes them meanwhile.
    fn lists(&self) -> &Index<N> {
        let current = self.profiles.current.load(Ordering::Relaxed);
        // SAFETY: only who holds the right to change writes an index, and that is not done while this
        // borrow of the right lives: `replace` writes the other generation.
        self.profiles.generation(current).with(|lists| unsafe { &*lists })
    }

    fn objects(&self) -> impl Iterator<Item = &ProfileObject<'static>> {
        // SAFETY: the index is current.
        self.lists().objects().map(|object| unsafe { listed(object) })
    }

    /// The processors on which the started objects want a source.
    fn processors_of(&self, source: KProfileSource, active: Affinity) -> Affinity {
        self.objects()
            .filter(|object| object.source() == source)
            .fold(Affinity::EMPTY, |wanted, object| wanted.union(object.processors(active)))
    }

    fn known_processors(&self) -> Affinity {
        // SAFETY: it belongs to the one who holds the right to change, and no reference to it stays.
        self.profiles.processors.with(|processors| unsafe { *processors })
    }

    /// Starts what is wanted on processors that became active, and forgets those that no longer are.
    fn follow_processors<H: ProfileHardware>(&self, hardware: &mut H) -> Result<(), ProfileError> {
        let active = hardware.active_processors();
        let mut known = self.known_processors().intersection(active);
        let mut outcome = Ok(());
        for processor in active.difference(known).iter() {
            match self.start_all(processor, hardware) {
                Ok(()) => known = known.union(Affinity::of(processor)),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        // SAFETY: as in `known_processors`.
        self.profiles.processors.with_mut(|processors| unsafe { *processors = known });
        outcome
    }

    /// Starts every source that is wanted on a processor where nothing runs.
    fn start_all<H: ProfileHardware>(
        &self,
        processor: ProcessorNumber,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        let wanted = || {
            let wanting = self.objects().filter(|object| object.is_wanted_on(processor));
            wanting.map(ProfileObject::source)
        };
        let is_first = |count, source| wanted().take(count).all(|earlier| earlier != source);
        for (count, source) in wanted().enumerate().filter(|(count, s)| is_first(*count, *s)) {
            if let Err(error) = hardware.start(processor, source) {
                let mut failure = ProfileError::Hardware { processor, error };
                for (_, source) in
                    wanted().take(count).enumerate().filter(|(n, s)| is_first(*n, *s))
                {
                    let undone = undo(hardware, Affinity::of(processor), source);
                    failure = undone.err().unwrap_or(failure);
                }
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Replaces the current generation by one that `fill` makes of it, and waits until nobody reads
    /// the old one.
    fn replace(&self, fill: impl FnOnce(&mut Index<N>, &Index<N>)) {
        let profiles = self.profiles;
        let old = profiles.current.load(Ordering::Relaxed);
        let new = old ^ 1;
        let length = profiles.generation(new).with_mut(|lists| {
            // SAFETY: this is who holds the right to change; the other generation is not current, and
            // when it ceased to be, this function waited until nobody read it.
            let lists = unsafe { &mut *lists };
            lists.source_mask = source_mask(profiles.rules);
            fill(lists, self.lists());
            lists.len()
        });
        profiles.started.store(length, Ordering::Relaxed);
        profiles.current.swap(new, Ordering::AcqRel);
        wait_until_left(&profiles.marks, &profiles.epoch);
    }
}

impl<const N: usize, const P: usize> Drop for Change<'_, N, P> {
    fn drop(&mut self) {
        exclusively(|cs| self.profiles.changing.borrow(cs).set(false));
    }
}

/// Which bits of a source's number tell sources apart: before version 3.51, all are one.
const fn source_mask(rules: Rules) -> u32 {
    if rules.version.has_source_and_affinity() { u32::MAX } else { 0 }
}

/// Stops a source where it was just started. If that fails too, its error is the one to report.
fn undo<H: ProfileHardware>(
    hardware: &mut H,
    started: Affinity,
    source: KProfileSource,
) -> Result<(), ProfileError> {
    let mut outcome = Ok(());
    for processor in started.iter() {
        let stopped = hardware.stop(processor, source);
        outcome = outcome.and(stopped.map_err(|error| ProfileError::Hardware { processor, error }));
    }
    outcome
}
