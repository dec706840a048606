//! The performance interrupt.

use pmu_core::error::ServiceError;
use pmu_core::frame::{InterruptFrame, SampledFrame};
use pmu_core::interrupt::Serviced;
use pmu_core::memory::CounterMemory;
use pmu_core::reading::sample_read;
use pmu_core::{Claim, EventCount, EventId, EventSource, Platform, Sample, service};

use crate::kernel::architecture::{Architecture, FacilityOf};
use crate::kernel::pmu::{Pmu, PmuError, PmuEvents, ProcessorMemory};
use crate::kernel::required::{Kernel, KernelHooks};
use crate::kernel::sample::PmuSample;

/// The receiver of an interrupt's samples.
struct Report<'i, K: Kernel, F, const P: usize, const E: usize, const N: usize> {
    pmu: &'static Pmu<K, P, E, N>,
    of: &'static ProcessorMemory<K, E>,
    events: &'i PmuEvents<K>,
    frame: &'i F,
    is_stuck: bool,
    /// The events of which a sample has counted toward their limit per tick.
    accounted: [bool; E],
}

impl<K: Kernel, F: InterruptFrame, const P: usize, const E: usize, const N: usize>
    Report<'_, K, F, P, E, N>
{
    #[inline(always)]
    fn take(&mut self, sample: &Sample<'_, FacilityOf<K>>) {
        let of = self.of;
        let source = self.events.overflow(sample).map(|overflow| overflow.source);
        match source {
            Some(source) => {
                let exact = sample.instruction().and_then(|instruction| instruction.address);
                let frame = SampledFrame::new(self.frame, exact);
                self.pmu.profiles.interrupt(&frame, source);
            }
            None if sample.tag == of.watchdog_tag() => {
                self.is_stuck |= of.watchdog.is_stuck(sample.event);
                return;
            }
            None => {
                let place = sample.event.index().and_then(|place| self.accounted.get_mut(place));
                // One interrupt may report many records of an event. It counts once toward the limit per tick.
                let is_first = place.is_some_and(|of| !core::mem::replace(of, true));
                of.events.account_sample(sample.event, is_first, K::now);
            }
        }
        K::sampled(&PmuSample::new(sample, Some(self.frame), source));
    }
}

/// Result of handling a performance interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[must_use = "the interrupt may be another owner's, or a register may not have answered"]
pub struct Interrupted {
    /// Tells whether the interrupt came from this `Pmu`'s hardware. If several drivers share the handler, the kernel
    /// uses this field to decide whether to call another driver.
    pub claim: Claim,
    /// Set if the counters are [lent](Pmu::lend). The handler passes the interrupt on to the guest, whatever
    /// [`claim`](Self::claim) is: see [`Serviced::lent`](pmu_core::interrupt::Serviced::lent).
    pub lent: bool,
    /// Number of counters that overflowed.
    pub overflows: u32,
    /// `true` if the [watchdog](Pmu::watch) found that the processor is stuck: its timer tick no longer runs.
    pub is_stuck: bool,
    /// `true` if the counter of the [watchdog](Pmu::watch) failed. To start the watchdog again, a task calls
    /// [`Pmu::watch`].
    pub is_blind: bool,
    /// The register access that failed; `None` if all accesses succeeded. If the register belongs to a counter, the
    /// source or event on this counter no longer runs.
    pub error: Option<ServiceError>,
}

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Pmu<K, P, E, N> {
    /// Handles the performance interrupt of the processor that executes the call. The call finds the counters that
    /// overflowed, reports the interrupted address to the started profiles, calls [`Kernel::sampled`] with each sample
    /// but the [watchdog's](Self::watch), and re-arms the counters. The handler of an interrupt by a vector writes EOI
    /// after the call.
    ///
    /// Once the kernel's [tick](Self::tick) has come, an event has at most as many interrupts with samples as
    /// [`Kernel::TICK`] allows until the next tick. After the last one it is
    /// [throttled](pmu_core::memory::EventTable::is_throttled). Samples without a
    /// [frame](PmuSample::frame) are not counted.
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use pmu::{Claim, Pmu};
    /// use pmu::frame::PlainFrame;
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    ///
    /// fn non_maskable_interrupt(frame: &PlainFrame) -> Claim {
    ///     let interrupted = PMU.interrupt(frame);
    ///     if let Some(error) = interrupted.error {
    ///         println!("performance counters: {error}");
    ///     }
    ///     interrupted.claim
    /// }
    /// # let _ = non_maskable_interrupt;
    /// ```
    ///
    /// # Context
    /// The handler of the performance interrupt, which may be an NMI. `frame` contains the number of the processor that
    /// executes the handler.
    #[inline]
    pub fn interrupt<F: InterruptFrame>(&'static self, frame: &F) -> Interrupted {
        let of = self.processors.get(K::this_processor());
        let (Some(of), Some(machine)) = (of, self.machine()) else {
            return Interrupted {
                claim: Claim::NotOurs,
                lent: false,
                overflows: 0,
                is_stuck: false,
                is_blind: false,
                error: None,
            };
        };
        let events = self.events(of, machine);
        let (events, frame) = (&events, frame);
        // One value, so that the interrupt's steps hand on one reference.
        let mut report =
            Report { pmu: self, of, events, frame, is_stuck: false, accounted: [false; E] };
        let hardware = (K::registers(), KernelHooks::<K>::new());
        // No pass will clear the overflow, so a level would interrupt again without end.
        if K::Architecture::LEVEL_INTERRUPT && !of.counters.is_served() {
            hardware.mask_performance_interrupt();
        }
        let serviced = service(events, &hardware, &of.counters, |sample| report.take(&sample));
        let is_stuck = report.is_stuck;
        // After `service`, which may have loaded counters that threads read.
        self.publish_in_interrupt();
        match serviced {
            Ok(Serviced { claim, lent, overflows, .. }) => {
                Interrupted { claim, lent, overflows, is_stuck, is_blind: false, error: None }
            }
            Err(error) => Interrupted {
                // It is unknown whose interrupt this was. Unclaimed, it would be taken for failing hardware.
                claim: Claim::OursAndMore,
                lent: false,
                overflows: 0,
                is_stuck,
                is_blind: of.watchdog.is_blind(&of.counters),
                error: Some(error),
            },
        }
    }

    /// Reads the counts of an event's group at its sample, as `PERF_SAMPLE_READ` has them: the tag and the count of
    /// each event, in the group's order, or of the event alone. Returns how many of `counts` were written.
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use pmu::{EventCount, Pmu, PmuSample};
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    ///
    /// /// Is called by the kernel's `sampled`.
    /// fn record(sample: &PmuSample<'_, MyKernel>) {
    ///     let mut counts = [(0, EventCount::default()); 8];
    ///     let read = PMU.sample_read(sample.event, &mut counts).unwrap_or(0);
    ///     for (tag, count) in &counts[..read] {
    ///         println!("{tag}: {}", count.value);
    ///     }
    /// }
    /// # let _ = record;
    /// ```
    ///
    /// If `counts` is shorter than the group, the call writes the first ones; no group is longer than
    /// [`MAX_COUNTERS`](pmu_core::registers::MAX_COUNTERS). Samples of precise records that waited together have the
    /// counts of the moment at which they are reported.
    ///
    /// # Context
    /// [`Kernel::sampled`], or later in the same handler. Most samples without a [frame](PmuSample::frame) are of
    /// events that leave their counters, and have no counts: the result is an error.
    ///
    /// # Errors
    /// - [`NotUp`](PmuError::NotUp).
    /// - [`Events`](PmuError::Events), [`Counters`](PmuError::Counters): the event is not open, or the count of one
    ///   event cannot be read; see [`sample_read`](pmu_core::reading::sample_read). A profile's sample is of no event.
    pub fn sample_read(
        &'static self,
        event: EventId,
        counts: &mut [(u64, EventCount)],
    ) -> Result<usize, PmuError> {
        let (events, memory) = self.events_of(K::this_processor()).ok_or(PmuError::NotUp)?;
        let msr = K::registers();
        let mut read = 0;
        for (count, of) in
            counts.iter_mut().zip(sample_read(&events, &msr, memory, event, K::now())?)
        {
            *count = (of.tag, of.count?);
            read += 1;
        }
        Ok(read)
    }

    /// Returns the event source and the counter memory of a processor. A handler, or a task on another processor,
    /// passes the two values to the following functions of `pmu-core`: [`sample_read`](pmu_core::reading::sample_read),
    /// [`user_view`](pmu_core::reading::user_view()), [`remote_count`](pmu_core::reading::remote_count()), and, before
    /// each VM entry, [`guest_control`](pmu_core::lending::guest_control()).
    ///
    /// Returns `None` before the first [`processor_up`](Self::processor_up), and for a processor number of `P` or more.
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use pmu::core::lending::{GuestControl, guest_control};
    /// use pmu::{Kernel, Pmu};
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    ///
    /// /// Returns the values of `IA32_PERF_GLOBAL_CTRL` for a guest whose counters the host shares, and for the host.
    /// fn before_entry() -> Option<GuestControl> {
    ///     let (events, memory) = PMU.events_of(MyKernel::this_processor())?;
    ///     guest_control(&events, memory)
    /// }
    /// # assert_eq!(before_entry().map(drop), None); // No processor is up.
    /// ```
    ///
    /// # Context
    /// Any context, on any processor. The functions of `pmu-core` have contexts of their own: see their documentation.
    #[inline]
    pub fn events_of(
        &'static self,
        processor: usize,
    ) -> Option<(PmuEvents<K>, &'static CounterMemory)> {
        let (of, machine) = (self.processors.get(processor)?, self.machine()?);
        Some((self.events(of, machine), &of.counters))
    }
}
