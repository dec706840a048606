//! The branch trace store (BTS): the processor itself writes each taken branch to memory.
//!
//! Read first: Intel SDM vol. 3B, "Branch Trace Store (BTS)" and "BTS and DS Save Area".

pub(crate) mod memory;

use pmu_core::access::{
    AccessFault, RegisterAccess, RegisterAddress, RegisterBackend, RegisterBits,
};
use pmu_core::branches::Branch;
use pmu_core::error::{CounterError, NoFacility};
use pmu_core::facility::{EventFacility, Facility, Interrupted, Running, Unsettled};
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSession, CounterSet, EventSource, Hardware};

use crate::branch_trace::memory::{KERNEL, STOP, USER};
use crate::counters::{INTEL, unit};
use crate::debug_store::{BRANCH_TRACE, DebugStoreSupport, PebsDsSaveArea};
use crate::precise::memory::{PreciseMemory, RESETS};
use crate::precise::registers::STATUS_OVF_BUFFER;
use crate::registers::{DebugCtl, IA32_DEBUGCTL, IA32_DS_AREA};

pub use crate::branch_trace::memory::{BranchTraceMemory, TracedBranches};

/// A processor's ability to trace branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct BranchTraceUnit {
    /// The processor can leave out branches by privilege level.
    pub(crate) filters: bool,
}

impl BranchTraceUnit {
    /// Detects the branch trace store of the processor that executes the call, which `processor` describes.
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// Returns the reason why the processor cannot trace branches, or not as this crate does: a full buffer interrupts
    /// through the counters' entry, and the DS save area has 64-bit fields.
    pub fn detect<M: RegisterBackend>(processor: &Snapshot, msr: &M) -> Result<Self, NoFacility> {
        if processor.vendor() != INTEL {
            return Err(NoFacility::OtherVendor(processor.vendor()));
        }
        let counters = unit(processor, false);
        if let Some(why) = counters.why_absent() {
            return Err(NoFacility::NoCounters(why));
        } else if counters.global().is_none() {
            return Err(NoFacility::NoStatus);
        }
        let support = DebugStoreSupport::detect(processor, msr).map_err(NoFacility::Access)?;
        if !support.debug_store {
            return Err(NoFacility::NotDeclared);
        }
        if !support.has_bts() {
            return Err(NoFacility::Unavailable);
        }
        if !support.dtes64 {
            return Err(NoFacility::NarrowWords);
        }
        // SDM vol. 2A, CPUID leaf 1, ECX bit 4, DS-CPL: BTS_OFF_OS and BTS_OFF_USR exist.
        Ok(Self { filters: processor.leaf(1, 0).ecx >> 4 & 1 != 0 })
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
/// use pmu_core::{CounterSession, CounterUnit, Events, Hardware};
/// use pmu_core::branches::Branch;
/// use pmu_core::error::CounterError;
/// use pmu_core::memory::{EventEntry, EventTable};
/// use pmu_intel::branch_trace::{BranchTrace, BranchTraceMemory, BranchTraceUnit};
/// static TRACE: BranchTraceMemory<[AtomicU64; 4096]> = BranchTraceMemory::new(); // one per processor
/// static EVENTS: EventTable<[EventEntry; 8]> = EventTable::new(); // one per processor
/// # fn push(_from: u64, _to: u64) {}
///
/// type Source<'a> = Events<'a, CounterUnit, BranchTrace<fn(Branch)>>;
///
/// /// The trace of a processor, for its sessions and for its interrupt handler.
/// fn trace(unit: BranchTraceUnit) -> BranchTrace<fn(Branch)> {
///     // SAFETY: TRACE is this processor's alone. The kernel's statics are mapped, writable, in each address space.
///     // The kernel has no other driver of the Debug Store. Its backend keeps no address.
///     unsafe { BranchTrace::new(unit, &TRACE, None, |branch| push(branch.from, branch.to)) }
/// }
///
/// fn source<'a>(counters: &'a CounterUnit, unit: BranchTraceUnit) -> Source<'a> {
///     Events::new(counters, &EVENTS).with(trace(unit))
/// }
///
/// /// Traces a function in user mode.
/// fn traced<H: Hardware>(
///     session: &mut CounterSession<'_, Source<'_>, H>,
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
///
/// # Limitations
/// The branch trace store needs a session that has counters, for its interrupt.
#[doc(alias = "bts")]
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
    /// - No other code writes `IA32_DS_AREA`, the bits of [`BRANCH_TRACE`] in
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

    /// Traces the branches of user mode, of the kernel, or of both; of neither: ends the trace. The branches of the
    /// former trace are reported first. `session` is the session whose source has this facility.
    ///
    /// The trace pauses while the counters are [lent](CounterSession::lend) or suspended, and ends with the session.
    ///
    /// # Context
    /// Task, on the session's processor.
    ///
    /// # Errors
    /// [`StateUnknown`](CounterError::StateUnknown): if the trace was to begin, it is not asked for any more. If it was
    /// to end, the processor may still trace: [`is_tracing`](Self::is_tracing). The call can be repeated.
    pub fn trace<S: EventSource, H: Hardware>(
        &self,
        session: &mut CounterSession<'_, S, H>,
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
    pub fn drain<M: RegisterBackend>(&self, msr: &M) -> Result<(), AccessFault> {
        if self.memory.mode() == 0 {
            return Ok(());
        }
        // If one of the writes fails, it is unknown whether the processor traces: the next change programs it again.
        self.memory.set_known(false);
        self.disable(msr)?;
        self.memory.drain(self.area(), self.report);
        self.enable(msr)?;
        self.memory.set_known(true);
        Ok(())
    }

    /// Returns whether the processor traces.
    pub fn is_tracing(&self) -> bool {
        self.memory.is_tracing()
    }

    /// Returns the memory to which the processor traces.
    pub const fn memory(&self) -> &'static BranchTraceMemory {
        self.memory
    }

    /// Brings the registers to what is asked for.
    fn begin_or_end<M: RegisterBackend>(&self, msr: &M, wanted: u8) -> Result<(), AccessFault> {
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
            // Before the processor traces: an interrupt from then on drains the buffer.
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
    fn end<M: RegisterBackend>(&self, msr: &M, is_for_good: bool) -> Result<(), AccessFault> {
        let memory = self.memory;
        if !memory.is_taken() {
            if is_for_good {
                // A trace may have been asked for in a window that was forgotten.
                memory.withdraw();
            }
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

    fn stop<M: RegisterBackend>(&self, msr: &M) -> Result<(), AccessFault> {
        self.disable(msr)?;
        self.memory.drain(self.area(), self.report);
        self.memory.set_mode(0);
        Ok(())
    }

    fn disable<M: RegisterBackend>(&self, msr: &M) -> Result<(), AccessFault> {
        msr.update_retrying(trace_bits().set_to(0)).map(|_| ())
    }

    /// Has the processor trace. The area comes first: a suspend may have cleared its register.
    fn enable<M: RegisterBackend>(&self, msr: &M) -> Result<(), AccessFault> {
        let area =
            self.beside.map_or_else(|| self.memory.area_address(), PreciseMemory::area_address);
        self.write_area(msr, area)?;
        let value = trace_value(self.memory.mode(), self.unit.filters).into_bits();
        msr.update_retrying(trace_bits().set_to(value)).map(|_| ())
    }

    fn write_area<M: RegisterBackend>(&self, msr: &M, address: u64) -> Result<(), AccessFault> {
        // SAFETY: 0, or the area of the memory, by the promise of `new`.
        msr.write_retrying(unsafe { RegisterAddress::new(IA32_DS_AREA) }, address)
    }
}

impl<R: Fn(Branch) + Copy> Facility for BranchTrace<R> {
    #[inline]
    fn is_idle(&self) -> bool {
        self.memory.mode() == 0
    }

    fn status_bits(&self) -> u64 {
        if self.memory.mode() != 0 { STATUS_OVF_BUFFER } else { 0 }
    }

    fn begin<M: RegisterBackend>(&mut self, msr: &M) -> Result<(), AccessFault> {
        if self.memory.mode() & STOP != 0 {
            let found = msr.update_retrying(trace_bits().set_to(0))? & trace_bits().bits();
            // A task that is about to start or stop the trace has the bits clear.
            let traces = DebugCtl::from_bits(found).tr();
            self.stopped = if traces { found } else { 0 };
        }
        Ok(())
    }

    fn collect<M: RegisterBackend>(
        &mut self,
        _: &M,
        interrupted: Interrupted<'_>,
    ) -> Result<u32, AccessFault> {
        if self.memory.mode() == 0 {
            return Ok(0);
        }
        self.memory.drain(self.area(), self.report);
        Ok(u32::from(interrupted.status & STATUS_OVF_BUFFER != 0))
    }

    fn end<M: RegisterBackend>(&mut self, msr: &M) -> Result<(), AccessFault> {
        match core::mem::take(&mut self.stopped) {
            0 => Ok(()),
            value => msr.update_retrying(trace_bits().set_to(value)).map(|_| ()),
        }
    }
}

// The trace as a facility of the session: it runs while it is asked for, but not for a borrower of the counters.
//
// The interrupt may come between any two accesses. So the memory's mode is set before the processor traces, and is
// cleared after the last branch was read out.

impl<R: Fn(Branch) + Copy> EventFacility for BranchTrace<R> {
    const OFFERS: bool = true;

    fn settle<M: RegisterBackend>(&self, msr: &M, running: &Running<'_>) -> Result<(), Unsettled> {
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
