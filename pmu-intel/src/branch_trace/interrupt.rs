//! The interrupt path: each performance interrupt reads out the branches.

use pmu_core::{Branch, Facility, Interrupted, MsrAccess, MsrBackend, MsrFault};

use crate::branch_trace::memory::{BranchTraceMemory, STOP};
use crate::branch_trace::tracer::trace_bits;
use crate::debug_store::area::PebsDsSaveArea;
use crate::precise::memory::{PreciseMemory, RESETS};
use crate::precise::registers::STATUS_OVF_BUFFER;
use crate::registers::DebugCtl;

/// Reads out a processor's branch trace in the performance interrupt: a [`Facility`] for
/// [`service_with`](pmu_core::service_with).
///
/// In each performance interrupt, the facility passes all branches in the trace buffer to a closure. The cause of the
/// interrupt may be a counter or the trace buffer. If branches of the kernel are traced, the facility stops the trace
/// while the interrupt is serviced. Stopping and resuming the trace takes two reads and two writes of `IA32_DEBUGCTL`
/// per interrupt. If only branches of user mode are traced, the facility accesses no register.
///
/// The processor of this example writes both precise records and a branch trace. The precise records are a
/// [facility](crate::precise::Pebs) of the event source, and the tracer was
/// [taken](crate::branch_trace::BranchTracer::take) with `Some(records)`. On a processor without precise records,
/// replace `Some(records)` by `None`.
///
/// ```
/// use pmu_core::{Branch, Claim, CounterMemory, EventSource, MsrBackend, Platform, service_with};
/// use pmu_intel::branch_trace::{BranchTrace, BranchTraceMemory};
/// use pmu_intel::precise::PreciseMemory;
/// # fn push(_from: u64, _to: u64) {}
/// # fn sample(_tag: u64) {}
///
/// /// The kernel's handler of the performance interrupt.
/// fn handler<S: EventSource, M: MsrBackend, P: Platform>(
///     (source, msr, platform, counters): (&S, &M, &P, &CounterMemory),
///     (records, trace): (&PreciseMemory, &BranchTraceMemory), // of this processor
/// ) -> Claim {
///     let traced = BranchTrace::new(trace, Some(records), |branch: Branch| push(branch.from, branch.to));
///     let serviced = service_with(source, msr, platform, counters, traced, |overflow, _| sample(overflow.tag));
///     serviced.map_or(Claim::OursAndMore, |serviced| serviced.claim)
/// }
/// ```
///
/// # Context
/// Any context, including interrupt and NMI.
#[derive(Debug)]
pub struct BranchTrace<'a, F> {
    memory: &'a BranchTraceMemory,
    area: &'a PebsDsSaveArea<RESETS>,
    report: F,
    /// The value of the tracer's bits that the pass restores; 0: none.
    stopped: u64,
}

impl<'a, F: FnMut(Branch)> BranchTrace<'a, F> {
    /// Creates the facility. Pass the same `memory` and `beside` as to
    /// [`BranchTracer::take`](crate::branch_trace::BranchTracer::take). While no branches are traced, the facility
    /// accesses no register in an interrupt.
    pub fn new(
        memory: &'a BranchTraceMemory,
        beside: Option<&'a PreciseMemory>,
        report: F,
    ) -> Self {
        let area = beside.map_or_else(|| memory.save_area(), PreciseMemory::save_area);
        Self::of_area(memory, area, report)
    }

    pub(crate) const fn of_area(
        memory: &'a BranchTraceMemory,
        area: &'a PebsDsSaveArea<RESETS>,
        report: F,
    ) -> Self {
        Self { memory, area, report, stopped: 0 }
    }
}

impl<F: FnMut(Branch)> Facility for BranchTrace<'_, F> {
    fn status_bits(&self) -> u64 {
        if self.memory.mode() != 0 { STATUS_OVF_BUFFER } else { 0 }
    }

    fn begin<M: MsrBackend>(&mut self, msr: &M) -> Result<(), MsrFault> {
        if self.memory.mode() & STOP != 0 {
            let found = msr.update_retrying(trace_bits().set_to(0))? & trace_bits().bits();
            // A task that is about to start or stop the trace has the bits clear.
            let traces = DebugCtl::from_bits(found).tr();
            self.stopped = if traces { found } else { 0 };
        }
        Ok(())
    }

    fn collect<M: MsrBackend>(
        &mut self,
        _: &M,
        interrupted: Interrupted<'_>,
    ) -> Result<u32, MsrFault> {
        if self.memory.mode() == 0 {
            return Ok(0);
        }
        self.memory.drain(self.area, &mut self.report);
        Ok(u32::from(interrupted.status & STATUS_OVF_BUFFER != 0))
    }

    fn end<M: MsrBackend>(&mut self, msr: &M) -> Result<(), MsrFault> {
        match core::mem::take(&mut self.stopped) {
            0 => Ok(()),
            value => msr.update_retrying(trace_bits().set_to(value)).map(|_| ()),
        }
    }
}
