//! The write guard: starts and stops objects, and the hardware for them.
//!
//! A source runs on a processor as long as at least one object uses the source there. Each object records on which
//! processors it uses its source. The objects of one source agree: on a processor, either all objects that want the
//! source use it, or none does.

use core::ptr;
use core::sync::atomic::Ordering;

#[cfg(feature = "critical-section")]
use pmu_core::frame::ProcessId;
use pmu_core::profile::{KProfileSource, NtStatus};
use pmu_core::windows::Rules;

use crate::affinity::{Affinity, MAX_GROUPS, first_of_group, mask_of, processors_in};
use crate::hardware::profile_hardware::ProfileHardware;
use crate::index::build::Change;
use crate::index::lookup::Entry;
use crate::object::profile_object::{ObjectPtr, ProfileObject, State};
use crate::registry::control::ProfileError;
use crate::registry::dispatch::Lists;
use crate::registry::profiles::Profiles;
use crate::registry::srcu::GracePeriod;

/// The write guard: the write lock, once the last change's grace period is over and the active processors are known.
pub(super) struct WriteGuard<'p, const N: usize, const P: usize> {
    lock: WriteLock<'p, N, P>,
    /// The processors that were active when the guard was taken.
    pub(super) active: Affinity,
}

impl<'p, const N: usize, const P: usize> WriteGuard<'p, N, P> {
    /// Number of processor groups that the lists cover.
    const GROUPS: usize = if P < 64 * MAX_GROUPS { P.div_ceil(64) } else { MAX_GROUPS };

    /// Creates a guard from a lock whose [`poll`](WriteLock::poll) has returned `true`.
    pub(super) fn new<H: ProfileHardware>(lock: WriteLock<'p, N, P>, hardware: &H) -> Self {
        let guard = Self { lock, active: hardware.active_processors() };
        // Nothing runs on a processor that went away.
        (0..Self::GROUPS).for_each(|group| guard.keep_running(group, guard.active.mask(group)));
        guard
    }

    fn profiles(&self) -> &'p Profiles<N, P> {
        self.lock.0
    }

    /// Returns the number of changes so far.
    pub(super) fn change(&self) -> u64 {
        self.lock.change()
    }

    /// Waits for the last change's grace period.
    #[cfg(feature = "critical-section")]
    pub(super) fn synchronize(&mut self) {
        self.lock.synchronize();
    }

    /// Stops one object of a process; `None` if there is none. The caller waits for the grace period.
    #[cfg(feature = "critical-section")]
    pub(super) fn stop_one_of<H: ProfileHardware>(
        &self,
        process: ProcessId,
        hardware: &mut H,
    ) -> Option<Result<(), ProfileError>> {
        let object = self.objects().find(|object| object.process() == Some(process))?;
        Some(self.stop(object, hardware).and_then(|outcome| outcome))
    }

    pub(super) fn objects(&self) -> impl Iterator<Item = &ProfileObject<'static>> {
        self.lock.lists().objects()
    }

    fn objects_of(&self, source: KProfileSource) -> impl Iterator<Item = &ProfileObject<'static>> {
        self.objects().filter(move |object| object.source() == source)
    }

    #[inline(never)] // 224 bytes of the Hermit-like glue.
    fn contains(&self, object: &ProfileObject<'_>) -> bool {
        let object = ptr::from_ref(object).cast();
        self.objects().any(|other| ptr::eq(other, object))
    }

    /// Returns the processors of a group on which a source runs for the started objects.
    #[inline(never)] // 512 bytes of `pmu-small`, at `opt-level` 3.
    fn running(&self, source: KProfileSource, group: usize) -> u64 {
        self.objects_of(source).fold(0, |running, object| running | object.running(group))
    }

    /// Records that a source runs on these processors of a group, for all objects that want it there.
    #[inline(never)] // 272 bytes of the glue, at `opt-level` 3.
    pub(super) fn add_running(&self, source: KProfileSource, group: usize, processors: u64) {
        self.objects_of(source).for_each(|object| object.add_running(group, processors));
    }

    /// Records that nothing runs on any processors of a group but these.
    // Linked once: each guard, and a processor that comes up.
    #[inline(never)] // 192 bytes of the glue, at `opt-level` 3.
    pub(super) fn keep_running(&self, group: usize, processors: u64) {
        self.objects().for_each(|object| object.keep_running(group, processors));
    }

    /// Returns whether the lists are full, or the version allows no further profile.
    fn is_at_limit(&self) -> bool {
        let (version, length) = (self.profiles().rules().version, self.lock.lists().index().len());
        let reached = |processors, started| {
            version.started_profiles_limit(processors).is_some_and(|limit| started >= limit)
        };
        let all = || {
            let active = (0..MAX_GROUPS).map(|group| self.active.mask(group).count_ones() as usize);
            // The services start no callback objects.
            let basic = self.objects().filter(|object| object.as_basic().is_some());
            reached(active.sum(), basic.count())
        };
        // In the common case there are too few objects even for one processor, and nothing needs to be counted.
        length >= N || reached(1, length) && all()
    }

    /// Starts an object: see [`Profiles::try_start_borrowed`]; `resources` is that of [`Profiles::try_start_service`].
    ///
    /// # Safety
    /// As for [`Profiles::try_start_borrowed`].
    pub(super) unsafe fn start<H: ProfileHardware>(
        &self,
        object: &ProfileObject<'_>,
        resources: Result<(), NtStatus>,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        if !object.is(State::Stopped) {
            let here = self.contains(object);
            return Err(if here {
                ProfileError::AlreadyStarted
            } else {
                ProfileError::OnAnotherList
            });
        }
        let (rules, source) = (self.profiles().rules(), object.source());
        if object.rules() != rules {
            return Err(ProfileError::OtherRules { object: object.rules(), lists: rules });
        }
        if self.is_at_limit() {
            return Err(ProfileError::AtLimit);
        }
        resources.map_err(ProfileError::Caller)?;
        let wanted = |group| object.wanted(group) & self.active.mask(group);
        if processors_in(wanted).next().is_none() {
            return Err(ProfileError::NoProcessor);
        }
        let beyond = |group| wanted(group) & !first_of_group(P, group);
        if let Some(beyond) = processors_in(beyond).next() {
            return Err(ProfileError::ProcessorBeyondLists(beyond));
        }
        // Other lists may be starting the object at the same time; the first one wins.
        if !object.begin() {
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
                object.end(State::Stopped);
                // If undoing failed too, the source may still run: that is the error to report.
                return Err(undone.err().unwrap_or(error));
            }
            object.add_running(processor.group.into(), mask_of(processor));
        }
        // All that can fail is done: from here on interrupts find the object.
        self.replace(&Change::Insert(entry_of(object)));
        // The new object also uses the source where it already ran for others: all objects of a source agree.
        for group in 0..Self::GROUPS {
            self.add_running(source, group, self.running(source, group));
        }
        Ok(())
    }

    /// Takes an object off the lists, and stops its source on each processor on which no other object uses it. Returns
    /// the hardware's result.
    pub(super) fn stop<H: ProfileHardware>(
        &self,
        object: &ProfileObject<'_>,
        hardware: &mut H,
    ) -> Result<Result<(), ProfileError>, ProfileError> {
        if !self.contains(object) {
            let stopped = object.is(State::Stopped);
            return Err(if stopped {
                ProfileError::NotStarted
            } else {
                ProfileError::OnAnotherList
            });
        }
        object.end(State::Stopping);
        // Before its sources are stopped: an interrupt that they still raise no longer finds the object.
        self.replace(&Change::Remove(pointer_to(object)));
        Ok(self.release(object, hardware))
    }

    /// Stops the source of an unlinked object on each processor on which it runs for no other object.
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
        outcome
    }

    /// Replaces the current snapshot by a changed copy; the grace period of the replaced snapshot begins.
    #[inline(never)] // Once in a kernel that counts bytes.
    fn replace(&self, change: &Change) {
        let profiles = self.profiles();
        let old = profiles.current.load(Ordering::Relaxed);
        let new = old ^ 1;
        let length = profiles.snapshot(new).with_mut(|lists| {
            // SAFETY: (1) this is the guard's holder; (2) the other snapshot is not current; (3) its grace period is
            // over, because the guard was made after that, and makes one change. So nothing reads the snapshot.
            let lists = unsafe { &mut *lists };
            lists.ignored_bits = ignored_bits(profiles.rules());
            lists.fill(self.lock.lists().index(), change);
            lists.len()
        });
        profiles.started.store(length, Ordering::Relaxed);
        // Publishes the snapshot: a reader that acquires the number sees all of it.
        profiles.current.swap(new, Ordering::AcqRel);
        self.lock.state(|state| {
            // After the swap: the grace period covers each reader that may have loaded the old number.
            state.grace = GracePeriod::BEGUN;
            state.change = state.change.wrapping_add(1);
            state.stopping = match change {
                Change::Insert(_) => None,
                Change::Remove(object) => Some(*object),
            };
        });
    }
}

/// Returns the pointer by which an index holds an object.
fn pointer_to(object: &ProfileObject<'_>) -> ObjectPtr<ProfileObject<'static>> {
    ObjectPtr::new(ptr::from_ref(object).cast())
}

/// Returns the entry of an object in an index.
fn entry_of(object: &ProfileObject<'_>) -> Entry {
    let entry = Entry::of_callback(pointer_to(object), object.key());
    match object.as_basic() {
        Some(basic) => {
            let basic_ptr = ObjectPtr::new(ptr::from_ref(basic).cast());
            entry.with_range(basic_ptr, basic.range(object.rules()))
        }
        None => entry,
    }
}

/// Returns the bits of a source's number that an index ignores: all of them before version 3.51, where interrupts have
/// no source.
const fn ignored_bits(rules: Rules) -> u32 {
    if rules.version.has_source_and_affinity() { 0 } else { u32::MAX }
}

/// The write lock: the exclusive right to write the lists, released on drop.
pub(super) struct WriteLock<'p, const N: usize, const P: usize>(
    /// The lists.
    pub(super) &'p Profiles<N, P>,
);

impl<'p, const N: usize, const P: usize> WriteLock<'p, N, P> {
    /// Takes the lock, if no other task holds it.
    #[inline(never)] // 48 bytes of the glue.
    pub(super) fn try_take(profiles: &'p Profiles<N, P>) -> Option<Self> {
        profiles.writing.try_take().then(|| Self(profiles))
    }

    pub(super) fn state<R>(&self, access: impl FnOnce(&mut WriterState) -> R) -> R {
        self.0.writer.with_mut(|state| {
            // SAFETY: (1) this is the only holder of the lock; (2) `access` cannot reach the lock.
            access(unsafe { &mut *state })
        })
    }

    /// Returns the current snapshot of the lists, which is not written while the lock is held.
    #[inline(never)] // 128 bytes of the glue.
    pub(super) fn lists(&self) -> Lists<'_, N> {
        let current = self.0.snapshot(self.0.current.load(Ordering::Relaxed)).get();
        // SAFETY: (1) this is the write lock's holder; (2) `WriteGuard::replace`, which writes the other snapshot, is
        // the last operation that uses these lists.
        unsafe { Lists::new(current.deref()) }
    }

    /// Returns the number of changes so far.
    pub(super) fn change(&self) -> u64 {
        self.state(|state| state.change)
    }

    /// Takes all steps of the last change's grace period that are possible without waiting, and returns whether it is
    /// over. If so, the object that the change took off the lists is stopped.
    #[inline(never)] // 192 bytes of the Hermit-like glue, at `opt-level` 3.
    pub(super) fn poll(&mut self) -> bool {
        self.state(|state| {
            let over = state.grace.poll(&self.0.readers, &self.0.epoch);
            if let Some(object) = state.stopping.take_if(|_| over) {
                // SAFETY: (1) the object lives until its owner learns that the grace period is over; (2) only this
                // function tells the owner, and only after this, because it takes the pointer. So the object lives.
                unsafe { &*object.as_ptr() }.end(State::Stopped);
            }
            over
        })
    }
}

#[cfg(feature = "critical-section")]
impl<const N: usize, const P: usize> WriteLock<'_, N, P> {
    /// Waits for the last change's grace period.
    pub(super) fn synchronize(&mut self) {
        while !self.poll() {
            crate::sync::spin_loop();
        }
    }
}

impl<const N: usize, const P: usize> Drop for WriteLock<'_, N, P> {
    fn drop(&mut self) {
        self.0.writing.release();
    }
}

/// The state that only the holder of the write lock accesses.
pub(super) struct WriterState {
    /// The grace period of the last change: until it is over, the snapshot that is not current may be read.
    pub(super) grace: GracePeriod,
    /// Number of changes so far.
    pub(super) change: u64,
    /// The object that the last change took off the lists.
    pub(super) stopping: Option<ObjectPtr<ProfileObject<'static>>>,
}

impl WriterState {
    pub(super) const NEW: Self = Self { grace: GracePeriod::OVER, change: 0, stopping: None };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::testing::AnySource;
    use crate::{BasicProfile, PointerWidth};
    use core::sync::atomic::AtomicU32;
    use pmu_core::frame::InterruptFrame;
    use pmu_core::windows::WindowsVersion;
    use std::boxed::Box;

    const RULES: Rules = Rules { version: WindowsVersion::Windows8, width: PointerWidth::Bits64 };

    fn hardware(active: usize) -> AnySource {
        AnySource { this: 0, active }
    }

    fn basic() -> &'static ProfileObject<'static> {
        static BUFFER: [AtomicU32; 1] = [const { AtomicU32::new(0) }; 1];
        let request = BasicProfile {
            process: None,
            base: 0x1000,
            size: 4,
            bucket_log2: 2,
            buffer: &BUFFER,
            source: KProfileSource::TIME,
            affinity: Some(Affinity::first(1)),
        };
        Box::leak(Box::new(ProfileObject::basic(RULES, request, &hardware(1)).unwrap()))
    }

    /// 8,192 for each processor since Windows 7, as the documents have it; callback objects are the kernel's own.
    #[test]
    fn as_many_profiles_are_started_as_the_version_allows() {
        const LIMIT: usize = 8192;
        static LISTS: Profiles<{ LIMIT + 4 }, 2> = Profiles::with_rules(RULES);
        static CALLBACK: fn(&dyn InterruptFrame, KProfileSource) = |_, _| {};
        let callback = ProfileObject::callback(RULES, KProfileSource::TIME, &CALLBACK).unwrap();
        // All but the last two at once: one at a time takes time with the square of their number.
        let objects = core::iter::repeat_with(basic).take(LIMIT - 2);
        let objects = core::iter::once(&*Box::leak(Box::new(callback))).chain(objects);
        LISTS.snapshot(0).with_mut(|lists| {
            // SAFETY: nothing else has the lists yet.
            unsafe { &mut *lists }.fill_with(objects.map(entry_of));
        });
        let start = |object, processors| LISTS.try_start(object, &mut hardware(processors));
        assert_eq!([basic(), basic()].map(|object| start(object, 1)), [Ok(()); 2]);
        let last = basic();
        let error = start(last, 1).unwrap_err();
        assert_eq!(error, ProfileError::AtLimit);
        assert_eq!(error.status().map(NtStatus::value), Some(0xC000_00D3));
        assert_eq!(LISTS.started(), 1 + LIMIT);
        assert_eq!(start(last, 2), Ok(()));
    }
}
