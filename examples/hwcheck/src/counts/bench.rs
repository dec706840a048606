//! One measurement: an event counted over a workload, on counters that the driver took.

use pmu_core::access::AccessErrorKind;
use pmu_core::error::CounterError;
use pmu_core::{CounterSession, CounterUnit, Event, Events};

use crate::machine::interrupts;
use crate::machine::workload::{Memory, Workload};
use crate::registers::access::Registers;
use crate::registers::driver::{DriverMsr, NoInterrupts};
use crate::registers::stop::Stop;
use crate::report::count::Count;

/// The tools of a measurement.
pub(crate) struct Bench<'c, 'a> {
    pub(crate) registers: &'a Registers<'a>,
    pub(crate) unit: &'c CounterUnit,
    pub(crate) counters: &'c mut Taken<'a>,
    pub(crate) memory: &'c Memory,
    /// Number of runs of each length.
    pub(crate) runs: u32,
}

/// The counters, taken by the driver.
type Taken<'a> = CounterSession<'a, Events<'a>, (DriverMsr<'a, 'a>, NoInterrupts)>;

/// An error of the driver that ends the work; any other is the claim's.
pub(crate) fn stop_of(error: CounterError) -> Result<(), Stop> {
    match error {
        CounterError::Unchanged(fault) | CounterError::StateUnknown(fault)
            if fault.kind != AccessErrorKind::Fault =>
        {
            Err(Stop::Access { register: fault.register, kind: fault.kind })
        }
        _ => Ok(()),
    }
}

impl Bench<'_, '_> {
    /// Counts an event in a workload, and returns nothing where the driver refuses the event.
    pub(crate) fn count(
        &mut self,
        event: &Event,
        workload: Workload,
        iterations: u64,
    ) -> Result<Option<u64>, Stop> {
        match self.try_count(event, workload, iterations) {
            Ok(count) => Ok(Some(count)),
            Err(error) => stop_of(error).map(|()| None),
        }
    }

    fn try_count(
        &mut self,
        event: &Event,
        workload: Workload,
        iterations: u64,
    ) -> Result<u64, CounterError> {
        let event = self.counters.open(self.unit, &[*event])?;
        let counted = self.counters.enable(event, 0).and_then(|()| {
            self.registers.machine.run(workload, self.memory, iterations);
            self.counters.disable(event, 0)
        });
        let closed = self.counters.close(event, 0)?;
        Ok(counted.map(|_| closed.value)?)
    }

    /// Counts an event in two lengths of a workload, several times: the least difference and the greatest.
    pub(crate) fn measure(
        &mut self,
        event: &Event,
        workload: Workload,
        [short, long]: [u64; 2],
    ) -> Result<Option<Count>, Stop> {
        let machine = self.registers.machine;
        let before = interrupts::counted(machine);
        let (mut shorts, mut longs) = (Vec::new(), Vec::new());
        for _ in 0..self.runs.max(1) {
            self.registers.check_others()?;
            let (Some(one), Some(other)) =
                (self.count(event, workload, short)?, self.count(event, workload, long)?)
            else {
                return Ok(None);
            };
            shorts.push(one);
            longs.push(other);
        }
        let least = |of: &[u64]| of.iter().copied().min().unwrap_or(0);
        let (shortest, longest) = (least(&shorts), least(&longs));
        let greatest = longs.iter().copied().max().unwrap_or(0);
        let more = longs.iter().filter(|count| **count > longest).count();
        Ok(Some(Count {
            workload: workload.name(),
            iterations: long - short,
            known: None,
            least: longest.saturating_sub(shortest),
            greatest: greatest.saturating_sub(shortest),
            runs: self.runs.max(1),
            runs_with_more: more as u32,
            interrupts: interrupts::counted(machine).saturating_sub(before),
        }))
    }
}
