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
    /// Creates the facility. Pass the same `unit` and `memory` as to
    /// [`PreciseRecorder::take`](crate::precise::PreciseRecorder::take). The facility accesses registers only while a
    /// recorder has taken `memory`.
    pub const fn new(unit: &'a PreciseUnit, memory: &'a PreciseMemory, report: F) -> Self {
        Self { unit, memory, report }
    }
}

impl<F: FnMut(&PreciseReport<'_>)> Facility for Precise<'_, F> {
    fn status_bits(&self) -> u64 {
        if self.memory.is_taken() { self.unit.status_bit() } else { 0 }
    }

    fn own_counters(&self) -> CounterSet {
        self.memory.own_counters()
    }

    fn collect<M: MsrBackend>(
        &mut self,
        msr: &M,
        interrupted: Interrupted<'_>,
    ) -> Result<u32, MsrFault> {
        let interrupts = match interrupted.status {
            _ if !self.memory.is_taken() => false,
            // Another owner's interrupt, or a status that could not be read: the buffer's own threshold tells.
            0 => self.memory.interrupts(self.unit, msr)?,
            status => status & self.status_bits() != 0,
        };
        if interrupts {
            self.memory.drain(self.unit, msr, &mut self.report)?;
        }
        Ok(interrupts.into())
    }
}
