//! The lists of started profiles, and the examination of an interrupt.
//!
//! The lists exist twice, as two generations of an array. An interrupt marks its processor, looks up
//! which generation is current, and reads that one; a writer fills the other, makes it current, and
//! then waits until no processor can still be reading the old one. So the interrupt path is
//! wait-free, and what was removed is nobody's once `stop` returns.

use core::cell::Cell;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use critical_section::Mutex;
use pmu_core::{InterruptFrame, KProfileSource};

use crate::marks::{Mark, Statistics, mark_of};
use crate::object::Outcome;
use crate::{Affinity, ProfileError, ProfileHardware, ProfileObject, Rules};

/// The started profile objects of a system: each process's list and the global list, for at most `N`
/// objects on at most `P` processors.
///
/// Everything is inside; a `static` is the usual place:
///
/// ```
/// use pmu_kprofile::Profiles;
/// static PROFILES: Profiles<64, 4> = Profiles::new();
/// assert_eq!(PROFILES.statistics().seen, 0);
/// ```
#[derive(Debug)]
pub struct Profiles<const N: usize, const P: usize> {
    rules: Rules,
    generations: [Generation<N>; 2],
    /// The index of the generation that interrupts read.
    current: AtomicUsize,
    marks: [Mark; P],
    /// Whether somebody is changing the lists.
    changing: Mutex<Cell<bool>>,
}

/// One state of the lists: objects in the order in which they were started.
#[derive(Debug)]
struct Generation<const N: usize> {
    length: AtomicUsize,
    objects: [AtomicPtr<ProfileObject<'static>>; N],
}

impl<const N: usize> Generation<N> {
    const fn new() -> Self {
        Self {
            length: AtomicUsize::new(0),
            objects: [const { AtomicPtr::new(core::ptr::null_mut()) }; N],
        }
    }

    #[inline]
    fn objects(&self) -> impl Iterator<Item = &ProfileObject<'static>> {
        let length = self.length.load(Ordering::Acquire);
        self.objects.iter().take(length).filter_map(|object| {
            // SAFETY: a pointer in a generation that is, or may be, current is that of an object
            // that was started and whose `stop` has not returned; until it does, the object lives
            // (it is 'static, or that was promised to `start_borrowed`).
            unsafe { object.load(Ordering::Relaxed).as_ref() }
        })
    }

    /// Becomes a copy of `from`, without `without` and with `with`. The caller made sure of the room,
    /// and that nobody reads this generation.
    fn fill(&self, from: &Self, without: *const (), with: Option<*mut ProfileObject<'static>>) {
        let kept = from
            .objects
            .iter()
            .take(from.length.load(Ordering::Relaxed))
            .map(|object| object.load(Ordering::Relaxed))
            .filter(|object| object.cast_const().cast() != without)
            .chain(with);
        let mut length = 0;
        for (place, object) in self.objects.iter().zip(kept) {
            place.store(object, Ordering::Relaxed);
            length += 1;
        }
        self.length.store(length, Ordering::Release);
    }
}

/// What became of one interrupt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Examination {
    /// Objects that acted on it.
    pub hits: u32,
    /// Objects for which Windows, at the version selected, would have counted outside the buffer.
    pub outside: u32,
}

impl<const N: usize, const P: usize> Profiles<N, P> {
    /// Empty lists that behave like the latest Windows, correctly.
    pub const fn new() -> Self {
        Self::with_rules(Rules::LATEST)
    }

    /// Empty lists of a given Windows. Objects for them are created with the same rules.
    pub const fn with_rules(rules: Rules) -> Self {
        Self {
            rules,
            generations: [const { Generation::new() }; 2],
            current: AtomicUsize::new(0),
            marks: [const { Mark::new() }; P],
            changing: Mutex::new(Cell::new(false)),
        }
    }

    /// The Windows that these lists are like.
    pub const fn rules(&self) -> Rules {
        self.rules
    }

    /// Examines an interrupt with its source: `KeProfileInterruptWithSource`. The objects of the
    /// interrupted process come first, then the global ones, each in the order in which they were
    /// started.
    ///
    /// Interrupt or NMI context, on the processor that the frame names. Wait-free: bounded by the
    /// number of started objects, no lock, no allocation, no panic but a callback's. An interrupt of
    /// a processor beyond the `P`th finds nothing and is not counted.
    #[inline]
    pub fn interrupt<F: InterruptFrame>(&self, frame: &F, source: KProfileSource) -> Examination {
        let Some(mark) = mark_of(&self.marks, frame.processor()) else {
            return Examination::default();
        };
        mark.enter();
        let mut examination = Examination::default();
        let mut examine = |object: &ProfileObject<'static>| match object.examine(frame, source) {
            Outcome::Passed => {}
            Outcome::Acted => examination.hits += 1,
            Outcome::Outside => examination.outside += 1,
        };
        let generation = self.generation(self.current.load(Ordering::SeqCst));
        if let process @ Some(_) = frame.process() {
            generation.objects().filter(|o| o.process() == process).for_each(&mut examine);
        }
        generation.objects().filter(|o| o.process().is_none()).for_each(&mut examine);
        mark.leave(examination.hits, examination.outside);
        examination
    }

    /// Examines an interrupt of the profile timer: `KeProfileInterrupt`.
    #[inline]
    pub fn timer_interrupt<F: InterruptFrame>(&self, frame: &F) -> Examination {
        self.interrupt(frame, KProfileSource::TIME)
    }

    #[inline]
    fn generation(&self, index: usize) -> &Generation<N> {
        let [even, odd] = &self.generations;
        if index & 1 == 0 { even } else { odd }
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
    /// Unless this fails, until [`stop`](Self::stop) of the object has returned anything but
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
        let lists = self.generation(self.current.load(Ordering::Relaxed));
        if lists.length.load(Ordering::Relaxed) >= N {
            return Err(ProfileError::AtLimit);
        }
        let active = hardware.active_processors();
        let wanted = object.processors(active);
        if wanted.is_empty() {
            return Err(ProfileError::NoProcessor);
        }
        // Lists elsewhere may be taking the object at the same time; the first wins.
        if !object.change_owner(0, me) {
            return Err(ProfileError::OnAnotherList);
        }
        let source = object.source();
        let first = wanted.difference(self.processors_of(source, active, None));
        let mut started = Affinity::EMPTY;
        for processor in first.iter() {
            if let Err(error) = hardware.start(processor, source) {
                for processor in started.iter() {
                    // A counter that can not be stopped is the session's to remember; the first
                    // error is the one that explains.
                    let _ = hardware.stop(processor, source);
                }
                object.change_owner(me, 0);
                return Err(ProfileError::Hardware { processor, error });
            }
            started = started.union(Affinity::of(processor));
        }
        let pointer = core::ptr::from_ref(object).cast_mut().cast::<ProfileObject<'static>>();
        change.replace(core::ptr::null(), Some(pointer));
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
        let pointer: *const () = core::ptr::from_ref(object).cast();
        change.replace(pointer, None);
        let active = hardware.active_processors();
        let source = object.source();
        let last =
            object.processors(active).difference(self.processors_of(source, active, Some(pointer)));
        let mut outcome = Ok(());
        for processor in last.iter() {
            let stopped = hardware.stop(processor, source);
            outcome =
                outcome.and(stopped.map_err(|error| ProfileError::Hardware { processor, error }));
        }
        object.change_owner(me, 0);
        outcome
    }

    /// Stops every profile of a process, which is about to end. Task context.
    ///
    /// # Errors
    /// The first error of the hardware; every object was stopped all the same.
    /// [`WrongContext`](ProfileError::WrongContext): none was.
    pub fn stop_process<H: ProfileHardware>(
        &self,
        process: pmu_core::ProcessId,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        let change = self.change(hardware)?;
        let mut outcome = Ok(());
        loop {
            let lists = self.generation(self.current.load(Ordering::Relaxed));
            let Some(object) = lists.objects().find(|o| o.process() == Some(process)) else {
                return outcome;
            };
            outcome = outcome.and(self.stop_with(&change, object, hardware));
        }
    }

    /// The processors on which started objects want a source, leaving one object out.
    fn processors_of(
        &self,
        source: KProfileSource,
        active: Affinity,
        without: Option<*const ()>,
    ) -> Affinity {
        self.generation(self.current.load(Ordering::Relaxed))
            .objects()
            .filter(|object| object.source() == source)
            .filter(|object| Some(core::ptr::from_ref(*object).cast()) != without)
            .fold(Affinity::EMPTY, |wanted, object| wanted.union(object.processors(active)))
    }

    /// How many objects are started.
    pub fn started(&self) -> usize {
        self.generation(self.current.load(Ordering::SeqCst)).length.load(Ordering::Relaxed)
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
    /// which could wait for the task that they interrupted.
    fn change<H: ProfileHardware>(&self, hardware: &H) -> Result<Change<'_, N, P>, ProfileError> {
        let mark = mark_of(&self.marks, hardware.this_processor());
        if mark.is_some_and(|mark| !mark.is_idle()) {
            return Err(ProfileError::WrongContext);
        }
        while critical_section::with(|cs| self.changing.borrow(cs).replace(true)) {
            core::hint::spin_loop();
        }
        Ok(Change { profiles: self })
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
    /// Replaces the current generation by one without an object, or with one more, and waits until
    /// nobody reads the old one.
    fn replace(&self, without: *const (), with: Option<*mut ProfileObject<'static>>) {
        let profiles = self.profiles;
        let old = profiles.current.load(Ordering::Relaxed);
        let new = old ^ 1;
        profiles.generation(new).fill(profiles.generation(old), without, with);
        profiles.current.swap(new, Ordering::SeqCst);
        for mark in &profiles.marks {
            while !mark.is_idle() {
                core::hint::spin_loop();
            }
        }
    }
}

impl<const N: usize, const P: usize> Drop for Change<'_, N, P> {
    fn drop(&mut self) {
        critical_section::with(|cs| self.profiles.changing.borrow(cs).set(false));
    }
}
