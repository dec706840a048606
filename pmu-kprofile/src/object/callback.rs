//! What a callback object calls.

use pmu_core::{InterruptFrame, KProfileSource};

/// Acts on a profile interrupt in a way of its own. A closure is one:
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use pmu_core::{InterruptFrame, KProfileSource};
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
/// The frame is the embedder's own, erased: [`InterruptFrame::embedder`] gives it back, with its registers,
/// and [`InterruptFrame::call_chain`] the return addresses.
///
/// # For implementers
/// - Called in interrupt or NMI context, possibly on several processors at a time, and while a call
///   on the same processor is under way: no lock, no allocation, no panic.
/// - Starting and stopping profiles from here is refused
///   ([`WrongContext`](crate::ProfileError::WrongContext)).
pub trait ProfileCallback: Sync {
    /// An interrupt of the object's source came.
    fn profile_interrupt(&self, frame: &dyn InterruptFrame, source: KProfileSource);
}

impl<C: Fn(&dyn InterruptFrame, KProfileSource) + Sync> ProfileCallback for C {
    fn profile_interrupt(&self, frame: &dyn InterruptFrame, source: KProfileSource) {
        self(frame, source);
    }
}
