//! The tracer: operations of a task on a processor's branch trace.
//!
//! The interrupt may come between any two accesses. So the memory's mode is set before the processor traces, and is
//! cleared after the last branch was read out.

use core::marker::PhantomData;

use pmu_core::{Branch, MsrAccess, MsrAddress, MsrBackend, MsrFault, RegisterBits, Snapshot};

use crate::branch_trace::error::BranchTraceError;
use crate::branch_trace::memory::{BranchTraceMemory, KERNEL, STOP, USER};
use crate::debug_store::area::PebsDsSaveArea;
use crate::debug_store::operations::BRANCH_TRACE;
use crate::debug_store::support::DebugStoreSupport;
use crate::precise::memory::{PAGE, PreciseMemory, RESETS};
use crate::registers::{DebugCtl, IA32_DEBUGCTL, IA32_DS_AREA};

/// The control handle of a processor's branch trace: starts and stops the trace, and reads out the traced branches.
///
/// While the branch trace runs, each taken branch takes many additional cycles. The facility
/// [`BranchTrace`](crate::branch_trace::BranchTrace) reports the branches in each performance interrupt. In addition,
/// the processor interrupts when three quarters of the trace buffer are full. [`service_with`](pmu_core::service_with)
/// handles this interrupt only while a [session](pmu_core::CounterSession) owns counters of the processor.
///
/// The tracer cannot move to another thread. Before dropping the tracer, call [`shut_down`](Self::shut_down) on the
/// traced processor. Dropping the tracer does not stop the trace: the processor continues to write to the tracer's
/// memory.
///
/// ```
/// use core::sync::atomic::AtomicU64;
/// use pmu_core::{MsrBackend, Snapshot};
/// use pmu_intel::branch_trace::{BranchTraceError, BranchTraceMemory, BranchTracer};
/// static TRACE: BranchTraceMemory<[AtomicU64; 4096]> = BranchTraceMemory::new(); // one per processor
///
/// fn trace<M: MsrBackend>(processor: &Snapshot, msr: M, work: fn()) -> Result<(), BranchTraceError> {
///     // SAFETY: (1) TRACE is this processor's alone; (2) the kernel's statics are mapped, writable, in each address
///     // space; (3) the backend executes WRMSR and keeps no address.
///     let mut tracer = unsafe { BranchTracer::take(processor, msr, &TRACE, None) }?;
///     tracer.start(true, false)?;
///     work();
///     tracer.stop(|branch| println!("{:#x} -> {:#x}", branch.from, branch.to))?;
///     tracer.shut_down(|_| ())
/// }
/// ```
///
/// # Context
/// Every method: task, on the traced processor. The performance interrupt may come at any time.
#[derive(Debug)]
pub struct BranchTracer<M> {
    pub(crate) msr: M,
    pub(crate) memory: &'static BranchTraceMemory,
    beside: Option<&'static PreciseMemory>,
    /// The processor can leave out branches by privilege level.
    filters: bool,
    is_open: bool,
    /// While the tracer is suspended: the mode before.
    pub(crate) lent: Option<u8>,
    not_send: PhantomData<*mut ()>,
}

impl<M: MsrBackend> BranchTracer<M> {
    /// Takes ownership of the branch trace of the processor that executes the call. If an earlier owner left the trace
    /// enabled, the call stops the trace.
    ///
    /// `processor` describes this processor. If a session of this processor has [`Pebs`](crate::precise::Pebs), pass
    /// the memory of the precise records as `beside`: branch trace and precise records share one DS save area. Session
    /// and tracer can begin and end in any order. If `beside` is `None`, the tracer owns `IA32_DS_AREA`.
    ///
    /// # Errors
    /// - [`Unavailable`](BranchTraceError::Unavailable): CPUID or `IA32_MISC_ENABLE` declares no branch trace store, or
    ///   the DS save area has 32-bit fields.
    /// - [`InsufficientMemory`](BranchTraceError::InsufficientMemory), [`MemoryInUse`](BranchTraceError::MemoryInUse):
    ///   no register was written.
    /// - [`Access`](BranchTraceError::Access): a register access failed. `memory` is free again.
    ///
    /// # Safety
    /// Until [`shut_down`](Self::shut_down) returns successfully:
    /// - The pages of `memory` and of `beside` are mapped and writable in *every* address space in which this processor
    ///   runs.
    /// - `memory` and `beside` are used on this processor only, and the tracer stays on this processor. No session of
    ///   this processor has [`Pebs`](crate::precise::Pebs) with another memory than `beside`.
    /// - No other code writes `IA32_DS_AREA`, the bits of [`BRANCH_TRACE`] in `IA32_DEBUGCTL`, or the words of the DS
    ///   save area.
    ///
    /// In addition, `msr` meets the requirements of [`write_ds_area`](crate::debug_store::write_ds_area).
    pub unsafe fn take(
        processor: &Snapshot,
        msr: M,
        memory: &'static BranchTraceMemory,
        beside: Option<&'static PreciseMemory>,
    ) -> Result<Self, BranchTraceError> {
        let support = DebugStoreSupport::detect(processor, &msr);
        let support = support.map_err(BranchTraceError::Access)?;
        if !support.has_bts() || !support.dtes64 {
            return Err(BranchTraceError::Unavailable);
        }
        if memory.words() == 0 || !(8 * memory.words()).is_multiple_of(PAGE) {
            return Err(BranchTraceError::InsufficientMemory);
        }
        if !memory.take() {
            return Err(BranchTraceError::MemoryInUse);
        }
        if beside.is_some_and(|beside| !beside.begin_trace()) {
            memory.give_back();
            return Err(BranchTraceError::MemoryInUse);
        }
        // SDM vol. 2A, CPUID leaf 1, ECX bit 4, DS-CPL: BTS_OFF_OS and BTS_OFF_USR exist.
        let filters = processor.leaf(1, 0).ecx >> 4 & 1 != 0;
        let tracer =
            Self { msr, memory, beside, filters, is_open: true, lent: None, not_send: PhantomData };
        tracer.attach().map_err(|fault| {
            tracer.give_back();
            BranchTraceError::Access(fault)
        })?;
        Ok(tracer)
    }

    fn attach(&self) -> Result<(), MsrFault> {
        self.disable()?;
        self.memory.name_in(self.area());
        Ok(())
    }

    fn area_address(&self) -> u64 {
        self.beside.map_or_else(|| self.memory.area_address(), PreciseMemory::area_address)
    }

    fn write_area(&self, address: u64) -> Result<(), MsrFault> {
        // SAFETY: 0, or the area of the memory, by the promise of `take`.
        self.msr.wrmsr_retrying(unsafe { MsrAddress::new(IA32_DS_AREA) }, address)
    }

    /// Returns the area that the processor uses.
    pub(crate) fn area(&self) -> &'static PebsDsSaveArea<RESETS> {
        self.beside.map_or_else(|| self.memory.save_area(), PreciseMemory::save_area)
    }

    /// Ends the trace.
    pub(crate) fn disable(&self) -> Result<(), MsrFault> {
        self.msr.update_retrying(trace_bits().set_to(0)).map(|_| ())
    }

    /// Begins the trace of the memory's mode. A suspend may have cleared the area's address: the processor would trace
    /// to address 0.
    pub(crate) fn enable(&self) -> Result<(), MsrFault> {
        self.write_area(self.area_address())?;
        self.msr.update_retrying(trace_bits().set_to(self.value().into_bits())).map(|_| ())
    }

    fn value(&self) -> DebugCtl {
        trace_value(self.memory.mode(), self.filters)
    }

    /// Returns whether the branch trace is started.
    pub fn is_tracing(&self) -> bool {
        self.is_open && self.memory.mode() != 0
    }

    /// Starts to trace the processor's branches. `user` selects the branches within user mode, and `kernel` selects the
    /// branches within the kernel. The call first stops a running trace, and drops the branches in the trace buffer. If
    /// `user` and `kernel` are both `false`, the call starts no new trace.
    ///
    /// A processor without DS-CPL cannot filter branches by privilege level. On such a processor, the buffer receives
    /// all branches. When the tracer reads the buffer, the tracer drops the branches that `user` and `kernel` do not
    /// select.
    ///
    /// # Errors
    /// - [`Access`](BranchTraceError::Access): a register access failed, and the call has stopped the trace again.
    /// - [`Faulted`](BranchTraceError::Faulted): a register access failed, and the trace could not be stopped. The
    ///   processor may still trace.
    /// - [`ShutDown`](BranchTraceError::ShutDown), [`Lent`](BranchTraceError::Lent): nothing was changed.
    pub fn start(&mut self, user: bool, kernel: bool) -> Result<(), BranchTraceError> {
        self.stop(|_| ())?;
        let of = |bit, set: bool| if set { bit } else { 0 };
        let stops = kernel || !self.filters;
        let mode = of(USER, user) | of(KERNEL, kernel) | of(STOP, stops);
        if mode & (USER | KERNEL) == 0 {
            return Ok(());
        }
        self.memory.set_mode(mode);
        self.enable().map_err(|fault| match self.disable() {
            Ok(()) => {
                self.memory.set_mode(0);
                BranchTraceError::Access(fault)
            }
            Err(fault) => BranchTraceError::Faulted(fault),
        })
    }

    /// Stops the branch trace, and passes the branches in the trace buffer to `report`, the oldest first.
    ///
    /// # Errors
    /// - [`Faulted`](BranchTraceError::Faulted): the trace could not be stopped, and may still run.
    /// - [`ShutDown`](BranchTraceError::ShutDown), [`Lent`](BranchTraceError::Lent): nothing was changed.
    pub fn stop(&mut self, mut report: impl FnMut(Branch)) -> Result<(), BranchTraceError> {
        self.check()?;
        if self.memory.mode() == 0 {
            return Ok(());
        }
        self.disable().map_err(BranchTraceError::Faulted)?;
        self.memory.drain(self.area(), &mut report);
        self.memory.set_mode(0);
        Ok(())
    }

    /// Passes the branches in the trace buffer to `report`, the oldest first. The trace is stopped during the call. To
    /// know which thread executed the branches, call this method before each thread switch.
    ///
    /// # Errors
    /// - [`Faulted`](BranchTraceError::Faulted): the trace could not be stopped, and may still run.
    /// - [`Access`](BranchTraceError::Access): the trace could not be started again.
    /// - [`ShutDown`](BranchTraceError::ShutDown), [`Lent`](BranchTraceError::Lent): nothing was changed.
    pub fn drain(&mut self, mut report: impl FnMut(Branch)) -> Result<(), BranchTraceError> {
        self.check()?;
        if self.memory.mode() == 0 {
            return Ok(());
        }
        self.disable().map_err(BranchTraceError::Faulted)?;
        self.memory.drain(self.area(), &mut report);
        self.enable().map_err(BranchTraceError::Access)
    }

    /// Stops the branch trace, and releases the tracer's memory for another tracer. Later calls return
    /// [`ShutDown`](BranchTraceError::ShutDown).
    ///
    /// # Errors
    /// - [`Faulted`](BranchTraceError::Faulted): a register access failed, and the tracer keeps the memory. The call
    ///   can be repeated.
    /// - [`ShutDown`](BranchTraceError::ShutDown), [`Lent`](BranchTraceError::Lent): nothing was changed.
    pub fn shut_down(&mut self, report: impl FnMut(Branch)) -> Result<(), BranchTraceError> {
        self.stop(report)?;
        // The area only after the trace: the processor would trace to address 0.
        let detached = self.disable().and_then(|()| match self.beside {
            Some(records) if records.control_area().is_recording() => Ok(()),
            // No precise event has run yet, or the session has ended. Architectural PEBS does not use the area.
            _ => self.write_area(0),
        });
        detached.map_err(BranchTraceError::Faulted)?;
        self.is_open = false;
        self.give_back();
        Ok(())
    }

    fn give_back(&self) {
        BranchTraceMemory::forget_in(self.area());
        if let Some(beside) = self.beside {
            beside.end_trace();
        }
        self.memory.give_back();
    }

    pub(crate) const fn is_open(&self) -> bool {
        self.is_open
    }

    fn check(&self) -> Result<(), BranchTraceError> {
        match (self.is_open, self.lent) {
            (false, _) => Err(BranchTraceError::ShutDown),
            (true, Some(_)) => Err(BranchTraceError::Lent),
            (true, None) => Ok(()),
        }
    }
}

/// Returns the value by which branches of a mode are traced.
pub(crate) const fn trace_value(mode: u8, filters: bool) -> DebugCtl {
    DebugCtl::new()
        .with_tr(true)
        .with_bts(true)
        .with_bt_int(true)
        .with_bts_off_os(filters && mode & KERNEL == 0)
        .with_bts_off_usr(filters && mode & USER == 0)
}

/// Returns the tracer's bits of `IA32_DEBUGCTL`.
pub(crate) const fn trace_bits() -> RegisterBits {
    // SAFETY: the bits make the processor write branches to the buffer that `BranchTracer::take` named, by its promise.
    // They are set only while a tracer has the memory.
    unsafe { RegisterBits::new(IA32_DEBUGCTL, BRANCH_TRACE.into_bits()) }
}
