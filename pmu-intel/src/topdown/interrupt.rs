//! The interrupt path of the top-down counters.

use pmu_core::{Facility, Interrupted, MsrBackend, MsrFault};

use crate::topdown::access::{BITS, SLOTS_BIT};
use crate::topdown::counts::TopDownCounts;
use crate::topdown::memory::TopDownMemory;
use crate::topdown::unit::TopDownUnit;

/// Handles overflows of one processor's top-down counters in the performance interrupt, as a [`Facility`]. Fixed
/// counter 3, which counts the slots, and `MSR_PERF_METRICS` overflow together. The facility counts both overflows as
/// one.
///
/// These registers overflow only if the kernel does not read the counts for hours. An overflow raises the performance
/// interrupt, like the overflow of any counter. Without this facility, the interrupt handler would not recognize the
/// performance interrupt of such an overflow.
///
/// ```
/// use pmu_core::{Claim, CounterMemory, EventSource, MsrBackend, Platform, service_with};
/// use pmu_intel::topdown::{TopDownInterrupt, TopDownMemory, TopDownUnit};
/// static TOP_DOWN: TopDownMemory = TopDownMemory::new(); // one per processor
///
/// fn handler<S: EventSource, M: MsrBackend, P: Platform>(
///     (source, msr, platform, counters): (&S, &M, &P, &CounterMemory),
///     unit: &TopDownUnit, // this processor's
/// ) -> Claim {
///     let topdown = TopDownInterrupt::new(unit, &TOP_DOWN);
///     let serviced = service_with(source, msr, platform, counters, topdown, |overflow, topdown| {
///         // Where the slots went up to this sample.
///         let _counts = topdown.read(msr);
///         let _ = overflow;
///     });
///     serviced.map_or(Claim::OursAndMore, |serviced| serviced.claim)
/// }
/// ```
///
/// # Context
/// Any context, including interrupt and NMI, on the processor of the top-down counters.
#[derive(Clone, Copy, Debug)]
pub struct TopDownInterrupt<'a> {
    pub(crate) unit: &'a TopDownUnit,
    pub(crate) memory: &'a TopDownMemory,
}

impl<'a> TopDownInterrupt<'a> {
    /// Creates the facility. Pass the same `unit` and `memory` as to
    /// [`TopDownCounter::take`](crate::topdown::TopDownCounter::take).
    pub const fn new(unit: &'a TopDownUnit, memory: &'a TopDownMemory) -> Self {
        Self { unit, memory }
    }

    /// Returns the counts of all issue slots since [`TopDownCounter::take`](crate::topdown::TopDownCounter::take). The
    /// counts include the slots that were counted for the processor and for threads. The call reads fixed counter 3 and
    /// `MSR_PERF_METRICS`, but does not set them to 0. Therefore each part has an error of at most 1/255 of the slots
    /// since a task last [read](crate::topdown::TopDownCounter::read) the counts.
    ///
    /// Returns `None` on an E-core. On a P-core, returns `None` if no slots are being counted, or if the interrupt came
    /// while a task was reading the counts.
    ///
    /// # Errors
    /// RDPMC failed.
    pub fn read(&self, msr: &impl MsrBackend) -> Result<Option<TopDownCounts>, MsrFault> {
        let memory = self.memory;
        if !self.unit.has_metrics()
            || !memory.is_counting()
            || memory.is_harvesting()
            || memory.is_stale()
        {
            return Ok(None);
        }
        let (totals, pair) = (memory.totals(), self.unit.read_pair(msr)?);
        Ok(Some(totals.plus(&self.unit.counts(pair, 0))))
    }
}

impl Facility for TopDownInterrupt<'_> {
    fn status_bits(&self) -> u64 {
        if self.unit.has_metrics() && self.memory.is_taken() { BITS } else { 0 }
    }

    fn collect<M: MsrBackend>(
        &mut self,
        msr: &M,
        interrupted: Interrupted<'_>,
    ) -> Result<u32, MsrFault> {
        let memory = self.memory;
        let overflowed = interrupted.status & self.status_bits();
        if overflowed == 0 {
            return Ok(memory.take_late().into());
        }
        if memory.is_counting() {
            let wrapped = overflowed & SLOTS_BIT != 0;
            self.unit.harvest_in_interrupt(msr, memory, wrapped)?;
        }
        Ok(1)
    }
}
