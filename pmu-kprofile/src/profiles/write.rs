//! The write side of the lists: what starts and stops objects, and the hardware for them.
//!
//! A source runs on a processor from the first object that has it there to the last one. Which objects have
//! it is in the objects themselves, and all of one source agree: on a processor either each of them that
//! wants it has it, or none.

use core::ptr;
use core::sync::atomic::Ordering;

use pmu_core::KProfileSource;

use super::{Profiles, deref_object};
use crate::affinity::{first_of_group, mask_of, processors_in};
use crate::index::Index;
use crate::readers::synchronize;
use crate::sync::{exclusively, spin_loop};
use crate::{Affinity, MAX_GROUPS, ProfileError, ProfileHardware, ProfileObject, Rules};

/// The write guard: the exclusive right to write the lists, until it is dropped.
pub(super) struct WriteGuard<'p, const N: usize, const P: usize> {
    profiles: &'p Profiles<N, P>,
    /// The processors that were active when the guard was taken.
    active: Affinity,
}

impl<'p, const N: usize, const P: usize> WriteGuard<'p, N, P> {
    /// How many groups the lists' processors are in.
    const GROUPS: usize = if P < 64 * MAX_GROUPS { P.div_ceil(64) } else { MAX_GROUPS };

    /// Takes the guard, after its present holder.
    pub(super) fn take<H: ProfileHardware>(profiles: &'p Profiles<N, P>, hardware: &H) -> Self {
        while exclusively(|cs| profiles.writing.borrow(cs).replace(true)) {
            spin_loop();
        }
        let mut guard = Self { profiles, active: Affinity::EMPTY };
        guard.active = hardware.active_processors();
        // What ran on a processor that went away does not run any more.
        guard.keep_running(|group| guard.active.mask(group));
        guard
    }

    pub(super) fn active(&self) -> &Affinity {
        &self.active
    }

    /// Returns the current snapshot of the lists, which nothing else writes meanwhile.
    fn lists(&self) -> &Index<N> {
        let current = self.profiles.current.load(Ordering::Relaxed);
        // SAFETY: only the guard's holder writes a snapshot, and not while this borrow of the guard lives:
        // `replace` writes the other one.
        self.profiles.snapshot(current).with(|lists| unsafe { &*lists })
    }

    pub(super) fn objects(&self) -> impl Iterator<Item = &ProfileObject<'static>> {
        // SAFETY: the snapshot is current.
        self.lists().objects().map(|object| unsafe { deref_object(object) })
    }

    fn objects_of(&self, source: KProfileSource) -> impl Iterator<Item = &ProfileObject<'static>> {
        self.objects().filter(move |object| object.source() == source)
    }

    fn contains(&self, object: &ProfileObject<'_>) -> bool {
        let object = ptr::from_ref(object).cast();
        self.objects().any(|other| ptr::eq(other, object))
    }

    /// The processors of a group on which a source runs for the started objects.
    fn running(&self, source: KProfileSource, group: usize) -> u64 {
        self.objects_of(source).fold(0, |running, object| running | object.running(group))
    }

    /// On these processors of a group a source runs: for all objects that want it there.
    fn add_running(&self, source: KProfileSource, group: usize, processors: u64) {
        self.objects_of(source).for_each(|object| object.add_running(group, processors));
    }

    /// On processors other than these nothing runs.
    pub(super) fn keep_running(&self, processors: impl Fn(usize) -> u64) {
        for group in 0..Self::GROUPS {
            let kept = processors(group);
            self.objects().for_each(|object| object.keep_running(group, kept));
        }
    }

    /// See [`Profiles::start_borrowed`].
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn start<H: ProfileHardware>(
        &self,
        object: &ProfileObject<'_>,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        if object.is_started() {
            let here = self.contains(object);
            return Err(if here {
                ProfileError::AlreadyStarted
            } else {
                ProfileError::OnAnotherList
            });
        }
        let (rules, source) = (self.profiles.rules, object.source());
        if object.rules() != rules {
            return Err(ProfileError::OtherRules { object: object.rules(), lists: rules });
        }
        if self.lists().len() >= N {
            return Err(ProfileError::AtLimit);
        }
        let wanted = |group| object.wanted(group) & self.active.mask(group);
        if processors_in(wanted).next().is_none() {
            return Err(ProfileError::NoProcessor);
        }
        let beyond = |group| wanted(group) & !first_of_group(P, group);
        if let Some(beyond) = processors_in(beyond).next() {
            return Err(ProfileError::ProcessorBeyondLists(beyond));
        }
        // Lists elsewhere may be taking the object at the same time; the first wins.
        if !object.set_started(true) {
            return Err(ProfileError::OnAnotherList);
        }
        let idle = |group| match wanted(group) {
            0 => 0,
            wanted => wanted & !self.running(source, group),
        };
        for processor in processors_in(idle) {
            if let Err(error) = hardware.start(processor, source) {
                let error = ProfileError::Hardware { processor, error };
                let undone = self.release(object, hardware);
                // A fault is what is left, so it is what to report.
                return Err(undone.err().unwrap_or(error));
            }
            object.add_running(processor.group.into(), mask_of(processor));
        }
        let pointer = ptr::from_ref(object).cast::<ProfileObject<'static>>();
        let basic = object.as_basic().map(|basic| ptr::from_ref(basic).cast());
        let range = basic.zip(object.range());
        self.replace(|lists, from| lists.fill_with(from, pointer, object.key(), range));
        for group in 0..Self::GROUPS {
            self.add_running(source, group, self.running(source, group));
        }
        Ok(())
    }

    /// See [`Profiles::stop`].
    pub(super) fn stop<H: ProfileHardware>(
        &self,
        object: &ProfileObject<'_>,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        if !self.contains(object) {
            let started = object.is_started();
            return Err(if started {
                ProfileError::OnAnotherList
            } else {
                ProfileError::NotStarted
            });
        }
        let pointer = ptr::from_ref(object).cast::<ProfileObject<'static>>();
        self.replace(|lists, from| lists.fill_without(from, pointer));
        self.release(object, hardware)
    }

    /// Stops the source of an object that is not on the lists where it runs for no other one, and marks the
    /// object as stopped.
    fn release<H: ProfileHardware>(
        &self,
        object: &ProfileObject<'_>,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        let source = object.source();
        let last = |group| match object.running(group) {
            0 => 0,
            own => own & !self.running(source, group),
        };
        let mut outcome = Ok(());
        for processor in processors_in(last) {
            let stopped = hardware.stop(processor, source);
            outcome =
                outcome.and(stopped.map_err(|error| ProfileError::Hardware { processor, error }));
        }
        (0..Self::GROUPS).for_each(|group| object.keep_running(group, 0));
        object.set_started(false);
        outcome
    }

    /// Starts, on some processors, each source that an object wants there and does not have. What several
    /// objects lack is tried once.
    pub(super) fn start_missing<H: ProfileHardware>(
        &self,
        on: impl Fn(usize) -> u64,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        let mut outcome = Ok(());
        for (place, object) in self.objects().enumerate() {
            let source = object.source();
            let earlier = || self.objects().take(place).filter(|other| other.source() == source);
            let missing = |group| match object.wanted(group) & on(group) & !object.running(group) {
                0 => 0,
                missing => earlier().fold(missing, |missing, other| missing & !other.wanted(group)),
            };
            for processor in processors_in(missing) {
                let started = if processor.index() < P {
                    let started = hardware.start(processor, source);
                    started.map_err(|error| ProfileError::Hardware { processor, error })
                } else {
                    Err(ProfileError::ProcessorBeyondLists(processor))
                };
                if started.is_ok() {
                    self.add_running(source, processor.group.into(), mask_of(processor));
                }
                outcome = outcome.and(started);
            }
        }
        outcome
    }

    /// Replaces the current snapshot by one that `fill` makes of it, and waits for a grace period, after which
    /// no interrupt reads the old one.
    fn replace(&self, fill: impl FnOnce(&mut Index<N>, &Index<N>)) {
        let profiles = self.profiles;
        let old = profiles.current.load(Ordering::Relaxed);
        let new = old ^ 1;
        let length = profiles.snapshot(new).with_mut(|lists| {
            // SAFETY: (1) this is the guard's holder; (2) the other snapshot is not current, and when it
            // ceased to be, this function waited for a grace period; so nothing reads it.
            let lists = unsafe { &mut *lists };
            lists.source_mask = source_mask(profiles.rules);
            fill(lists, self.lists());
            lists.len()
        });
        profiles.started.store(length, Ordering::Relaxed);
        profiles.current.swap(new, Ordering::AcqRel);
        synchronize(&profiles.readers, &profiles.epoch);
    }
}

impl<const N: usize, const P: usize> Drop for WriteGuard<'_, N, P> {
    fn drop(&mut self) {
        exclusively(|cs| self.profiles.writing.borrow(cs).set(false));
    }
}

/// Which bits of a source's number tell sources apart: before version 3.51, all are one.
const fn source_mask(rules: Rules) -> u32 {
    if rules.version.has_source_and_affinity() { u32::MAX } else { 0 }
}
