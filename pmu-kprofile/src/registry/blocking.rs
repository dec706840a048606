//! The operations that wait: the feature `critical-section`. Each attempt at the write lock is made inside a critical
//! section, so a task that took the lock is not preempted before it knows that it has the lock. The embedder's
//! implementation of the critical section decides the order of waiting tasks.

use pmu_core::frame::{ProcessId, ProcessorNumber};

use crate::hardware::profile_hardware::ProfileHardware;
use crate::object::profile_object::ProfileObject;
use crate::registry::control::ProfileError;
use crate::registry::profiles::Profiles;
use crate::registry::write::{WriteGuard, WriteLock};
use crate::sync::{exclusively, spin_loop};

impl<const N: usize, const P: usize> Profiles<N, P> {
    /// Starts a profile on each active processor of its affinity. While another task starts or stops a profile, the
    /// call waits. Apart from the waiting, the call does the same as [`try_start`](Self::try_start).
    ///
    /// # Context
    /// Task. Waits.
    ///
    /// # Errors
    /// The errors of [`try_start`](Self::try_start), except [`Busy`](ProfileError::Busy).
    pub fn start<H: ProfileHardware>(
        &self,
        object: &'static ProfileObject<'static>,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        // SAFETY: the object and what it borrows live forever.
        unsafe { self.start_borrowed(object, hardware) }
    }

    /// Starts a profile object that is not `'static`, in the same way as [`start`](Self::start).
    ///
    /// Safe alternatives are [`scope`](Self::scope) and [`start_owned`](Self::start_owned).
    ///
    /// # Context
    /// Task. Waits.
    ///
    /// # Errors
    /// The errors of [`start`](Self::start).
    ///
    /// # Safety
    /// See [`try_start_borrowed`](Self::try_start_borrowed).
    ///
    /// # Examples
    /// ```
    /// # use pmu_kprofile::{ProfileError, ProfileHardware, ProfileObject, Profiles};
    /// fn during<H: ProfileHardware>(
    ///     lists: &Profiles<64, 4>,
    ///     object: &ProfileObject<'_>,
    ///     hardware: &mut H,
    ///     workload: fn(),
    /// ) -> Result<(), ProfileError> {
    ///     // SAFETY: (1) the object is borrowed until this returns; (2) it is stopped before: a task is not in an
    ///     // interrupt, and the object is on no other lists; (3) this kernel does not unwind.
    ///     unsafe { lists.start_borrowed(object, hardware) }?;
    ///     workload();
    ///     lists.stop(object, hardware)
    /// }
    /// ```
    ///
    /// Wrong example: `begin` returns without stopping the object, so the object is dropped while it is still started.
    ///
    /// ```
    /// # use pmu_kprofile::{ProfileError, ProfileHardware, ProfileObject, Profiles};
    /// fn begin<H: ProfileHardware>(
    ///     lists: &Profiles<64, 4>,
    ///     object: ProfileObject<'static>,
    ///     hardware: &mut H,
    /// ) -> Result<(), ProfileError> {
    ///     // SAFETY: not given. The object is dropped at the end of this function.
    ///     unsafe { lists.start_borrowed(&object, hardware) }
    /// }
    /// ```
    pub unsafe fn start_borrowed<H: ProfileHardware>(
        &self,
        object: &ProfileObject<'_>,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        let guard = self.write(hardware)?;
        // SAFETY: the caller's promise.
        unsafe { guard.start(object, Ok(()), hardware) }
    }

    /// Stops a profile, and waits until no processor reads the object any more.
    ///
    /// The call removes the object from the list of started objects. If no other object uses the source on a processor,
    /// the call stops the source there. After the call, this crate holds no reference to the object or its buffer.
    ///
    /// # Context
    /// Task. The call first waits until no other task is starting or stopping a profile. After the removal from the
    /// list, the call waits until every interrupt dispatch that began before the removal has ended.
    ///
    /// # Errors
    /// See [`ProfileError`]. The object is stopped even if the error is [`Hardware`](ProfileError::Hardware).
    ///
    /// # Examples
    /// ```
    /// use pmu_kprofile::{ProfileError, ProfileHardware, ProfileObject, Profiles};
    ///
    /// /// Profiles a workload, and prints where the interrupts came.
    /// fn profile<H: ProfileHardware>(
    ///     lists: &Profiles<64, 4>,
    ///     object: &'static ProfileObject<'static>,
    ///     hardware: &mut H,
    ///     workload: fn(),
    /// ) -> Result<(), ProfileError> {
    ///     lists.start(object, hardware)?;
    ///     workload();
    ///     lists.stop(object, hardware)?;
    ///     for (addresses, count) in object.hits() {
    ///         println!("{addresses:#x?}: {count}");
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn stop<H: ProfileHardware>(
        &self,
        object: &ProfileObject<'_>,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        let mut guard = self.write(hardware)?;
        let outcome = guard.stop(object, hardware)?;
        guard.synchronize();
        outcome
    }

    /// Stops every started profile of a process, for instance when the process is about to end.
    ///
    /// # Context
    /// Task. Waits for other tasks that start or stop profiles, and for interrupt dispatches: see [`stop`](Self::stop).
    ///
    /// # Errors
    /// - [`Hardware`](ProfileError::Hardware): stopping a source failed. All profiles of the process are stopped, even
    ///   after a failure. If several stops fail, the call returns the first error.
    /// - [`WrongContext`](ProfileError::WrongContext): the call came from an interrupt or a callback. No profile was
    ///   stopped.
    ///
    /// # Examples
    /// ```
    /// use pmu_core::frame::ProcessId;
    /// use pmu_kprofile::{ProfileHardware, Profiles};
    ///
    /// /// On the way out of a process, before its memory is freed.
    /// fn process_exits<H: ProfileHardware>(lists: &Profiles<64, 4>, process: ProcessId, hardware: &mut H) {
    ///     if let Err(error) = lists.stop_process(process, hardware) {
    ///         println!("a source may still run: {error}");
    ///     }
    /// }
    /// ```
    pub fn stop_process<H: ProfileHardware>(
        &self,
        process: ProcessId,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        let mut guard = self.write(hardware)?;
        let mut outcome = Ok(());
        while let Some(stopped) = guard.stop_one_of(process, hardware) {
            // The next change writes the snapshot that readers may still have from before this one.
            guard.synchronize();
            outcome = outcome.and(stopped);
        }
        outcome
    }

    /// Starts the sources of started profiles on processors that became active. While another task starts or stops a
    /// profile, the call waits.
    ///
    /// Apart from the waiting, the call does the same as [`try_update_processors`](Self::try_update_processors).
    ///
    /// # Context
    /// Task. Waits.
    ///
    /// # Errors
    /// The errors of [`try_update_processors`](Self::try_update_processors), except [`Busy`](ProfileError::Busy).
    pub fn update_processors<H: ProfileHardware>(
        &self,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        self.write(hardware)?.update_processors(hardware)
    }

    /// Starts the sources of started profiles again on a processor that lost its state. While another task starts or
    /// stops a profile, the call waits.
    ///
    /// Apart from the waiting, the call does the same as [`try_restart_processor`](Self::try_restart_processor).
    ///
    /// # Context
    /// Task. Waits. Call this function only while no profile source is running on the processor.
    ///
    /// # Errors
    /// The errors of [`update_processors`](Self::update_processors). The call starts sources only on `processor`, so no
    /// error names another processor.
    pub fn restart_processor<H: ProfileHardware>(
        &self,
        processor: ProcessorNumber,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        self.write(hardware)?.restart_processor(processor, hardware)
    }

    /// Starts the given objects, runs `act`, and then stops the objects, even if `act` unwinds.
    ///
    /// ```
    /// use std::sync::atomic::AtomicU32;
    /// use pmu_kprofile::{BasicProfile, ProfileError, ProfileHardware, ProfileObject, Profiles};
    ///
    /// fn hits_of<H: ProfileHardware>(
    ///     lists: &Profiles<64, 4>,
    ///     request: BasicProfile<'_>,
    ///     hardware: &mut H,
    ///     workload: impl FnOnce(),
    /// ) -> Result<u32, ProfileError> {
    ///     let buffer: Vec<AtomicU32> = (0..64).map(|_| AtomicU32::new(0)).collect();
    ///     let request = BasicProfile { buffer: &buffer, ..request };
    ///     let object = ProfileObject::basic(lists.rules(), request, hardware).unwrap();
    ///     lists.scope(&[&object], hardware, |_| workload())?;
    ///     Ok(object.hits().map(|(_, count)| count).sum())
    /// }
    /// ```
    ///
    /// # Context
    /// Task. Waits for other tasks that start or stop profiles, and for interrupt dispatches: see [`stop`](Self::stop).
    ///
    /// # Errors
    /// See [`ProfileError`].
    /// - If a start fails, `act` is not run, and the objects that were started before are stopped again.
    /// - If stopping a source fails, all the objects are still stopped, but the value that `act` returned is lost.
    /// - If the call comes from an interrupt or a callback, the error is [`WrongContext`](ProfileError::WrongContext),
    ///   and the function does not wait.
    pub fn scope<H: ProfileHardware, R>(
        &self,
        objects: &[&ProfileObject<'_>],
        hardware: &mut H,
        act: impl FnOnce(&mut H) -> R,
    ) -> Result<R, ProfileError> {
        // First: what `Scope` does on drop waits.
        self.check_context(hardware)?;
        let mut scope = Scope { profiles: self, started: &[], hardware };
        for (count, object) in objects.iter().enumerate() {
            // SAFETY: (1) the object, and everything that it borrows, is borrowed until this function returns or
            // unwinds; (2) `scope` stops the object before that, whatever the hardware answers.
            unsafe { self.start_borrowed(object, scope.hardware) }?;
            // After each start: if the next one fails or unwinds, the scope stops what is started by then.
            scope.started = objects.get(..=count).unwrap_or(objects);
        }
        let result = act(scope.hardware);
        scope.end().map(|()| result)
    }

    /// Waits for the present holder of the write guard and for the last change's grace period, and takes the guard.
    pub(super) fn write<H: ProfileHardware>(
        &self,
        hardware: &H,
    ) -> Result<WriteGuard<'_, N, P>, ProfileError> {
        self.check_context(hardware)?;
        Ok(self.wait_for_write(hardware))
    }

    /// Takes the write guard in any context.
    fn wait_for_write<H: ProfileHardware>(&self, hardware: &H) -> WriteGuard<'_, N, P> {
        WriteGuard::new(self.wait_for_lock(), hardware)
    }

    /// Waits for the present holder of the write lock and for the last change's grace period, and takes the lock.
    fn wait_for_lock(&self) -> WriteLock<'_, N, P> {
        let mut lock = loop {
            match exclusively(|| WriteLock::try_take(self)) {
                Some(lock) => break lock,
                None => spin_loop(),
            }
        };
        lock.synchronize();
        lock
    }
}

/// The objects that a [`scope`](Profiles::scope) started and must stop.
struct Scope<'s, H: ProfileHardware, const N: usize, const P: usize> {
    profiles: &'s Profiles<N, P>,
    started: &'s [&'s ProfileObject<'s>],
    hardware: &'s mut H,
}

impl<H: ProfileHardware, const N: usize, const P: usize> Scope<'_, H, N, P> {
    fn end(&mut self) -> Result<(), ProfileError> {
        let mut outcome = Ok(());
        while let Some((object, rest)) = self.started.split_last() {
            // The context is not checked: the objects are about to end, so they must be stopped in any case.
            let mut guard = self.profiles.wait_for_write(self.hardware);
            // `Err`: the object was stopped within the scope, or the hardware unwound during its stop.
            outcome = outcome.and(guard.stop(object, self.hardware).unwrap_or(Ok(())));
            guard.synchronize();
            self.started = rest;
        }
        outcome
    }
}

impl<H: ProfileHardware, const N: usize, const P: usize> Drop for Scope<'_, H, N, P> {
    fn drop(&mut self) {
        // After a normal return nothing is left to stop; while unwinding, no caller takes the outcome. The hardware may
        // have unwound before the last grace period was over.
        let _ = self.end();
        drop(self.profiles.wait_for_lock());
    }
}
