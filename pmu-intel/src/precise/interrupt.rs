//! The interrupt path: serves the interrupt of a buffer that has reached its threshold.

use pmu_core::{CounterSet, Facility, Interrupted, MsrBackend, MsrFault};

use crate::precise::memory::PreciseMemory;
use crate::precise::report::PreciseReport;
use crate::precise::unit::PreciseUnit;

/// Reports a processor's precise records in the performance interrupt: a [`Facility`] for
/// [`service_with`](pmu_core::service_with).
///
/// The facility passes each record to a closure, and then acknowledges the interrupt.
///
/// # Context
/// Any context, including interrupt and NMI.
#[derive(Debug)]
pub struct Precise<'a, F> {
    unit: &'a PreciseUnit,
    memory: &'a PreciseMemory,
    report: F,
}

impl<'a, F: FnMut(&PreciseReport<'_>)> Precise<'a, F> {
    /// Creates the facility. `unit` and `memory` are the arguments with which the processor's recorder was
    /// [taken](crate::precise::PreciseRecorder::take). While no recorder uses the memory, the facility accesses no
    /// register in an interrupt.
    pub const fn new(unit: &'a PreciseUnit, memory: &'a PreciseMemory, report: F) -> Self {
        Self { unit, memory, report }
    }
}

impl<F: FnMut(&PreciseReport<'_>)> Facility for Precise<'_, F> {
    fn status_bits(&self) -> u64 {
        if self.memory.is_taken() { self.unit.status_bit() } else { 0 }
    }

    fn own_counters(&self) -> CounterSet {
        self.memory.reserved()
    }

    fn collect<M: MsrBackend>(
        &mut self,
        msr: &M,
        interrupted: Interrupted<'_>,
    ) -> Result<u32, MsrFault> {
        let is_unread = interrupted.status == 0;
        if interrupted.status & self.status_bits() == 0 && !is_unread || !self.memory.is_taken() {
            return Ok(0);
        }
        let mut found = false;
        let report = &mut self.report;
        self.memory.drain(self.unit, msr, &mut |record: &PreciseReport<'_>| {
            found = true;
            report(record);
        })?;
        Ok(u32::from(!is_unread || found))
    }
}
