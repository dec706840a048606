//! The kernel's callback that writes a trace record of each profile interrupt.

use core::sync::atomic::{AtomicU64, Ordering};

use pmu_core::frame::InterruptFrame;
use pmu_core::profile::KProfileSource;
use pmu_core::windows::PointerWidth;

use crate::object::callback::ProfileCallback;
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
