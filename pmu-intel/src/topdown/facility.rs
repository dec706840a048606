//! The issue slots and their parts as a facility of events.

use pmu_core::facility::{
    Asked, Division, DivisionMemory, EventFacility, Facility, Interrupted, Running, Unsettled,
};
use pmu_core::msr::{MsrAddress, MsrBackend, MsrFault, PmcIndex};
use pmu_core::{CounterError, CounterId, CounterSet};

use crate::registers::{MSR_PERF_METRICS, RDPMC_METRICS};
use crate::topdown::unit::{SLOTS, TopDownUnit};

/// Bit of the global control register and of the overflow status: the metrics (SDM vol. 4, table 2-2).
const METRICS: u64 = 1 << 48;

/// The facility that divides the issue slots of one processor into [parts](crate::topdown::TopDownPart), on processors
/// that have `MSR_PERF_METRICS`. A session whose event source has it counts the [events](TopDownUnit::events) of the
/// slots and of their parts as it counts other events: of the processor and of threads, in groups, by turns. On an
/// E-core, these events need no facility, and the facility does nothing.
///
/// Fixed counter 3 counts the slots. Each read of the group, and each time that the group leaves its counter, adds the
/// parts to their counts, and sets fixed counter 3 and `MSR_PERF_METRICS` to 0. So a part has an error of at most 1/255
/// of the slots since the read before. Reads at each timer tick keep the error small.
///
/// ```
/// use pmu_core::{CounterSession, EventCount, EventSource, EventsError, Platform};
/// use pmu_core::facility::DivisionMemory;
/// use pmu_core::msr::MsrBackend;
/// use pmu_intel::topdown::{TopDown, TopDownPart, TopDownUnit};
///
/// static MEMORY: DivisionMemory = DivisionMemory::new(); // one per processor
///
/// /// Returns the facility, for the `EventSource` of the processor: `EventSource::facility`.
/// fn facility(this_processor: &'static TopDownUnit) -> TopDown<'static> {
///     TopDown::new(this_processor, &MEMORY)
/// }
///
/// /// Returns the thousandths of a function's issue slots that retired.
/// fn retiring<S: EventSource, M: MsrBackend, P: Platform>(
///     counters: &mut CounterSession<'_, S, M, P>,
///     unit: &TopDownUnit,
///     function: impl FnOnce(),
/// ) -> Result<Option<u32>, EventsError> {
///     let events = unit.events(counters.counters().usable).each(|event| event.user_only());
///     let group = counters.open_group(unit.counters(), &events)?;
///     let mut counts = [EventCount::default(); 9];
///     let counted = counters.start_group(group, 0).and_then(|()| {
///         function();
///         counters.read_group(group, 0, &mut counts)
///     });
///     counters.close_group(group, 0)?; // also after an error
///     let counts = unit.counts(&counts[..counted?]);
///     Ok(counts.per_mille(TopDownPart::Retiring))
/// }
/// ```
///
/// # Context
/// Any context, on the processor of the unit. The session and [`service`](pmu_core::service()) call the methods.
#[derive(Clone, Copy, Debug)]
pub struct TopDown<'a> {
    unit: &'a TopDownUnit,
    memory: &'a DivisionMemory,
}

impl<'a> TopDown<'a> {
    /// Creates the facility of the processor that `unit` describes.
    pub const fn new(unit: &'a TopDownUnit, memory: &'a DivisionMemory) -> Self {
        Self { unit, memory }
    }
}

/// The registers overflow only if the kernel does not read the counts for hours. Fixed counter 3 and the metrics
/// overflow together, which is one interrupt.
impl Facility for TopDown<'_> {
    #[inline]
    fn status_bits(&self) -> u64 {
        if self.unit.has_metrics() { METRICS } else { 0 }
    }

    #[inline]
    fn collect<M: MsrBackend>(
        &mut self,
        _: &M,
        interrupted: Interrupted<'_>,
    ) -> Result<u32, MsrFault> {
        let overflowed = interrupted.status & self.status_bits() != 0;
        let with_slots =
            CounterId::fixed(SLOTS).is_some_and(|slots| interrupted.overflowed.contains(slots));
        Ok(u32::from(overflowed && !with_slots))
    }
}

impl EventFacility for TopDown<'_> {
    const OFFERS: bool = true;
    const DIVIDES: bool = true;

    fn resolve(&self, asked: &mut Asked, counters: CounterSet) -> Result<CounterSet, CounterError> {
        let part = Division::part_of(asked.select).filter(|_| counters.is_empty());
        asked.is_part = part.is_some_and(|part| part < self.unit.metrics());
        Ok(counters)
    }

    fn settle<M: MsrBackend>(&self, msr: &M, running: &Running<'_>) -> Result<(), Unsettled> {
        let Some(Division { counter, shares, .. }) = self.division() else { return Ok(()) };
        if running.are_returned() {
            self.memory.lose();
        } else if running.are_lent() || running.are_switched() && running.on(counter).is_none() {
            // The next owner, or the next thread, reads nothing of this one.
            let cleared = self.memory.clear(msr, shares);
            cleared.map_err(|fault| Unsettled { counters: counter.only(), fault })?;
        }
        Ok(())
    }

    fn lose(&self) {
        self.memory.lose();
    }

    #[inline]
    fn division(&self) -> Option<Division<'_>> {
        let counter = CounterId::fixed(SLOTS).filter(|_| self.unit.has_metrics())?;
        Some(Division {
            counter,
            // SAFETY: the metrics are fractions, and hold no address (SDM vol. 4, MSR_PERF_METRICS).
            shares: unsafe { MsrAddress::new(MSR_PERF_METRICS) },
            rdpmc: PmcIndex::new(RDPMC_METRICS),
            parts: self.unit.metrics(),
            bits: METRICS,
            memory: self.memory,
        })
    }
}
