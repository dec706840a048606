//! Objects that a handle keeps alive: `Arc`, or a handle of the embedder's.

use core::mem::ManuallyDrop;
use core::ops::Deref;

use pmu_core::profile::NtStatus;

use crate::hardware::profile_hardware::ProfileHardware;
use crate::object::profile_object::ProfileObject;
use crate::registry::control::{ProfileError, Stopping};
use crate::registry::profiles::Profiles;

/// A handle that keeps a profile object alive at a fixed address, such as an `Arc`.
///
/// # Safety
/// For implementers:
/// - [`deref`](Deref::deref) always returns the same object, at the same address, even after the handle is moved;
/// - the object, and everything that the object borrows, lives until the handle is dropped.
///
/// This crate implements the trait for `&'static ProfileObject<'static>` and, with the feature `alloc`, for
/// `Arc<ProfileObject<'static>>`.
///
/// ```
/// use core::ops::Deref;
/// use pmu_kprofile::ProfileObject;
/// use pmu_kprofile::owned::Handle;
///
/// /// A reference to an object that this kernel keeps in a table, and never frees while a reference is there.
/// struct TableRef(&'static ProfileObject<'static>);
///
/// impl Deref for TableRef {
///     type Target = ProfileObject<'static>;
///     fn deref(&self) -> &ProfileObject<'static> {
///         self.0
///     }
/// }
///
/// // SAFETY: the object does not move with the reference, and lives as long.
/// unsafe impl Handle for TableRef {}
/// ```
///
/// Wrong example: the handle contains the object, so the object's address changes when the handle is moved.
///
/// ```
/// # use core::ops::Deref;
/// # use pmu_kprofile::ProfileObject;
/// # use pmu_kprofile::owned::Handle;
/// struct Owned(ProfileObject<'static>);
/// impl Deref for Owned {
///     type Target = ProfileObject<'static>;
///     fn deref(&self) -> &ProfileObject<'static> {
///         &self.0
///     }
/// }
/// // SAFETY: not given. `Owned` moves into `Started`, and the lists keep the address that it had.
/// unsafe impl Handle for Owned {}
/// ```
pub unsafe trait Handle: Deref<Target = ProfileObject<'static>> {}

// SAFETY: the object lives forever, at one address.
unsafe impl Handle for &'static ProfileObject<'static> {}

// SAFETY: (1) the content of an `Arc` does not move with it; (2) it lives until the last `Arc` is dropped; (3) what it
// borrows is 'static.
#[cfg(feature = "alloc")]
unsafe impl Handle for alloc::sync::Arc<ProfileObject<'static>> {}

/// A started object together with the handle that keeps it alive. See [`Profiles::try_start_owned`].
#[must_use = "dropped, the object stays started and its handle leaks"]
pub struct Started<'p, O: Handle, const N: usize, const P: usize> {
    profiles: &'p Profiles<N, P>,
    object: ManuallyDrop<O>,
}

/// A stopped object together with its handle. [`try_finish`](Self::try_finish) returns the handle once no processor
/// reads the object any more. See [`Started::try_stop`].
#[must_use = "dropped, the handle leaks"]
pub struct StoppingOwned<'p, O: Handle, const N: usize, const P: usize> {
    stopping: Stopping<'p, N, P>,
    object: ManuallyDrop<O>,
}

impl<const N: usize, const P: usize> Profiles<N, P> {
    /// Starts an object that a handle keeps alive, without waiting.
    ///
    /// The returned value holds the handle until the object is stopped by [`Started::try_stop`] or by `Started::stop`.
    /// If the returned value is dropped while the object is started, the object stays started and the handle is leaked.
    ///
    /// ```
    /// use std::sync::Arc; // The handle needs the feature `alloc`.
    /// use pmu_kprofile::{ProfileError, ProfileHardware, ProfileObject, Profiles};
    ///
    /// fn profile<H: ProfileHardware>(
    ///     lists: &Profiles<64, 4>,
    ///     object: Arc<ProfileObject<'static>>,
    ///     hardware: &mut H,
    /// ) -> Result<(), ProfileError> {
    ///     let started = lists.try_start_owned(object, hardware).map_err(|(error, _)| error)?;
    ///     // … the workload …
    ///     let mut stopping = started.try_stop(hardware).map_err(|(error, _)| error)?;
    ///     let (object, outcome) = loop {
    ///         match stopping.try_finish() {
    ///             Ok(stopped) => break stopped,
    ///             Err(early) => stopping = early, // … let other tasks run …
    ///         }
    ///     };
    ///     println!("{} buckets were hit", object.hits().count());
    ///     outcome
    /// }
    /// ```
    ///
    /// # Context
    /// Task. Never waits.
    ///
    /// # Errors
    /// The errors of [`try_start`](Self::try_start). The handle is returned together with the error.
    pub fn try_start_owned<O: Handle, H: ProfileHardware>(
        &self,
        object: O,
        hardware: &mut H,
    ) -> Result<Started<'_, O, N, P>, (ProfileError, O)> {
        // SAFETY: the handle keeps the object alive and at its address, and is not dropped before a stop.
        let outcome = unsafe { self.try_start_borrowed(&object, hardware) };
        self.started_if(outcome, object)
    }

    /// Starts an object that a handle keeps alive. While another task starts or stops a profile, the call waits. Apart
    /// from the waiting, the call does the same as [`try_start_owned`](Self::try_start_owned).
    ///
    /// # Context
    /// Task. Waits.
    ///
    /// # Errors
    /// The errors of [`start`](Self::start). The handle is returned together with the error.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc; // The handle needs the feature `alloc`.
    /// use pmu_kprofile::{ProfileError, ProfileHardware, ProfileObject, Profiles};
    ///
    /// fn profile<H: ProfileHardware>(
    ///     lists: &Profiles<64, 4>,
    ///     object: Arc<ProfileObject<'static>>,
    ///     hardware: &mut H,
    ///     workload: fn(),
    /// ) -> Result<usize, ProfileError> {
    ///     let started = lists.start_owned(object, hardware).map_err(|(error, _)| error)?;
    ///     workload();
    ///     // It fails in an interrupt or a callback only, and then gives the started object back.
    ///     let (object, outcome) = started.stop(hardware).map_err(|_| ProfileError::WrongContext)?;
    ///     outcome.map(|()| object.hits().count())
    /// }
    /// ```
    #[cfg(feature = "critical-section")]
    pub fn start_owned<O: Handle, H: ProfileHardware>(
        &self,
        object: O,
        hardware: &mut H,
    ) -> Result<Started<'_, O, N, P>, (ProfileError, O)> {
        // SAFETY: the handle keeps the object alive and at its address, and is not dropped before a stop.
        let outcome = unsafe { self.start_borrowed(&object, hardware) };
        self.started_if(outcome, object)
    }

    /// Starts an object for a caller of `NtStartProfile`. The function makes the same checks as Windows, in the same
    /// order.
    ///
    /// Before the call, the kernel looks up the handle and prepares the buffer. The kernel passes the results:
    /// - `object` is the object of the request's handle, or the status with which the look-up of the handle failed;
    /// - `resources` is the result of allocating, locking and mapping the buffer.
    ///
    /// If this function fails, the kernel unmaps, unlocks and frees these resources.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use pmu_core::profile::NtStatus;
    /// use pmu_kprofile::owned::Started;
    /// use pmu_kprofile::{ProfileHardware, ProfileObject, Profiles};
    ///
    /// type Object = Arc<ProfileObject<'static>>;
    ///
    /// # fn lock_buffer(_: &Result<Object, NtStatus>) -> Result<(), NtStatus> { Ok(()) }
    /// # fn unlock_buffer() {}
    /// fn nt_start_profile<'p, H: ProfileHardware>(
    ///     lists: &'p Profiles<64, 4>,
    ///     object: Result<Object, NtStatus>, // Or `INVALID_HANDLE`, `ACCESS_DENIED` …
    ///     hardware: &mut H,
    /// ) -> Result<Started<'p, Object, 64, 4>, NtStatus> {
    ///     let resources = lock_buffer(&object);
    ///     lists.try_start_service(object, resources, hardware).map_err(|(error, _)| {
    ///         if resources.is_ok() {
    ///             unlock_buffer();
    ///         }
    ///         error.status().unwrap_or(NtStatus::INSUFFICIENT_RESOURCES)
    ///     })
    /// }
    /// ```
    ///
    /// # Context
    /// Task. Never waits.
    ///
    /// # Errors
    /// In the order of the checks:
    /// - the status in `object`;
    /// - these errors of [`try_start_owned`](Self::try_start_owned): `WrongContext`, `Busy`, `AlreadyStarted`,
    ///   `OnAnotherList`, `OtherRules` and `AtLimit`;
    /// - the status in `resources`;
    /// - the other errors of `try_start_owned`.
    pub fn try_start_service<O: Handle, H: ProfileHardware>(
        &self,
        object: Result<O, NtStatus>,
        resources: Result<(), NtStatus>,
        hardware: &mut H,
    ) -> Result<Started<'_, O, N, P>, (ProfileError, Option<O>)> {
        let object = object.map_err(|status| (ProfileError::Caller(status), None))?;
        let outcome = self.try_write(hardware).and_then(|guard| {
            // SAFETY: the handle keeps the object alive and at its address, and is not dropped before a stop.
            unsafe { guard.start(&object, resources, hardware) }
        });
        self.started_if(outcome, object).map_err(|(error, object)| (error, Some(object)))
    }

    /// Stops the object that a caller's handle names, for the service `NtStopProfile`.
    ///
    /// # Context
    /// Task. Never waits.
    ///
    /// # Errors
    /// If the look-up of the handle failed, the error is the status of that failure. Otherwise the errors are those of
    /// [`try_stop`](Self::try_stop).
    ///
    /// # Examples
    /// ```
    /// use pmu_core::profile::NtStatus;
    /// use pmu_kprofile::{ProfileHardware, ProfileObject, Profiles};
    /// # fn wait_for_another_tick() {}
    ///
    /// /// `NtStopProfile`, after the kernel looked the handle up.
    /// fn nt_stop_profile<H: ProfileHardware>(
    ///     lists: &Profiles<64, 4>,
    ///     object: Result<&ProfileObject<'static>, NtStatus>,
    ///     hardware: &mut H,
    /// ) -> NtStatus {
    ///     match lists.try_stop_service(object, hardware) {
    ///         Ok(stopping) => {
    ///             while !stopping.is_over() {
    ///                 wait_for_another_tick();
    ///             }
    ///             NtStatus::SUCCESS // The buffer can be unlocked now.
    ///         }
    ///         Err(error) => error.status().unwrap_or(NtStatus::INSUFFICIENT_RESOURCES),
    ///     }
    /// }
    /// ```
    pub fn try_stop_service<'p, H: ProfileHardware>(
        &'p self,
        object: Result<&'p ProfileObject<'_>, NtStatus>,
        hardware: &mut H,
    ) -> Result<Stopping<'p, N, P>, ProfileError> {
        self.try_stop(object.map_err(ProfileError::Caller)?, hardware)
    }

    /// Returns the handle in a [`Started`] if the object was started; otherwise with the error.
    fn started_if<O: Handle>(
        &self,
        outcome: Result<(), ProfileError>,
        object: O,
    ) -> Result<Started<'_, O, N, P>, (ProfileError, O)> {
        match outcome {
            Ok(()) => Ok(Started { profiles: self, object: ManuallyDrop::new(object) }),
            Err(error) => Err((error, object)),
        }
    }
}

impl<'p, O: Handle, const N: usize, const P: usize> Started<'p, O, N, P> {
    /// Returns the profile object that is started.
    pub fn object(&self) -> &ProfileObject<'static> {
        &self.object
    }

    /// Stops the object. [`StoppingOwned::try_finish`] returns the handle once no processor reads the object any more.
    ///
    /// # Context
    /// Task. Never waits.
    ///
    /// # Errors
    /// After each error, the object is still started, and `self` is returned together with the error:
    /// - [`Busy`](ProfileError::Busy): another task is starting or stopping a profile.
    /// - [`WrongContext`](ProfileError::WrongContext): the call comes from an interrupt or a callback.
    /// - [`OnAnotherList`](ProfileError::OnAnotherList): another holder of the handle stopped the object, and started
    ///   it on another [`Profiles`].
    ///
    /// If the hardware fails to stop the source, this function still succeeds, and [`StoppingOwned::try_finish`]
    /// returns the failure.
    pub fn try_stop<H: ProfileHardware>(
        self,
        hardware: &mut H,
    ) -> Result<StoppingOwned<'p, O, N, P>, (ProfileError, Self)> {
        let profiles = self.profiles;
        let stopped = profiles.try_write(hardware).and_then(|guard| {
            let outcome = match guard.stop(&self.object, hardware) {
                // It is not an error if another holder of the handle stopped the object.
                Err(ProfileError::NotStarted) => Ok(()),
                outcome => outcome?,
            };
            Ok(profiles.stopping(&guard, outcome))
        });
        match stopped {
            Ok(stopping) => Ok(StoppingOwned { stopping, object: self.object }),
            Err(error) => Err((error, self)),
        }
    }

    /// Stops this started object, and returns the object's handle.
    ///
    /// # Context
    /// Task. Waits for other tasks that start or stop profiles, and for interrupt dispatches: see [`Profiles::stop`].
    ///
    /// # Errors
    /// In two cases the function returns `self` as the error, and the object is still started:
    /// - The call comes from an interrupt or a callback.
    /// - Another holder of the handle stopped the object, and started it on another [`Profiles`].
    ///
    /// In any other case the object is stopped, and the function returns the handle and the result of stopping the
    /// source.
    #[cfg(feature = "critical-section")]
    pub fn stop<H: ProfileHardware>(
        self,
        hardware: &mut H,
    ) -> Result<(O, Result<(), ProfileError>), Self> {
        match self.profiles.stop(&self.object, hardware) {
            Err(ProfileError::WrongContext | ProfileError::OnAnotherList) => Err(self),
            // It is not an error if another holder of the handle stopped the object.
            Err(ProfileError::NotStarted) => Ok((ManuallyDrop::into_inner(self.object), Ok(()))),
            outcome => Ok((ManuallyDrop::into_inner(self.object), outcome)),
        }
    }
}

impl<O: Handle, const N: usize, const P: usize> StoppingOwned<'_, O, N, P> {
    /// Returns the handle of the stopped object, if no processor reads the object any more. Also returns the result of
    /// stopping the object's source.
    ///
    /// # Context
    /// Any context in which the handle may be dropped. Never waits.
    ///
    /// # Errors
    /// The function returns `self` as the error if a processor may still be reading the object, or if another task is
    /// starting or stopping a profile.
    pub fn try_finish(self) -> Result<(O, Result<(), ProfileError>), Self> {
        if !self.stopping.is_over() {
            return Err(self);
        }
        Ok((ManuallyDrop::into_inner(self.object), self.stopping.hardware()))
    }
}

impl<O: Handle, const N: usize, const P: usize> core::fmt::Debug for Started<'_, O, N, P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Started").field(self.object()).finish()
    }
}

impl<O: Handle, const N: usize, const P: usize> core::fmt::Debug for StoppingOwned<'_, O, N, P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let object: &ProfileObject<'_> = &self.object;
        f.debug_tuple("StoppingOwned").field(object).finish()
    }
}
