//! Events whose samples the processor itself records.

use crate::counters::events::event::Event;
use crate::counters::events::membership::Membership;
use crate::precise::parts::SampleParts;
use crate::precise::precision::Precision;

impl Event {
    /// Makes the event precise: the processor itself records each sample, so that the sample has the address of the
    /// instruction that caused the event: [`Sample::address`](crate::Sample::address). Intel's processors write records
    /// to memory (PEBS).
    ///
    /// The event needs a [period](Self::every). The session's event source must have the facility, and the processor
    /// must be able to record the event. Otherwise opening the event fails with
    /// [`NotPrecise`](crate::CounterError::NotPrecise). A thread's event is not counted on a core that cannot record
    /// it.
    ///
    /// A processor may count another event in the event's place, of which it can write records. The event's
    /// [`select`](crate::thread::SavedEvent::select) stays as it was opened.
    ///
    /// There are two ways to the last branches before a precise sample:
    /// - [`with_branches`](Self::with_branches): the session records the branches, and
    ///   [`Sample::branches`](crate::Sample::branches) returns them. The handler reads them from registers, so the
    ///   processor interrupts for each record.
    /// - [`recording`](Self::recording) with [`SampleParts::branches`]: the processor copies the branches into the
    ///   record, so many records can wait for one interrupt. `Pebs::record` of `pmu-intel` returns the record with its
    ///   branches. This request does not start the recording of branches.
    ///
    /// ```
    /// use pmu_core::{Event, GenericEvent};
    /// use pmu_core::precise::{Precision, SampleParts};
    /// // Every 10,007th branch of user mode, with the general registers.
    /// let branches = Event::generic(GenericEvent::Branches).user_only().every(10_007);
    /// let branches = branches.precise(Precision::ZeroSkidRequested).recording(SampleParts::REGISTERS);
    /// assert_eq!(branches.precision(), Some(Precision::ZeroSkidRequested));
    /// ```
    #[must_use]
    pub const fn precise(mut self, precision: Precision) -> Self {
        self.precise = self.precise.with_precision(precision);
        self
    }

    /// Adds parts to the samples of a [precise](Self::precise) event.
    #[must_use]
    pub const fn recording(mut self, parts: SampleParts) -> Self {
        self.precise = self.precise.with_parts(parts);
        self
    }

    /// Samples only loads with a latency of at least `cycles` (perf's `ldlat`). The event must be
    /// [precise](Self::precise), and must be the processor's load-latency event: `MEM_TRANS_RETIRED.LOAD_LATENCY`, or
    /// `MEM_UOPS_RETIRED.LOAD_LATENCY` on E-cores. Each sample then has the part [`ACCESS`](SampleParts::ACCESS).
    ///
    /// A processor has one threshold of latency. Events with another threshold do not run at the same time:
    /// [rotating](Self::rotating) events take turns.
    ///
    /// Golden Cove counts the event only beside the event 0x8203, which comes before it in the same group. Alone, the
    /// event is refused with [`NeedsBeside`](crate::precise::NotPrecise::NeedsBeside).
    ///
    /// ```
    /// # use pmu_core::{CounterSession, CounterUnit, EventSource, EventsError, GroupId, Platform};
    /// # use pmu_core::msr::MsrBackend;
    /// use pmu_core::{Event, EventSelect};
    /// use pmu_core::precise::{Precision, SampleParts};
    /// // MEM_TRANS_RETIRED.LOAD_LATENCY: loads that take 64 cycles or more.
    /// let loads = Event::raw(EventSelect::from_bits(0x01CD)).every(10_007);
    /// let loads = loads.precise(Precision::ZeroSkidRequested).latency_at_least(64);
    /// assert!(loads.parts().contains(SampleParts::ACCESS));
    /// /// Opens the event on Golden Cove. Other P-cores open `loads` alone.
    /// fn open_on_golden_cove<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
    ///     unit: &CounterUnit,
    ///     loads: Event,
    /// ) -> Result<GroupId, EventsError> {
    ///     counters.open_group(unit, &[Event::raw(EventSelect::from_bits(0x8203)), loads])
    /// }
    /// ```
    #[must_use]
    pub const fn latency_at_least(mut self, cycles: u16) -> Self {
        self.precise = self.precise.with_parts(SampleParts::ACCESS).with_latency();
        self.extra.value = cycles as u64;
        self.flags |= Membership::EXTRA;
        self
    }

    /// Returns the requested precision, or `None` if the event is not [precise](Self::precise).
    pub const fn precision(&self) -> Option<Precision> {
        self.precise.precision()
    }

    /// Returns the [parts](Self::recording) of the event's samples.
    pub const fn parts(&self) -> SampleParts {
        self.precise.parts()
    }

    /// Returns the minimum [latency](Self::latency_at_least) of the sampled loads, in cycles, if one was set.
    pub const fn latency(&self) -> Option<u16> {
        if self.precise.has_latency() { Some(self.extra.value as u16) } else { None }
    }
}
