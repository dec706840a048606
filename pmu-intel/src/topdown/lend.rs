//! Suspends the top-down counters while counters are lent, for instance to a guest, and resumes them afterward.

use pmu_core::{Facility, FacilityControl, Interrupted, MsrAccess, MsrBackend, MsrFault};

use crate::topdown::access::{BITS, NotWritten};
use crate::topdown::counter::TopDownCounter;
use crate::topdown::harvest::NotHarvested;
use crate::topdown::interrupt::TopDownInterrupt;

/// Handles overflows in the same way as a [`TopDownInterrupt`].
impl<R: MsrBackend> Facility for TopDownCounter<'_, R> {
    fn status_bits(&self) -> u64 {
        TopDownInterrupt::new(&self.unit, self.memory).status_bits()
    }

    fn collect<M: MsrBackend>(
        &mut self,
        msr: &M,
        interrupted: Interrupted<'_>,
    ) -> Result<u32, MsrFault> {
        TopDownInterrupt::new(&self.unit, self.memory).collect(msr, interrupted)
    }
}

/// On a P-core, `suspend` stops fixed counter 3, and sets fixed counter 3 and `MSR_PERF_METRICS` to 0. On an E-core,
/// the session suspends the top-down events together with its other events. All register accesses use the backend that
/// was passed to [`take`](TopDownCounter::take).
impl<R: MsrBackend> FacilityControl for TopDownCounter<'_, R> {
    fn suspend<M: MsrBackend>(&mut self, _: &M) -> Result<(), MsrFault> {
        if !self.is_open || self.lent.is_some() || !self.unit.has_metrics() {
            return Ok(());
        }
        let counting = self.memory.is_counting();
        if counting {
            self.memory.begin();
            let suspended = self.stop_for_borrower();
            self.memory.end();
            suspended?;
        }
        self.lent = Some(counting);
        Ok(())
    }

    fn resume<M: MsrBackend>(&mut self, _: &M) -> Result<(), MsrFault> {
        let Some(counting) = self.lent else { return Ok(()) };
        if counting {
            self.unit.acknowledge(&self.msr, BITS)?;
            self.unit.clear_pair(&self.msr).map_err(NotWritten::fault)?;
            self.memory.take_wrap();
            self.memory.set_stale(false);
            self.memory.set_counting(true);
            let bits = self.unit.control().set_to(self.running_bits());
            let started = self.msr.update_retrying(bits);
            self.memory.set_halted(started.is_err());
            started.inspect_err(|_| self.memory.set_counting(false))?;
        } else {
            // The borrower may have left something there.
            self.memory.set_stale(true);
        }
        self.lent = None;
        Ok(())
    }
}

impl<R: MsrBackend> TopDownCounter<'_, R> {
    fn stop_for_borrower(&self) -> Result<(), MsrFault> {
        let control = self.unit.control();
        self.msr.update_retrying(control.set_to(0))?;
        match self.unit.harvest(&self.msr, self.memory) {
            Ok(()) => {
                self.memory.set_counting(false);
                Ok(())
            }
            Err(NotHarvested::Unchanged(fault)) => {
                let restarted = self.msr.update_retrying(control.set_to(self.running_bits()));
                self.memory.set_halted(restarted.is_err());
                Err(fault)
            }
            Err(NotHarvested::Stale(fault)) => {
                self.memory.set_stale(true);
                self.memory.set_counting(false);
                Err(fault)
            }
        }
    }
}
