//! Starting and stopping without ever waiting: task context, no feature, no symbol of the embedder's.

use pmu_core::ProcessorNumber;

use super::srcu::ReaderCounters;
use super::write::{WriteGuard, WriteLock};
use super::{ProfileError, Profiles};
use crate::{ProfileHardware, ProfileObject};

impl<const N: usize, const P: usize> Profiles<N, P> {
    /// Starts a profile: starts the source on each of its active processors on which it does not run yet,
    /// then puts the object at its list's end. Other objects and other processors are not touched.
    ///
    /// # Context
    /// Task. Never waits.
    ///
    /// # Errors
    /// See [`ProfileError`]; [`Busy`](ProfileError::Busy) while another task starts or stops, or while an
    /// interrupt that began before the last change is dispatched. The object is started on all of its active
    /// processors or on none: nothing is changed, except that a counter that
    /// [faulted](pmu_core::CounterError::Faulted) stays so.
    pub fn try_start<H: ProfileHardware>(
        &self,
        object: &'static ProfileObject<'static>,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        // SAFETY: the object and what it borrows live forever.
        unsafe { self.try_start_borrowed(object, hardware) }
    }

    /// [Starts](Self::try_start) a profile object that does not live forever.
    ///
    /// # Context
    /// Task. Never waits.
    ///
    /// # Errors
    /// As [`try_start`](Self::try_start).
    ///
    /// # Safety
    /// Unless this fails, until the object has been stopped on these lists, wherever they are moved:
    /// - the object is neither moved nor dropped, not even by unwinding;
    /// - its buffer, or its callback, is not freed.
    ///
    /// It has been stopped once [`Stopping::is_over`] of [`try_stop`](Self::try_stop) has returned `true`, or
    /// `stop` has returned anything but [`WrongContext`](ProfileError::WrongContext) or
    /// [`OnAnotherList`](ProfileError::OnAnotherList).
    pub unsafe fn try_start_borrowed<H: ProfileHardware>(
        &self,
        object: &ProfileObject<'_>,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        let guard = self.try_write(hardware)?;
        // SAFETY: the caller's promise.
        unsafe { guard.start(object, Ok(()), hardware) }
    }

    /// Stops a profile: takes the object off its list, and stops the source on each processor where no other
    /// object has it. The token says when a grace period is over, after which no processor can be reading the
    /// object. Dropping the token leaves the object unlinked; until the grace period is over, it cannot be started.
    ///
    /// ```
    /// # use pmu_kprofile::{ProfileError, ProfileHardware, ProfileObject, Profiles};
    /// fn end<H: ProfileHardware>(
    ///     lists: &Profiles<64, 4>,
    ///     object: &ProfileObject<'_>,
    ///     hardware: &mut H,
    /// ) -> Result<(), ProfileError> {
    ///     let stopping = lists.try_stop(object, hardware)?;
    ///     while !stopping.is_over() {
    ///         // … let other tasks run …
    ///     }
    ///     stopping.hardware()
    /// }
    /// ```
    ///
    /// # Context
    /// Task. Never waits.
    ///
    /// # Errors
    /// See [`ProfileError`]; the object is then on its list as before.
    pub fn try_stop<'p, H: ProfileHardware>(
        &'p self,
        object: &'p ProfileObject<'_>,
        hardware: &mut H,
    ) -> Result<Stopping<'p, N, P>, ProfileError> {
        let guard = self.try_write(hardware)?;
        Ok(self.stopping(&guard, guard.stop(object, hardware)?))
    }

    /// The token of the guard's change, which unlinked an object.
    pub(super) fn stopping(
        &self,
        guard: &WriteGuard<'_, N, P>,
        outcome: Result<(), ProfileError>,
    ) -> Stopping<'_, N, P> {
        Stopping { profiles: self, change: guard.change(), outcome }
    }

    /// Starts what the started profiles want and do not have: on processors that became active, and where
    /// a source could not be started before. Call it when a processor came up with its session
    /// initialized, and when one went down.
    ///
    /// A processor that this call, or any other that starts or stops, sees inactive is known to run
    /// nothing any more. One that went down and came back between two calls is taken to run what it ran:
    /// say so with [`try_restart_processor`](Self::try_restart_processor).
    ///
    /// # Context
    /// Task. Never waits.
    ///
    /// # Errors
    /// See [`ProfileError`]: what failed first. Each source on each processor stands for itself: all
    /// others were started, and what failed is tried again by the next call.
    /// [`ProfileObject::runs_on`] tells what an object has.
    pub fn try_update_processors<H: ProfileHardware>(
        &self,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        self.try_write(hardware)?.update_processors(hardware)
    }

    /// Starts again what the started profiles want on a processor that lost its state: it went down and
    /// came back, or its session was shut down and is another one now. Of a processor that is not active,
    /// only takes note.
    ///
    /// # Context
    /// Task; never waits. On the processor nothing runs that a profile started.
    ///
    /// # Errors
    /// As [`try_update_processors`](Self::try_update_processors), of this processor.
    pub fn try_restart_processor<H: ProfileHardware>(
        &self,
        processor: ProcessorNumber,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        self.try_write(hardware)?.restart_processor(processor, hardware)
    }

    /// Takes the write guard, if it is free and the last change's grace period is over.
    pub(super) fn try_write<H: ProfileHardware>(
        &self,
        hardware: &H,
    ) -> Result<WriteGuard<'_, N, P>, ProfileError> {
        self.check_context(hardware)?;
        let mut lock = WriteLock::try_take(self).ok_or(ProfileError::Busy)?;
        if lock.poll() { Ok(WriteGuard::new(lock, hardware)) } else { Err(ProfileError::Busy) }
    }

    /// Refuses interrupts, which could wait for the task that they interrupted, and callbacks, which would wait
    /// for themselves.
    pub(super) fn check_context<H: ProfileHardware>(
        &self,
        hardware: &H,
    ) -> Result<(), ProfileError> {
        let counters = self.readers.get(hardware.this_processor().index());
        if hardware.in_interrupt() || counters.is_some_and(ReaderCounters::is_read_locked) {
            return Err(ProfileError::WrongContext);
        }
        Ok(())
    }
}

/// An object that was unlinked: says when its grace period is over.
///
/// Dropping it changes nothing: the object stays unlinked.
#[derive(Debug)]
#[must_use = "the object may still be read until the grace period is over"]
pub struct Stopping<'p, const N: usize, const P: usize> {
    profiles: &'p Profiles<N, P>,
    /// The change that took the object off its list.
    change: u64,
    outcome: Result<(), ProfileError>,
}

impl<const N: usize, const P: usize> Stopping<'_, N, P> {
    /// Returns whether the grace period is over: no processor reads the object any more, and it and its buffer
    /// are the caller's alone.
    ///
    /// # Context
    /// Any. Never waits; `false` also while another task starts or stops.
    pub fn is_over(&self) -> bool {
        let Some(mut lock) = WriteLock::try_take(self.profiles) else { return false };
        // A later change waited for this one's grace period.
        lock.change() != self.change || lock.poll()
    }

    /// Returns whether the source was stopped wherever it was to be.
    ///
    /// # Errors
    /// [`Hardware`](ProfileError::Hardware): the first processor's on which it may still run.
    pub fn hardware(&self) -> Result<(), ProfileError> {
        self.outcome
    }
}
