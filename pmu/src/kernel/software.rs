//! Events that the kernel's calls count, and the clocks.

use core::sync::atomic::Ordering::Relaxed;

use pmu_core::access::RegisterBackend;
use pmu_core::error::CounterError;
use pmu_core::facility::{EventFacility, SoftwareEvents};
use pmu_core::frame::InterruptFrame;
use pmu_core::interrupt::EventOverflow;
use pmu_core::{Event, EventSource, Sample, SoftwareEvent};

use crate::kernel::architecture::FacilityOf;
use crate::kernel::facilities::{Facilities, KernelFunctions, X86Facilities};
use crate::kernel::pmu::{Pmu, PmuError, ProcessorMemory};
use crate::kernel::required::Kernel;
use crate::kernel::sample::PmuSample;

impl<Processor> Facilities<Processor> for SoftwareEvents {
    type Facility = Self;

    const NEW: Self = Self;

    unsafe fn detect<M: RegisterBackend>(&'static self, _: &Processor, _: &M, _: &KernelFunctions) {
    }

    #[inline]
    fn facility(&'static self) -> Self {
        *self
    }

    #[inline]
    fn is_idle(&'static self) -> bool {
        true
    }
}

impl X86Facilities for SoftwareEvents {}

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Pmu<K, P, E, N> {
    /// Tells that something happened on this processor, which [software events](Event::software) count: those of the
    /// processor, and those of the thread that runs. `frame` is where it happened, by which events count in one mode
    /// only. [`Kernel::sampled`] takes the samples of the events whose periods ended. In a kernel without
    /// [`SoftwareEvents`](crate::facilities::SoftwareEvents), the call does nothing.
    ///
    /// The kernel tells of each page fault once, as a minor or as a major one. It tells of a context switch before it
    /// [switches](Self::switch) the events of the threads, and of a migration after that.
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use pmu::{Event, Pmu, PmuError, SoftwareEvent, ThreadEvent};
    /// use pmu::frame::PlainFrame;
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    ///
    /// /// The end of the page fault handler.
    /// fn faulted(frame: &PlainFrame, was_read_from_disk: bool) {
    ///     let what = if was_read_from_disk { SoftwareEvent::MajorFaults } else { SoftwareEvent::MinorFaults };
    ///     PMU.happened(what, frame);
    /// }
    ///
    /// /// The scheduler's switch. Its own frame says that it is the kernel's.
    /// fn switch(frame: &PlainFrame, from: &mut [ThreadEvent], to: &mut [ThreadEvent]) -> Result<(), PmuError> {
    ///     PMU.happened(SoftwareEvent::ContextSwitches, frame);
    ///     PMU.switch(from, to)
    /// }
    /// # let frame = PlainFrame::new(0, 8, 0, 0);
    /// # faulted(&frame, false);
    /// # let _ = switch(&frame, &mut [], &mut []);
    /// ```
    ///
    /// # Context
    /// Task or interrupt, but not NMI. The task cannot move to another processor during the call, and may be within
    /// [`with`](Self::with).
    pub fn happened(&'static self, what: SoftwareEvent, frame: &dyn InterruptFrame) {
        if let Some(of) = self.of_software() {
            of.events.happened(what, 1, frame.in_user(), self.reporting(of, frame));
        }
    }

    /// Handles the interrupt of the timer that [`Kernel::set_clock_timer`] sets: [`Kernel::sampled`] takes a
    /// sample of each clock whose period has ended.
    ///
    /// # Context
    /// The handler of the timer's interrupt, which is not an NMI.
    pub fn clock_interrupt(&'static self, frame: &dyn InterruptFrame) {
        if let Some(of) = self.of_software() {
            let now = K::now();
            let report = self.reporting(of, frame);
            let left = of.events.sample_clocks(now, frame.in_user(), report);
            of.set_clock_timer(now, left, true);
        }
    }

    /// Sets the timer for the clocks that are sampled now, after a use of the session.
    #[inline]
    pub(super) fn settle_clock_timer(&'static self) {
        if K::CLOCK_TIMER
            && let Some(of) = self.of_software()
        {
            let now = K::now();
            of.set_clock_timer(now, of.events.next_clock(now), false);
        }
    }

    /// Returns the report of a software event's overflow, with a sample: to the profiles of its source, or as that of
    /// an event of the kernel.
    fn reporting(
        &'static self,
        of: &'static ProcessorMemory<K, E>,
        frame: &dyn InterruptFrame,
    ) -> impl FnMut(EventOverflow) {
        move |overflow| {
            let events = self.machine().map(|machine| self.events(of, machine));
            let source = events.and_then(|events| events.overflow(&overflow)).map(|of| of.source);
            if let Some(source) = source {
                self.added.take_up_interval(&of.events, &overflow);
                self.profiles.interrupt(&frame, source);
            } else {
                of.events.account_sample(overflow.event, true, K::now);
            }
            K::sampled(&PmuSample::new(&Sample::of(overflow, None), Some(frame), source));
        }
    }

    #[inline]
    fn of_software(&'static self) -> Option<&'static ProcessorMemory<K, E>> {
        let counts = FacilityOf::<K>::SOFTWARE;
        if counts { self.processors.get(K::this_processor()) } else { None }
    }
}

/// Checks that a kernel counts an event that is to be profiled, if it is a software event.
pub(super) fn check_software<K: Kernel>(event: &Event) -> Result<(), PmuError> {
    if !FacilityOf::<K>::SOFTWARE && event.software_event().is_some() {
        return Err(CounterError::SoftwareUnsupported.into());
    }
    check_clock::<K>(event)
}

/// Checks that a kernel can sample an event that is a clock.
pub(super) fn check_clock<K: Kernel>(event: &Event) -> Result<(), PmuError> {
    let is_clock = FacilityOf::<K>::SOFTWARE
        && event.period().is_some()
        && event.software_event().is_some_and(SoftwareEvent::is_clock);
    if is_clock && !K::CLOCK_TIMER { Err(PmuError::NoClockTimer) } else { Ok(()) }
}

impl<K: Kernel, const E: usize> ProcessorMemory<K, E> {
    /// Sets the timer, unless it is set for this time already.
    fn set_clock_timer(&self, now: u64, left: Option<u64>, was_due: bool) {
        // At least a nanosecond: 0 stands for no time.
        let at = left.map(|left| now.saturating_add(left.max(1)));
        // A timer that has fired is to be set again, even for the time that is stored.
        if self.clock_timer.swap(at.unwrap_or(0), Relaxed) != at.unwrap_or(0) || was_due {
            K::set_clock_timer(at);
        }
    }
}
