//! Starting and stopping without waiting: no feature and no function of the embedder's is needed.

use pmu_core::frame::ProcessorNumber;
use pmu_core::profile::{InterfaceError, NtStatus};
use pmu_core::windows::Rules;

use crate::affinity::{mask_in, mask_of, processors_in};
use crate::hardware::profile_hardware::ProfileHardware;
use crate::object::profile_object::ProfileObject;
use crate::registry::profiles::Profiles;
use crate::registry::srcu::ReaderCounters;
use crate::registry::write::{WriteGuard, WriteLock};

/// Number of times that the context must look like a dispatch's before the call is refused. A dispatch stays on its
/// processor. A task that is not bound may be moved after it read its processor's number, and a dispatch may begin on
/// the processor that it left.
const TRIES: usize = if cfg!(all(test, loom)) { 1 } else { 4 };

impl<const N: usize, const P: usize> Profiles<N, P> {
    /// Starts a profile on each active processor of its affinity, without waiting.
    ///
    /// The call starts the source on each of these processors on which the source does not run yet. The call then
    /// appends the object to the list of the object's process, or to the global list if the object profiles all
    /// execution. The call changes no other object, and no source on another processor.
    ///
    /// # Context
    /// Task. Never waits.
    ///
    /// # Errors
    /// See [`ProfileError`].
    /// - [`Busy`](ProfileError::Busy): another task is starting or stopping a profile, or the dispatch of an interrupt
    ///   that began before the last start or stop has not ended yet.
    /// - After any error, nothing is changed, with two exceptions. A counter that
    ///   [faulted](pmu_core::error::CounterError::StateUnknown) during the call stays faulted. If a failed start could
    ///   not be undone, the source may still be running on the processor that [`Hardware`](ProfileError::Hardware)
    ///   names.
    ///
    /// # Examples
    /// ```
    /// use pmu_kprofile::{ProfileError, ProfileHardware, ProfileObject, Profiles};
    /// # fn sleep_a_little() {}
    ///
    /// fn start<H: ProfileHardware>(
    ///     lists: &Profiles<64, 4>,
    ///     object: &'static ProfileObject<'static>,
    ///     hardware: &mut H,
    /// ) -> Result<(), ProfileError> {
    ///     loop {
    ///         match lists.try_start(object, hardware) {
    ///             Err(ProfileError::Busy) => sleep_a_little(),
    ///             outcome => return outcome,
    ///         }
    ///     }
    /// }
    /// ```
    pub fn try_start<H: ProfileHardware>(
        &self,
        object: &'static ProfileObject<'static>,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        // SAFETY: the object and what it borrows live forever.
        unsafe { self.try_start_borrowed(object, hardware) }
    }

    /// Starts a profile object that is not `'static`, in the same way as [`try_start`](Self::try_start).
    ///
    /// # Context
    /// Task. Never waits.
    ///
    /// # Errors
    /// The errors of [`try_start`](Self::try_start).
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
    ///     // SAFETY: the object is borrowed until this returns, and is stopped before; this kernel does not unwind.
    ///     unsafe { lists.try_start_borrowed(object, hardware) }?;
    ///     workload();
    ///     // This does not return while the object is listed, whatever the error is.
    ///     let stopping = loop {
    ///         match lists.try_stop(object, hardware) {
    ///             Ok(stopping) => break stopping,
    ///             Err(ProfileError::NotStarted) => return Ok(()), // another task stopped it
    ///             Err(_) => {} // … let other tasks run …
    ///         }
    ///     };
    ///     while !stopping.is_over() {}
    ///     stopping.hardware()
    /// }
    /// ```
    ///
    /// Wrong example: `during` returns early if `workload` or `try_stop` fails, and drops the object while it is still
    /// started.
    ///
    /// ```
    /// # use pmu_kprofile::{ProfileError, ProfileHardware, ProfileObject, Profiles};
    /// fn during<H: ProfileHardware>(
    ///     lists: &Profiles<64, 4>,
    ///     object: ProfileObject<'static>,
    ///     hardware: &mut H,
    ///     workload: fn() -> Result<(), ProfileError>,
    /// ) -> Result<(), ProfileError> {
    ///     // SAFETY: not given. The object is dropped where the workload fails.
    ///     unsafe { lists.try_start_borrowed(&object, hardware) }?;
    ///     workload()?;
    ///     while !lists.try_stop(&object, hardware)?.is_over() {}
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Safety
    /// From a successful start until the object is stopped on this `Profiles`, the caller ensures the following, even
    /// if the `Profiles` is moved:
    /// - the object is not moved and not dropped, even if a panic unwinds;
    /// - the buffer or the callback of the object is not freed.
    ///
    /// The object is stopped after any of these results:
    /// - [`try_stop`](Self::try_stop) returned a [`Stopping`] whose [`is_over`](Stopping::is_over) returned `true`;
    /// - `try_stop` returned [`NotStarted`](ProfileError::NotStarted);
    /// - `stop` returned, and the result was neither [`WrongContext`](ProfileError::WrongContext) nor
    ///   [`OnAnotherList`](ProfileError::OnAnotherList).
    pub unsafe fn try_start_borrowed<H: ProfileHardware>(
        &self,
        object: &ProfileObject<'_>,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        // The guard stays where it is: it holds the set of all processors, which is long to move.
        match &self.try_write(hardware) {
            // SAFETY: the caller's promise.
            Ok(guard) => unsafe { guard.start(object, Ok(()), hardware) },
            Err(error) => Err(*error),
        }
    }

    /// Stops a profile, and returns a token that says when no processor reads the object any more.
    ///
    /// The call removes the object from the list of started objects. If no other object uses the source on a processor,
    /// the call stops the source there. The token says when the grace period is over: every interrupt dispatch that
    /// began before the removal has then ended. Dropping the token does not put the object back on the list. The object
    /// cannot be started again before the grace period is over.
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
    /// See [`ProfileError`]. If the call fails, an object that was started stays started.
    pub fn try_stop<'p, H: ProfileHardware>(
        &'p self,
        object: &'p ProfileObject<'_>,
        hardware: &mut H,
    ) -> Result<Stopping<'p, N, P>, ProfileError> {
        match &self.try_write(hardware) {
            Ok(guard) => Ok(self.stopping(guard, guard.stop(object, hardware)?)),
            Err(error) => Err(*error),
        }
    }

    /// Returns the token of the guard's change, which unlinked an object.
    pub(super) fn stopping(
        &self,
        guard: &WriteGuard<'_, N, P>,
        outcome: Result<(), ProfileError>,
    ) -> Stopping<'_, N, P> {
        Stopping { profiles: self, change: guard.change(), outcome }
    }

    /// Starts the sources of started profiles on processors that became active, and retries the starts that failed
    /// earlier.
    ///
    /// Call this function after a processor came up and took its session, and after a processor went down.
    ///
    /// The call looks up which processors are inactive, and records that no source runs on these processors. Each call
    /// that starts or stops a profile also does this. If a processor goes down and comes back between two of these
    /// calls, this crate does not notice, and assumes that the processor's sources are still running. In this case,
    /// call [`try_restart_processor`](Self::try_restart_processor).
    ///
    /// # Context
    /// Task. Never waits.
    ///
    /// # Errors
    /// See [`ProfileError`]. If several starts fail, the call returns the first error. After a failure, the call still
    /// starts the other sources. The next call retries the starts that failed. [`ProfileObject::runs_on`] tells on
    /// which processors an object's source runs.
    ///
    /// # Examples
    /// ```
    /// use pmu_core::profile::InterfaceError;
    /// use pmu_kprofile::{ProfileError, ProfileHardware, Profiles};
    ///
    /// /// After a processor came up, and took its session.
    /// fn processor_up<H: ProfileHardware>(lists: &Profiles<64, 4>, hardware: &mut H) {
    ///     match lists.try_update_processors(hardware) {
    ///         Ok(()) => {}
    ///         Err(ProfileError::Hardware { processor, error: InterfaceError::NoAnswer(_) }) => {
    ///             println!("{processor} does not answer yet: the next call tries again");
    ///         }
    ///         Err(error) => println!("a profile lacks a processor: {error}"),
    ///     }
    /// }
    /// ```
    pub fn try_update_processors<H: ProfileHardware>(
        &self,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        self.try_write(hardware)?.update_processors(hardware)
    }

    /// Starts the sources of started profiles on one processor, as
    /// [`try_update_processors`](Self::try_update_processors) does on all: where they do not run yet. Call this after a
    /// source could not start on the processor.
    ///
    /// # Context
    /// Task. Never waits.
    ///
    /// # Errors
    /// The errors of [`try_update_processors`](Self::try_update_processors). No error names another processor.
    pub fn try_update_processor<H: ProfileHardware>(
        &self,
        processor: ProcessorNumber,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        self.try_write(hardware)?.start_missing(Some(processor), hardware)
    }

    /// Starts the sources of started profiles again on a processor that lost its state.
    ///
    /// Call this function after a processor went down and came back, or after its session was shut down and replaced.
    /// If the processor is inactive, the call only records that no source runs on the processor.
    ///
    /// # Context
    /// Task. Never waits. Call this function only while no profile source is running on the processor.
    ///
    /// # Errors
    /// The errors of [`try_update_processors`](Self::try_update_processors). The call starts sources only on
    /// `processor`, so no error names another processor.
    ///
    /// # Examples
    /// ```
    /// use pmu_core::frame::ProcessorNumber;
    /// use pmu_kprofile::{ProfileError, ProfileHardware, Profiles};
    ///
    /// /// After a processor was offline, and its session was taken anew, while no call on the lists noticed.
    /// fn back_online<H: ProfileHardware>(
    ///     lists: &Profiles<64, 4>,
    ///     processor: ProcessorNumber,
    ///     hardware: &mut H,
    /// ) -> Result<(), ProfileError> {
    ///     lists.try_restart_processor(processor, hardware)
    /// }
    /// ```
    pub fn try_restart_processor<H: ProfileHardware>(
        &self,
        processor: ProcessorNumber,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        match &self.try_write(hardware) {
            Ok(guard) => guard.restart_processor(processor, hardware),
            Err(error) => Err(*error),
        }
    }

    /// Takes the write guard, if no other task has it and the last change's grace period is over.
    #[inline(never)] // 16 bytes of the glue, at `opt-level` 3.
    pub(super) fn try_write<H: ProfileHardware>(
        &self,
        hardware: &H,
    ) -> Result<WriteGuard<'_, N, P>, ProfileError> {
        self.check_context(hardware)?;
        let mut lock = WriteLock::try_take(self).ok_or(ProfileError::Busy)?;
        if lock.poll() { Ok(WriteGuard::new(lock, hardware)) } else { Err(ProfileError::Busy) }
    }

    /// Refuses interrupts, which could wait for the task that they interrupted, and callbacks, which would wait for
    /// themselves.
    pub(super) fn check_context<H: ProfileHardware>(
        &self,
        hardware: &H,
    ) -> Result<(), ProfileError> {
        if hardware.in_interrupt() || (0..TRIES).all(|_| self.is_dispatching_on_this(hardware)) {
            return Err(ProfileError::WrongContext);
        }
        Ok(())
    }

    /// Returns whether a dispatch is under way on the processor that executes this, and seems to be the caller's.
    #[inline(never)] // 288 bytes of the Hermit-like glue, at `opt-level` 3.
    fn is_dispatching_on_this<H: ProfileHardware>(&self, hardware: &H) -> bool {
        let here = hardware.this_processor();
        let counters = self.readers.get(here.index());
        // Asked twice: a task that was moved in between has looked at the dispatch of a processor that it left.
        counters.is_some_and(ReaderCounters::is_read_locked) && hardware.this_processor() == here
    }
}

/// Token that says when no processor reads a stopped object any more. See [`Profiles::try_stop`].
///
/// Dropping the token does not start the object again.
#[derive(Debug)]
#[must_use = "the object may still be read until the grace period is over"]
pub struct Stopping<'p, const N: usize, const P: usize> {
    profiles: &'p Profiles<N, P>,
    /// The change that took the object off its list.
    change: u64,
    outcome: Result<(), ProfileError>,
}

impl<const N: usize, const P: usize> Stopping<'_, N, P> {
    /// Returns whether the grace period of the stopped object is over: no processor reads the object any more.
    ///
    /// Once the result is `true`, this crate holds no reference to the object or to the object's buffer.
    ///
    /// # Context
    /// Any. Never waits: while another task starts or stops a profile, the function returns `false`.
    pub fn is_over(&self) -> bool {
        let Some(mut lock) = WriteLock::try_take(self.profiles) else { return false };
        // A later change waited for this one's grace period.
        lock.change() != self.change || lock.poll()
    }

    /// Returns the result of stopping the object's source in the hardware. [`Profiles::try_stop`] stops the source only
    /// on processors where no other object uses the source.
    ///
    /// # Errors
    /// [`Hardware`](ProfileError::Hardware) names the first processor on which the source may still be running.
    pub fn hardware(&self) -> Result<(), ProfileError> {
        self.outcome
    }
}

impl<'p, const N: usize, const P: usize> WriteGuard<'p, N, P> {
    /// Starts the sources that started objects lack: see
    /// [`Profiles::try_update_processors`](crate::Profiles::try_update_processors).
    pub(super) fn update_processors<H: ProfileHardware>(
        &self,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        self.start_missing(None, hardware)
    }

    /// Restarts the sources of a processor: see
    /// [`Profiles::try_restart_processor`](crate::Profiles::try_restart_processor).
    pub(super) fn restart_processor<H: ProfileHardware>(
        &self,
        processor: ProcessorNumber,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        self.keep_running(processor.group.into(), !mask_of(processor));
        self.start_missing(Some(processor), hardware)
    }

    /// Starts, on one active processor or on all of them, each source that an object wants and lacks there. A source
    /// that several objects lack is tried once.
    pub(super) fn start_missing<H: ProfileHardware>(
        &self,
        one: Option<ProcessorNumber>,
        hardware: &mut H,
    ) -> Result<(), ProfileError> {
        let mut outcome = Ok(());
        for (place, object) in self.objects().enumerate() {
            let source = object.source();
            // A processor that an earlier object of this source wants was already tried for that object.
            let earlier = || self.objects().take(place).filter(|other| other.source() == source);
            let on =
                |group| self.active.mask(group) & one.map_or(u64::MAX, |one| mask_in(one, group));
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
}

/// Reason why a profile was not started, or was not stopped, on at least one of its processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum ProfileError {
    /// The object is already started.
    #[error("the profile is already started")]
    AlreadyStarted,
    /// The object is not started.
    #[error("the profile is not started")]
    NotStarted,
    /// The object is started on another [`Profiles`](crate::Profiles).
    #[error("the profile is started on other lists")]
    OnAnotherList,
    /// The rules of the object (Windows version and pointer width) differ from the rules of the
    /// [`Profiles`](crate::Profiles).
    #[error("the profile was created for {object}, and the lists are for {lists}")]
    OtherRules {
        /// The rules of the object.
        object: Rules,
        /// The rules of the [`Profiles`](crate::Profiles).
        lists: Rules,
    },
    /// No further profile can be started. The [`Profiles`](crate::Profiles) already has `N` started objects, or the
    /// limit of the Windows version is reached.
    #[error("as many profiles are started as there can be")]
    AtLimit,
    /// The kernel could not look up the handle, or could not prepare the buffer. The value is the status of this
    /// failure: see [`Profiles::try_start_service`](crate::Profiles::try_start_service).
    #[error("the caller is refused: {0:?}")]
    Caller(NtStatus),
    /// Nothing was changed: retry later. Another task may be starting or stopping a profile. Or a dispatch is still
    /// under way that began before the last start or stop.
    #[error("another task starts or stops profiles, or an interrupt is dispatched")]
    Busy,
    /// The call came from an interrupt or a callback; only task context may start and stop profiles.
    #[error("only task context may start and stop profiles")]
    WrongContext,
    /// None of the object's processors is active.
    #[error("none of the profile's processors is active")]
    NoProcessor,
    /// This processor is active and is to be profiled, but its index is too high: it must be below the parameter `P` of
    /// the [`Profiles`](crate::Profiles). Nothing is started on the processor, because its interrupts would not be
    /// dispatched.
    #[error("the lists are for fewer processors than {0}")]
    ProcessorBeyondLists(ProcessorNumber),
    /// Starting or stopping a source failed on a processor.
    ///
    /// If starting an object fails, the start is undone. If undoing the start also fails, this error says where the
    /// undoing failed. If a stop or an update of processors fails, the call continues with the other sources and
    /// processors, and returns the first failure.
    #[error("processor {processor}: {error}")]
    Hardware {
        /// The processor on which the operation failed.
        processor: ProcessorNumber,
        /// The reason of the failure.
        error: InterfaceError,
    },
}

impl ProfileError {
    /// Returns the status with which Windows reports this error; `None` if Windows has no status for it.
    pub const fn status(&self) -> Option<NtStatus> {
        match self {
            Self::AlreadyStarted | Self::OnAnotherList => Some(NtStatus::PROFILING_NOT_STOPPED),
            Self::NotStarted => Some(NtStatus::PROFILING_NOT_STARTED),
            Self::AtLimit => Some(NtStatus::PROFILING_AT_LIMIT),
            Self::Caller(status) => Some(*status),
            Self::OtherRules { .. }
            | Self::WrongContext
            | Self::Busy
            | Self::NoProcessor
            | Self::ProcessorBeyondLists(_) => None,
            Self::Hardware { error, .. } => error.status(),
        }
    }
}
