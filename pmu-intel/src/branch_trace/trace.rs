//! The trace, and its interrupt path: each performance interrupt reads out the branches.

use pmu_core::Snapshot;
use pmu_core::branches::Branch;
use pmu_core::facility::{Facility, Interrupted};
use pmu_core::msr::{MsrAccess, MsrBackend, MsrFault};

use crate::branch_trace::memory::{BranchTraceMemory, STOP};
use crate::branch_trace::settle::trace_bits;
use crate::debug_store::area::PebsDsSaveArea;
use crate::debug_store::support::DebugStoreSupport;
use crate::precise::memory::{PreciseMemory, RESETS};
use crate::precise::registers::STATUS_OVF_BUFFER;
use crate::registers::DebugCtl;

/// A processor's ability to trace branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct BranchTraceUnit {
    /// The processor can leave out branches by privilege level.
    pub(crate) filters: bool,
}

impl BranchTraceUnit {
    /// Detects the branch trace store of the processor that executes the call, which `processor` describes. Returns
    /// `None` if CPUID or `IA32_MISC_ENABLE` declares none, or if the DS save area has 32-bit fields.
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// The read of `IA32_MISC_ENABLE` failed.
    pub fn detect<M: MsrBackend>(processor: &Snapshot, msr: &M) -> Result<Option<Self>, MsrFault> {
        let support = DebugStoreSupport::detect(processor, msr)?;
        // SDM vol. 2A, CPUID leaf 1, ECX bit 4, DS-CPL: BTS_OFF_OS and BTS_OFF_USR exist.
        let filters = processor.leaf(1, 0).ecx >> 4 & 1 != 0;
        Ok((support.has_bts() && support.dtes64).then_some(Self { filters }))
    }
}

/// The branch trace of one processor (BTS), as a facility of the [source](pmu_core::EventSource::Facility) of its
/// events. The processor writes each taken branch to memory, while [`trace`](Self::trace) asks for it. No event asks
/// for a trace: its branches go to the closure `R`.
///
/// While the trace runs, each taken branch takes many additional cycles. Each performance interrupt passes all branches
/// in the buffer to the closure. The cause of the interrupt may be a counter or the buffer, of which three quarters are
/// full. If branches of the kernel are traced, the trace is stopped while the interrupt is serviced. That takes two
/// reads and two writes of `IA32_DEBUGCTL` per interrupt. If only branches of user mode are traced, the interrupt
/// accesses no register for the trace.
///
/// ```
/// use core::sync::atomic::AtomicU64;
/// use pmu_core::branches::Branch;
/// use pmu_core::{CounterError, CounterSession, CounterUnit, EventEntry, EventTable, OpenedEvents, Platform};
/// use pmu_core::msr::MsrBackend;
/// use pmu_intel::branch_trace::{BranchTrace, BranchTraceMemory, BranchTraceUnit};
/// static TRACE: BranchTraceMemory<[AtomicU64; 4096]> = BranchTraceMemory::new(); // one per processor
/// static EVENTS: EventTable<[EventEntry; 8]> = EventTable::new(); // one per processor
/// # fn push(_from: u64, _to: u64) {}
///
/// type Source<'a> = OpenedEvents<'a, BranchTrace<fn(Branch)>>;
///
/// /// The trace of a processor, for its sessions and for its interrupt handler.
/// fn trace(unit: BranchTraceUnit) -> BranchTrace<fn(Branch)> {
///     // SAFETY: TRACE is this processor's alone. The kernel's statics are mapped, writable, in each address space.
///     // The kernel has no other driver of the Debug Store. Its backend keeps no address.
///     unsafe { BranchTrace::new(unit, &TRACE, None, |branch| push(branch.from, branch.to)) }
/// }
///
/// fn source<'a>(counters: &'a CounterUnit, unit: BranchTraceUnit) -> Source<'a> {
///     OpenedEvents::new(counters, &EVENTS).with(trace(unit))
/// }
///
/// /// Traces a function in user mode.
/// fn traced<M: MsrBackend, P: Platform>(
///     session: &mut CounterSession<'_, Source<'_>, M, P>,
///     unit: BranchTraceUnit,
///     function: fn(),
/// ) -> Result<(), CounterError> {
///     trace(unit).trace(session, true, false)?;
///     function();
///     trace(unit).trace(session, false, false)
/// }
/// ```
///
/// # Context
/// Any context, including interrupt and NMI.
#[derive(Clone, Copy, Debug)]
pub struct BranchTrace<R> {
    pub(crate) unit: BranchTraceUnit,
    pub(crate) memory: &'static BranchTraceMemory,
    pub(crate) beside: Option<&'static PreciseMemory>,
    pub(crate) report: R,
    /// The value of the trace's bits that the pass restores; 0: none.
    stopped: u64,
}

impl<R: Fn(Branch) + Copy> BranchTrace<R> {
    /// Makes the facility of one processor, which `unit` describes. `report` gets the branches, the oldest first.
    ///
    /// If the session also has [`Pebs`](crate::precise::Pebs), pass the memory of the precise records as `beside`: both
    /// share one DS save area. The source then has both as a pair, in either order. If `beside` is `None`, the trace
    /// owns `IA32_DS_AREA`.
    ///
    /// # Context
    /// Any. `report` is called in tasks and in the interrupt handler, which may be an NMI.
    ///
    /// # Safety
    /// As long as a session has the facility:
    /// - The pages of `memory` and of `beside` are mapped and writable in *every* address space in which this processor
    ///   runs.
    /// - `memory` and `beside` are used on this processor only. The session has no
    ///   [`Pebs`](crate::precise::Pebs) with another memory than `beside`.
    /// - No other code writes `IA32_DS_AREA`, the bits of [`BRANCH_TRACE`](crate::debug_store::BRANCH_TRACE) in
    ///   `IA32_DEBUGCTL`, or the words of the DS save area.
    /// - If the registers lose their contents, as in a suspend, the session is
    ///   [suspended](pmu_core::CounterSession::suspend) before, or
    ///   [programmed again](pmu_core::CounterSession::reprogram) before its next operation.
    /// - The session's MSR backend, and that of [`drain`](Self::drain), meet the requirements of
    ///   [`write_ds_area`](crate::debug_store::write_ds_area).
    pub const unsafe fn new(
        unit: BranchTraceUnit,
        memory: &'static BranchTraceMemory,
        beside: Option<&'static PreciseMemory>,
        report: R,
    ) -> Self {
        Self { unit, memory, beside, report, stopped: 0 }
    }

    /// Returns the area that names the buffer.
    pub(crate) fn area(&self) -> &'static PebsDsSaveArea<RESETS> {
        self.beside.map_or_else(|| self.memory.save_area(), PreciseMemory::save_area)
    }
}

impl<R: Fn(Branch) + Copy> Facility for BranchTrace<R> {
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
        self.memory.drain(self.area(), self.report);
        Ok(u32::from(interrupted.status & STATUS_OVF_BUFFER != 0))
    }

    fn end<M: MsrBackend>(&mut self, msr: &M) -> Result<(), MsrFault> {
        match core::mem::take(&mut self.stopped) {
            0 => Ok(()),
            value => msr.update_retrying(trace_bits().set_to(value)).map(|_| ()),
        }
    }
}
