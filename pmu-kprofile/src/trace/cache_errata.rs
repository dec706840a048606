//! The kernel's callback for cache errata: counts time interrupts and limits their interval.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pmu_core::frame::InterruptFrame;
use pmu_core::interval::Interval;
use pmu_core::profile::KProfileSource;

use crate::object::callback::ProfileCallback;

/// Profile callback with which a kernel works around cache errata. The callback counts the interrupts of the source
/// `ProfileTime`. [`limit`](Self::limit) limits the interval of this source.
///
/// While the workaround is active, the interval of `ProfileTime` must not be longer than the workaround allows. Before
/// the kernel sets an interval of `ProfileTime`, it must pass the requested interval to `limit`.
///
/// # Examples
/// ```
/// use pmu_core::interval::{IntervalLimits, IntervalUnit};
/// use pmu_core::profile::KProfileSource;
/// use pmu_kprofile::trace::CacheErrata;
/// use pmu_kprofile::{CreateError, ProfileObject, Rules};
///
/// static ERRATA: CacheErrata = CacheErrata::new();
///
/// /// The kernel found a processor whose caches need an interrupt at least every millisecond.
/// fn needs_interrupts() -> Result<ProfileObject<'static>, CreateError> {
///     ERRATA.require(IntervalLimits::of(IntervalUnit::HundredNanoseconds).clamp(10_000));
///     ProfileObject::callback(Rules::LATEST, KProfileSource::TIME, &ERRATA) // to be started
/// }
/// # needs_interrupts().unwrap();
/// assert_eq!([5_000, 50_000].map(|units| ERRATA.limit(units)), [5_000, 10_000]);
/// ```
#[derive(Debug)]
pub struct CacheErrata {
    interrupts: AtomicU64,
    /// Longest permitted interval in units of 100 ns; `u32::MAX` permits any.
    longest: AtomicU32,
}

impl CacheErrata {
    /// Creates the callback; until [`require`](Self::require) is called, every interval of `ProfileTime` is permitted.
    pub const fn new() -> Self {
        Self { interrupts: AtomicU64::new(0), longest: AtomicU32::new(u32::MAX) }
    }

    /// Requires that the interval of `ProfileTime` is at most `interval`.
    pub fn require(&self, interval: Interval) {
        self.longest.store(interval.get(), Ordering::Relaxed);
    }

    /// Returns the interval to set for `ProfileTime`, in units of 100 ns. `units` is the requested interval, in the
    /// same unit. The result is at most the longest permitted interval.
    pub fn limit(&self, units: u64) -> u64 {
        match self.longest.load(Ordering::Relaxed) {
            u32::MAX => units,
            longest => units.min(longest.into()),
        }
    }

    /// Returns the number of interrupts of `ProfileTime` so far.
    pub fn interrupts(&self) -> u64 {
        self.interrupts.load(Ordering::Relaxed)
    }
}

impl Default for CacheErrata {
    fn default() -> Self {
        Self::new()
    }
}

impl ProfileCallback for CacheErrata {
    fn profile_interrupt(&self, _: &dyn InterruptFrame, _: KProfileSource) {
        self.interrupts.fetch_add(1, Ordering::Relaxed);
    }
}
