//! The lists as a guard's holder reads them, with the proof that a started object lives.

use core::sync::atomic::Ordering;

use crate::index::groups::{Group, Source};
use crate::index::lookup::Index;
use crate::object::basic::Basic;
use crate::object::object_ptr::ObjectPtr;
use crate::object::profile_object::ProfileObject;
use crate::registry::profiles::Profiles;
use crate::registry::srcu::ReadLock;
use crate::sync::{ConstPtr, UnsafeCell};

impl<const N: usize, const P: usize> Profiles<N, P> {
    /// Returns one of the two snapshots.
    #[inline]
    pub(super) fn snapshot(&self, number: usize) -> &UnsafeCell<Index<N>> {
        let [even, _] = &self.snapshots;
        &self.snapshots.get(number & 1).unwrap_or(even).0
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
