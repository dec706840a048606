//! The callback of a callback object.

use pmu_core::frame::InterruptFrame;
use pmu_core::profile::KProfileSource;

/// The callback of a callback object: a function that is called on each interrupt of a profile source. A closure
/// implements the trait:
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use pmu_core::frame::InterruptFrame;
/// use pmu_core::profile::KProfileSource;
/// use pmu_kprofile::{ProfileObject, Rules};
///
/// static IN_KERNEL: AtomicU64 = AtomicU64::new(0);
/// let count = |frame: &dyn InterruptFrame, _: KProfileSource| {
///     if frame.cs() & 3 == 0 {
///         IN_KERNEL.fetch_add(1, Ordering::Relaxed);
///     }
/// };
/// let object = ProfileObject::callback(Rules::LATEST, KProfileSource::TIME, &count)?;
/// # Ok::<(), pmu_kprofile::CreateError>(())
/// ```
///
/// The `frame` argument is the embedder's own interrupt frame, as a trait object. [`InterruptFrame::embedder`] gives
/// access to the embedder's own type, which may have further registers. [`InterruptFrame::call_chain`] visits the
/// return addresses.
///
/// # For implementers
/// - The callback runs in interrupt or NMI context: it must not take a lock, allocate or panic.
/// - The callback may run on several processors at a time. On one processor, a call of the callback may interrupt an
///   earlier call.
/// - The callback cannot start or stop profiles: the attempt returns
///   [`WrongContext`](crate::ProfileError::WrongContext).
pub trait ProfileCallback: Sync {
    /// Handles an interrupt of the object's source.
    fn profile_interrupt(&self, frame: &dyn InterruptFrame, source: KProfileSource);

    /// Returns the address of the callback routine, so that a debugger can show the address.
    ///
    /// [`ProfileObject::to_kprofile`](crate::ProfileObject::to_kprofile) writes this address into the `KPROFILE`. The
    /// default implementation returns the address of [`profile_interrupt`](Self::profile_interrupt).
    ///
    /// ```
    /// # use pmu_core::frame::InterruptFrame;
    /// # use pmu_core::profile::KProfileSource;
    /// # use pmu_kprofile::compat::kprofile::Role;
    /// # use pmu_kprofile::{ProfileCallback, ProfileObject, Rules};
    /// /// Calls a routine of a driver's.
    /// struct Driver {
    ///     routine: fn(u64),
    /// }
    ///
    /// impl ProfileCallback for Driver {
    ///     fn profile_interrupt(&self, frame: &dyn InterruptFrame, _: KProfileSource) {
    ///         (self.routine)(frame.pc());
    ///     }
    ///     fn routine(&self) -> u64 {
    ///         self.routine as usize as u64
    ///     }
    /// }
    ///
    /// let driver = Driver { routine: |_| {} };
    /// let object = ProfileObject::callback(Rules::LATEST, KProfileSource::TIME, &driver)?;
    /// let Role::Callback { callback, .. } = object.to_kprofile().role else { unreachable!() };
    /// assert_eq!(callback, driver.routine as usize as u64);
    /// # Ok::<(), pmu_kprofile::CreateError>(())
    /// ```
    fn routine(&self) -> u64 {
        let routine: fn(&Self, &dyn InterruptFrame, KProfileSource) = Self::profile_interrupt;
        routine as usize as u64
    }
}

impl<C: Fn(&dyn InterruptFrame, KProfileSource) + Sync> ProfileCallback for C {
    fn profile_interrupt(&self, frame: &dyn InterruptFrame, source: KProfileSource) {
        self(frame, source);
    }
}
