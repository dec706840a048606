//! The write lock: the exclusive right to change the lists, and the grace period of the last change.

use core::sync::atomic::Ordering;

use crate::object::state::State;
use crate::registry::guard::Lists;
use crate::registry::profiles::Profiles;
use crate::registry::writer_state::WriterState;

/// The write lock: the exclusive right to write the lists, released on drop.
pub(super) struct WriteLock<'p, const N: usize, const P: usize>(
    /// The lists.
    pub(super) &'p Profiles<N, P>,
);

impl<'p, const N: usize, const P: usize> WriteLock<'p, N, P> {
    /// Takes the lock, if no other task holds it.
    #[inline(never)]
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
    #[inline(never)]
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
