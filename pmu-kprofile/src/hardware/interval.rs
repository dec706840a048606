//! A guard that holds a source's interval.

use pmu_core::interval::Interval;
use pmu_core::profile::{InterfaceError, KProfileSource, ProfileInterface};

/// Guard of an interval that was set for a source. Dropping the guard restores the previous interval.
///
/// The interval of a source is the same for the whole machine. An interval that is set without this guard stays in
/// force until another interval is set.
///
/// If a source has several guards, drop the guards in reverse order of creation. In any other order, the source may not
/// get its original interval back.
///
/// ```
/// use pmu_core::profile::{DefaultInterface, KProfileSource, ProfileInterface};
/// use pmu_kprofile::hardware::IntervalGuard;
///
/// let interface = DefaultInterface::new();
/// let before = interface.query(KProfileSource::TIME).interval;
/// {
///     let held = IntervalGuard::hold(&interface, KProfileSource::TIME, 5_000)?;
///     assert_eq!(held.interval().get(), 5_000);
/// }
/// assert_eq!(interface.query(KProfileSource::TIME).interval, before);
/// # Ok::<(), pmu_core::profile::InterfaceError>(())
/// ```
#[derive(Debug)]
#[must_use = "dropped, the interval is restored"]
pub struct IntervalGuard<'i, I: ProfileInterface> {
    interface: &'i I,
    source: KProfileSource,
    interval: Interval,
    before: u32,
}

impl<'i, I: ProfileInterface> IntervalGuard<'i, I> {
    /// Sets the interval of a source until the guard is dropped. Like
    /// [`set_interval_clamped`](ProfileInterface::set_interval_clamped), the function clamps `units` to the limits of
    /// the source.
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// [`UnsupportedSource`](InterfaceError::UnsupportedSource): the interface does not support the source; nothing was
    /// changed.
    pub fn hold(
        interface: &'i I,
        source: KProfileSource,
        units: u64,
    ) -> Result<Self, InterfaceError> {
        let before = interface.query(source).interval;
        let interval = interface.set_interval_clamped(source, units)?;
        Ok(Self { interface, source, interval, before })
    }

    /// Returns the interval that this guard set, after clamping.
    pub fn interval(&self) -> Interval {
        self.interval
    }

    /// Returns the interval that dropping this guard restores, in the unit of the source.
    pub fn before(&self) -> u32 {
        self.before
    }
}

impl<I: ProfileInterface> Drop for IntervalGuard<'_, I> {
    fn drop(&mut self) {
        // This cannot fail: the source was supported when the guard was made, and the interval was in force, so within
        // the limits.
        let _ = self.interface.set_interval(self.source, self.before.into());
    }
}
