//! The interrupt path: a sample is read and reported, and the unit begins its next period.

use pmu_core::{Facility, Interrupted, MsrBackend, MsrFault};

use crate::ibs::memory::{IbsMemory, IbsState};
use crate::ibs::record::IbsRecord;
use crate::ibs::unit::IbsUnit;

/// Reports the samples of one sampling unit in the performance interrupt: a [`Facility`] for
/// [`service_with`](pmu_core::service_with).
///
/// To service both units of a processor, pass a pair of `Ibs` to `service_with`. The facility passes each sample to a
/// closure. The unit begins its next period only after the closure has returned.
///
/// # Context
/// Any context, including interrupt and NMI.
#[derive(Debug)]
pub struct Ibs<'a, F> {
    unit: &'a IbsUnit,
    memory: &'a IbsMemory,
    report: F,
}

impl<'a, F: FnMut(&IbsRecord)> Ibs<'a, F> {
    /// Creates the facility. Pass the same `unit` and `memory` as to
    /// [`IbsSampler::take`](crate::ibs::IbsSampler::take). The facility calls `report` with each sample. While the unit
    /// is stopped, the facility accesses the unit's registers only if the last sample's interrupt has not come yet.
    pub const fn new(unit: &'a IbsUnit, memory: &'a IbsMemory, report: F) -> Self {
        Self { unit, memory, report }
    }

    /// Reads a sample and reports it, if it is asked for. A late sample that equals the newest one is none.
    fn report(&mut self, msr: &impl MsrBackend, control: Option<u64>) -> Result<(), MsrFault> {
        let physical = self.memory.wants_physical();
        let record = IbsRecord::read(self.unit, msr, control, physical)
            .inspect_err(|_| self.memory.count_lost())?;
        let differs = self.memory.remember(record.identity());
        if control.is_none() && !differs {
            return Ok(());
        }
        let wanted = !record.is_void(self.unit)
            && self.memory.wants(record.address(self.unit))
            && record.exceeds(self.memory.latency());
        if wanted {
            (self.report)(&record);
        } else {
            self.memory.count_dropped();
        }
        Ok(())
    }
}

impl<F: FnMut(&IbsRecord)> Facility for Ibs<'_, F> {
    const ALONE: bool = true;

    fn collect<M: MsrBackend>(&mut self, msr: &M, _: Interrupted<'_>) -> Result<u32, MsrFault> {
        let state = self.memory.state();
        if !state.is_watched() {
            return Ok(0);
        }
        let control = self.unit.read_control(msr).inspect_err(|_| self.memory.note_unread())?;
        if self.unit.is_valid(control) {
            self.collect_sample(msr, state, control)
        } else {
            self.collect_late(msr, state, control)
        }
    }

    fn while_lent(&mut self) -> u32 {
        u32::from(self.memory.take_late_unserved())
    }
}

impl<F: FnMut(&IbsRecord)> Ibs<'_, F> {
    /// Reports the sample, and lets the unit sample again, unless it is stopped.
    fn collect_sample<M: MsrBackend>(
        &mut self,
        msr: &M,
        state: IbsState,
        control: u64,
    ) -> Result<u32, MsrFault> {
        let waited = state.is_waiting();
        let reported = if waited { Ok(()) } else { self.report(msr, Some(control)) };
        let next = if state.is_sampling() {
            self.unit.enable(msr, self.memory.values(), control)
        } else {
            self.unit.clear(msr, control)
        };
        self.memory.served(next.is_ok());
        reported.and(next)?;
        Ok(u32::from(!waited || state.is_late()))
    }

    /// Reports the sample of a stopped unit whose interrupt has not come, and clears the sample.
    pub(crate) fn take_pending<M: MsrBackend>(&mut self, msr: &M) -> Result<(), MsrFault> {
        if !self.memory.state().is_late() {
            return Ok(());
        }
        let control = self.unit.read_control(msr)?;
        if !self.unit.is_valid(control) || !self.memory.begin_report() {
            return Ok(());
        }
        let reported = self.report(msr, Some(control));
        let cleared = self.unit.clear(msr, control);
        if cleared.is_ok() {
            self.memory.end_report();
        }
        reported.and(cleared)
    }

    /// Claims one interrupt after a stop, and reports its sample, if the stop overwrote the valid bit of one.
    fn collect_late<M: MsrBackend>(
        &mut self,
        msr: &M,
        state: IbsState,
        control: u64,
    ) -> Result<u32, MsrFault> {
        if state.is_stopping() && self.unit.may_run(control) {
            // The stop has not reached the unit: the interrupt is another one's, and the unit's may follow.
            return Ok(0);
        }
        let late = self.memory.take_late();
        if late && !state.is_sampling() && !self.unit.capabilities().control2() {
            self.report(msr, None)?;
        }
        Ok(u32::from(late))
    }
}
