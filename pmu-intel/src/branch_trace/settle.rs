//! The trace as a facility of the session: it runs while it is asked for, but not for a borrower of the counters.
//!
//! The interrupt may come between any two accesses. So the memory's mode is set before the processor traces, and is
//! cleared after the last branch was read out.

use pmu_core::branches::Branch;
use pmu_core::facility::{EventFacility, Running, Unsettled};
use pmu_core::msr::{MsrAccess, MsrAddress, MsrBackend, MsrFault, RegisterBits};
use pmu_core::{CounterError, CounterSession, CounterSet, EventSource, Platform};

use crate::branch_trace::memory::{BranchTraceMemory, KERNEL, STOP, USER};
use crate::branch_trace::trace::BranchTrace;
use crate::debug_store::operations::BRANCH_TRACE;
use crate::precise::memory::PreciseMemory;
use crate::registers::{DebugCtl, IA32_DEBUGCTL, IA32_DS_AREA};

impl<R: Fn(Branch) + Copy> BranchTrace<R> {
    /// Traces the branches of user mode, of the kernel, or of both; of neither: ends the trace. The branches of the
    /// former trace are reported first. `session` is the session whose source has this facility.
    ///
    /// The trace pauses while the counters are [lent](CounterSession::lend) or suspended, and ends with the session.
    ///
    /// # Context
    /// Task, on the session's processor.
    ///
    /// # Errors
    /// [`Faulted`](CounterError::Faulted): a register access failed. If the trace was to begin, it is not asked for any
    /// more. If it was to end, the processor may still trace: [`is_tracing`](Self::is_tracing). The call can be
    /// repeated.
    pub fn trace<S: EventSource, M: MsrBackend, P: Platform>(
        &self,
        session: &mut CounterSession<'_, S, M, P>,
        user: bool,
        kernel: bool,
    ) -> Result<(), CounterError> {
        let of = |bit, set: bool| if set { bit } else { 0 };
        let stops = kernel || user && !self.unit.filters;
        self.memory.request(of(USER, user) | of(KERNEL, kernel) | of(STOP, stops));
        session.settle_requests()
    }

    /// Reports the branches that the buffer has. `msr` accesses the registers of the session's processor.
    ///
    /// # Context
    /// Task, on the session's processor.
    ///
    /// # Errors
    /// A register access failed. If the trace could not go on, it does when an event next starts or stops.
    pub fn drain<M: MsrBackend>(&self, msr: &M) -> Result<(), MsrFault> {
        if self.memory.mode() == 0 {
            return Ok(());
        }
        self.memory.set_known(false);
        self.disable(msr)?;
        self.memory.drain(self.area(), self.report);
        self.enable(msr)?;
        self.memory.set_known(true);
        Ok(())
    }

    /// Returns whether the processor traces.
    pub fn is_tracing(&self) -> bool {
        self.memory.mode() != 0
    }

    /// Brings the registers to what is asked for.
    fn begin_or_end<M: MsrBackend>(&self, msr: &M, wanted: u8) -> Result<(), MsrFault> {
        let memory = self.memory;
        memory.set_known(false);
        if memory.mode() != 0 {
            self.stop(msr)?;
        }
        if wanted != 0 {
            if memory.take() {
                // A predecessor may have left its trace on.
                self.disable(msr).inspect_err(|_| memory.give_back())?;
                memory.name_in(self.area());
                self.beside.inspect(|beside| beside.set_traced(true));
            }
            memory.set_mode(wanted);
            self.enable(msr).inspect_err(|_| {
                if self.disable(msr).is_ok() {
                    memory.set_mode(0);
                }
            })?;
        }
        memory.set_known(true);
        Ok(())
    }

    /// Ends the trace for a borrower of the counters, or for good.
    fn end<M: MsrBackend>(&self, msr: &M, is_for_good: bool) -> Result<(), MsrFault> {
        let memory = self.memory;
        if !memory.is_taken() {
            return Ok(());
        }
        if memory.mode() != 0 || !memory.is_known() {
            self.stop(msr)?;
        }
        if is_for_good {
            // The area only after the trace: the processor would trace to address 0.
            if !self.beside.is_some_and(|records| records.control_area().is_recording()) {
                self.write_area(msr, 0)?;
            }
            BranchTraceMemory::forget_in(self.area());
            self.beside.inspect(|beside| beside.set_traced(false));
            memory.give_back();
        }
        Ok(())
    }

    fn stop<M: MsrBackend>(&self, msr: &M) -> Result<(), MsrFault> {
        self.disable(msr)?;
        self.memory.drain(self.area(), self.report);
        self.memory.set_mode(0);
        Ok(())
    }

    fn disable<M: MsrBackend>(&self, msr: &M) -> Result<(), MsrFault> {
        msr.update_retrying(trace_bits().set_to(0)).map(|_| ())
    }

    /// Has the processor trace. The area comes first: a suspend may have cleared its register.
    fn enable<M: MsrBackend>(&self, msr: &M) -> Result<(), MsrFault> {
        let area =
            self.beside.map_or_else(|| self.memory.area_address(), PreciseMemory::area_address);
        self.write_area(msr, area)?;
        let value = trace_value(self.memory.mode(), self.unit.filters).into_bits();
        msr.update_retrying(trace_bits().set_to(value)).map(|_| ())
    }

    fn write_area<M: MsrBackend>(&self, msr: &M, address: u64) -> Result<(), MsrFault> {
        // SAFETY: 0, or the area of the memory, by the promise of `new`.
        msr.wrmsr_retrying(unsafe { MsrAddress::new(IA32_DS_AREA) }, address)
    }
}

impl<R: Fn(Branch) + Copy> EventFacility for BranchTrace<R> {
    const OFFERS: bool = true;

    fn settle<M: MsrBackend>(&self, msr: &M, running: &Running<'_>) -> Result<(), Unsettled> {
        let (memory, is_request) = (self.memory, self.memory.take_request());
        let unsettled = |fault| Unsettled { counters: CounterSet::NONE, fault };
        if running.are_lent() {
            return self.end(msr, running.are_given_up()).map_err(unsettled);
        }
        let wanted = memory.wanted();
        if memory.mode() == wanted && memory.is_known() {
            return Ok(());
        }
        let settled = self.begin_or_end(msr, wanted).map_err(unsettled);
        if is_request && settled.is_err() {
            memory.withdraw();
        }
        // Otherwise it is tried again with the next change.
        if is_request || running.are_returned() { settled } else { Ok(()) }
    }

    fn lose(&self) {
        self.memory.set_known(false);
    }
}

/// Returns the value of the trace's bits that traces the privilege levels of a mode. Without the filters, all branches
/// are traced.
const fn trace_value(mode: u8, filters: bool) -> DebugCtl {
    DebugCtl::new()
        .with_tr(true)
        .with_bts(true)
        .with_bt_int(true)
        .with_bts_off_os(filters && mode & KERNEL == 0)
        .with_bts_off_usr(filters && mode & USER == 0)
}

/// Returns the trace's bits of the debug control register.
pub(crate) const fn trace_bits() -> RegisterBits {
    // SAFETY: the bits make the processor write branches to the buffer that the area names, by the promise of
    // `BranchTrace::new`. They are set only while the memory is taken.
    unsafe { RegisterBits::new(IA32_DEBUGCTL, BRANCH_TRACE.into_bits()) }
}
