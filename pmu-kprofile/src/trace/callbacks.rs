//! The kernel's own callbacks of profile interrupts.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pmu_core::frame::InterruptFrame;
use pmu_core::interval::Interval;
use pmu_core::profile::KProfileSource;
use pmu_core::windows::PointerWidth;

use crate::object::profile_object::ProfileCallback;
use crate::trace::event::sample::{Detail, Hook, Sample};
use crate::trace::ring::{StackRing, TraceRing};

/// A profile callback that writes a trace record of each interrupt into the ring of the interrupted processor.
///
/// ```
/// use pmu_kprofile::PointerWidth;
/// use pmu_kprofile::trace::{Hook, TraceCallback, TraceRing};
/// static RINGS: [TraceRing<128>; 2] = [const { TraceRing::new() }; 2];
/// static SAMPLED_PROFILE: TraceCallback<128> =
///     TraceCallback::new(Hook::SampledProfile, PointerWidth::Bits64, &RINGS);
/// assert_eq!(SAMPLED_PROFILE.dropped(), 0);
/// ```
#[derive(Debug)]
pub struct TraceCallback<const N: usize> {
    hook: Hook,
    width: PointerWidth,
    rings: &'static [TraceRing<N>],
    stacks: &'static [StackRing<N>],
    ringless: AtomicU64,
}

impl<const N: usize> TraceCallback<N> {
    /// Creates a callback that writes records of the kind `hook` into `rings`. `rings` has one ring per processor, by
    /// processor index.
    pub const fn new(hook: Hook, width: PointerWidth, rings: &'static [TraceRing<N>]) -> Self {
        Self { hook, width, rings, stacks: &[], ringless: AtomicU64::new(0) }
    }

    /// Returns a callback that also writes the call chain of each interrupt into `stacks`, as a
    /// [`StackWalk`](crate::trace::StackWalk) record.
    ///
    /// `stacks` has one ring per processor, by processor index. A processor without a ring in `stacks` records no call
    /// chains.
    ///
    /// # Examples
    /// ```
    /// use pmu_kprofile::PointerWidth;
    /// use pmu_kprofile::trace::{Event, Hook, StackRing, TraceCallback, TraceRing};
    ///
    /// static RINGS: [TraceRing<128>; 2] = [const { TraceRing::new() }; 2];
    /// static STACKS: [StackRing<128>; 2] = [const { StackRing::new() }; 2];
    /// static SAMPLED_PROFILE: TraceCallback<128> =
    ///     TraceCallback::new(Hook::SampledProfile, PointerWidth::Bits64, &RINGS).with_stacks(&STACKS);
    ///
    /// /// Prints the call chains that the interrupts of one processor left.
    /// fn print_call_chains(processor: usize) {
    ///     for bytes in STACKS[processor].drain() {
    ///         if let Ok(Event::StackWalk(walk)) = bytes.decode().map(|record| record.event) {
    ///             println!("{}: {:#x?}", walk.event_timestamp, walk.addresses().collect::<Vec<_>>());
    ///         }
    ///     }
    /// }
    /// # print_call_chains(0);
    /// ```
    pub const fn with_stacks(mut self, stacks: &'static [StackRing<N>]) -> Self {
        self.stacks = stacks;
        self
    }

    /// Returns the number of records that were lost so far. A record is lost if the ring is full, or if the processor
    /// has no ring.
    ///
    /// Other callbacks may write to the same rings. If a ring is full, the number then also includes the lost records
    /// of these callbacks.
    pub fn dropped(&self) -> u64 {
        let full: u64 = self.rings.iter().map(TraceRing::dropped).sum();
        let stacks: u64 = self.stacks.iter().map(StackRing::dropped).sum();
        full + stacks + self.ringless.load(Ordering::Relaxed)
    }
}

impl<const N: usize> ProfileCallback for TraceCallback<N> {
    #[inline]
    fn profile_interrupt(&self, frame: &dyn InterruptFrame, source: KProfileSource) {
        let Some(ring) = self.rings.get(frame.processor().index()) else {
            self.ringless.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let detail = match self.hook {
            Hook::SampledProfile => Detail::SampledProfile { count: 1, flags: 0, rank: 0 },
            Hook::PmcInterrupt => {
                Detail::PmcInterrupt { source: source.value() as u16, reserved: 0 }
            }
        };
        let sample = Sample { pc: frame.pc(), thread: frame.thread(), detail };
        ring.push_sample(self.width, frame.timestamp(), &sample);
        if let Some(stacks) = self.stacks.get(frame.processor().index()) {
            stacks.push_call_chain(self.width, frame);
        }
    }
}

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
