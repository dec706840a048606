//! Suspends the trace while counters are lent, for instance to a guest, and resumes the trace afterward.

use pmu_core::{Branch, Facility, FacilityControl, Interrupted, MsrBackend, MsrFault};

use crate::branch_trace::interrupt::BranchTrace;
use crate::branch_trace::tracer::BranchTracer;

/// Suspends a [`BranchTracer`] while a session's counters are lent. Pass this value to
/// [`lend_with`](pmu_core::CounterSession::lend_with). [`BranchTracer::lent`] creates the value.
#[derive(Debug)]
pub struct LentBranchTrace<'s, M, F> {
    tracer: &'s mut BranchTracer<M>,
    report: F,
}

impl<M: MsrBackend> BranchTracer<M> {
    /// Returns an argument for [`lend_with`](pmu_core::CounterSession::lend_with). With this argument, `lend_with`
    /// suspends the branch trace while a session's counters are lent, for instance to a guest. `report` receives the
    /// branches that are in the trace buffer.
    pub fn lent<F: FnMut(Branch)>(&mut self, report: F) -> LentBranchTrace<'_, M, F> {
        LentBranchTrace { tracer: self, report }
    }
}

/// Behaves like a [`BranchTrace`] of the tracer's memory.
impl<R: MsrBackend, F: FnMut(Branch)> Facility for LentBranchTrace<'_, R, F> {
    fn status_bits(&self) -> u64 {
        BranchTrace::new(self.tracer.memory, None, |_| ()).status_bits()
    }

    fn collect<M: MsrBackend>(
        &mut self,
        msr: &M,
        interrupted: Interrupted<'_>,
    ) -> Result<u32, MsrFault> {
        let tracer = &self.tracer;
        let mut trace = BranchTrace::of_area(tracer.memory, tracer.area(), &mut self.report);
        trace.begin(msr)?;
        let collected = trace.collect(msr, interrupted);
        collected.and_then(|count| trace.end(msr).map(|()| count))
    }
}

/// All register accesses use the backend that the tracer owns. The argument `msr` is ignored.
impl<R: MsrBackend, F: FnMut(Branch)> FacilityControl for LentBranchTrace<'_, R, F> {
    fn suspend<M: MsrBackend>(&mut self, _: &M) -> Result<(), MsrFault> {
        let tracer = &mut *self.tracer;
        if tracer.lent.is_some() || !tracer.is_open() {
            return Ok(());
        }
        let mode = tracer.memory.mode();
        if mode != 0 {
            tracer.disable()?;
            tracer.memory.drain(tracer.area(), &mut self.report);
            tracer.memory.set_mode(0);
        }
        tracer.lent = Some(mode);
        Ok(())
    }

    fn resume<M: MsrBackend>(&mut self, _: &M) -> Result<(), MsrFault> {
        let tracer = &mut *self.tracer;
        let Some(mode) = tracer.lent else { return Ok(()) };
        if mode != 0 {
            tracer.memory.set_mode(mode);
            tracer.enable().inspect_err(|_| tracer.memory.set_mode(0))?;
        }
        tracer.lent = None;
        Ok(())
    }
}
