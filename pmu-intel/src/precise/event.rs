//! A request for precise records.

use pmu_core::{Event, Precision, SampleParts};

/// An event for which the processor itself writes records: one precise record whenever the event's counter overflows.
///
/// For a front-end event, pass the value of [`MSR_PEBS_FRONTEND`](crate::precise::registers::MSR_PEBS_FRONTEND) to
/// [`Event::with_extra`]. This value is perf's term `frontend`. A processor has only one such register, so all started
/// front-end events must have the same value. This includes the front-end events that the session only counts.
///
/// From Core 2 to Cascade Lake, the processor writes no records of cycles. There the recorder counts another event in
/// place of cycles: the cycles in which fewer than 16 instructions or micro-operations retire. These are all cycles.
/// Linux does the same.
///
/// The event's [period](Event::every), [tag](Event::tagged), privilege levels and [counters](Event::on) apply to the
/// records. If the event does not count the privilege level of a record's instruction, the record is not reported. A
/// reported record lacks the branches and data addresses of privilege levels that the event does not count.
///
/// ```
/// use pmu_core::{Event, GenericEvent};
/// use pmu_intel::precise::{PreciseEvent, Precision, SampleParts};
/// // Every 10,007th branch of user mode, with the general registers.
/// let branches = Event::generic(GenericEvent::Branches).user_only().every(10_007);
/// let event = PreciseEvent::new(branches, Precision::ZeroSkidRequested).with(SampleParts::REGISTERS);
/// # let _ = event;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PreciseEvent {
    pub(crate) event: Event,
    pub(crate) precision: Precision,
    pub(crate) groups: SampleParts,
    /// Latency of the loads that are sampled, in cycles; 0: the event is not of loads' latencies.
    pub(crate) latency: u16,
    /// The handler loads the counter, and not the processor.
    pub(crate) by_handler: bool,
}

impl PreciseEvent {
    /// Creates a request to record an event. Each record has the instruction's address, the counters that overflowed,
    /// and the time. In PEBS formats before 3, records lack some of these values.
    pub const fn new(event: Event, precision: Precision) -> Self {
        let groups = SampleParts::NONE;
        Self { event, precision, groups, latency: 0, by_handler: false }
    }

    /// Adds groups of data to the event's records.
    #[must_use]
    pub fn with(mut self, groups: SampleParts) -> Self {
        self.groups = self.groups | groups;
        self
    }

    /// Samples only loads with a latency of at least `cycles` (perf's `ldlat`). The event must be the processor's
    /// load-latency event: `MEM_TRANS_RETIRED.LOAD_LATENCY`, or `MEM_UOPS_RETIRED.LOAD_LATENCY` on E-cores. Each record
    /// then has the group [`MEMORY`](SampleParts::ACCESS). The event runs only on counters that can count it, such as
    /// counters 1 to 7 on Golden Cove, also if the event is [raw](Event::raw).
    ///
    /// A processor has only one latency threshold, so all started events must have the same `cycles`.
    ///
    /// ```
    /// use pmu_core::{Event, EventSelect};
    /// use pmu_intel::precise::{PreciseEvent, Precision, SampleParts};
    /// // MEM_TRANS_RETIRED.LOAD_LATENCY of Skylake: loads that take 64 cycles or more.
    /// let loads = Event::raw(EventSelect::from_bits(0x01CD)).every(1_009);
    /// let loads = PreciseEvent::new(loads, Precision::ZeroSkidRequested).with_latency(64);
    /// assert!(loads.groups().contains(SampleParts::ACCESS));
    /// ```
    #[must_use]
    pub fn with_latency(self, cycles: u16) -> Self {
        Self { latency: cycles, ..self.with(SampleParts::ACCESS) }
    }

    /// Makes the interrupt handler, instead of the processor, load the counter with each new period. The processor then
    /// interrupts for each record of the event, and the interrupt handler writes one additional register.
    /// [`PreciseMemory::set_period`](crate::precise::PreciseMemory::set_period) can change the event's period at any
    /// time, for instance to sample at a target frequency.
    #[must_use]
    pub const fn loaded_by_handler(mut self) -> Self {
        self.by_handler = true;
        self
    }

    /// Returns the event that is sampled.
    pub const fn event(&self) -> &Event {
        &self.event
    }

    /// Returns the requested precision: the allowed skid.
    pub const fn precision(&self) -> Precision {
        self.precision
    }

    /// Returns the minimum [latency](Self::with_latency) of the sampled loads, in cycles. Returns 0 if no latency was
    /// set.
    pub const fn latency(&self) -> u16 {
        self.latency
    }

    /// Returns the groups of data that were added to the event's records.
    pub const fn groups(&self) -> SampleParts {
        self.groups
    }
}
