//! The branch traces of a kernel's processors: every taken branch.

use core::sync::atomic::AtomicU64;

use pmu_core::WriteOnce;
use pmu_core::access::RegisterBackend;
use pmu_core::branches::Branch;
use pmu_core::error::{CounterError, NoFacility};
use pmu_core::facility::Facility;
use pmu_core::x86::Snapshot;
use pmu_intel::branch_trace::{BranchTrace, BranchTraceMemory, BranchTraceUnit};
use pmu_intel::precise::PreciseMemory;

use crate::kernel::architecture::FacilitiesOf;
use crate::kernel::facilities::{Facilities, KernelFunctions, X86Facilities};
use crate::kernel::pmu::{LocalState, Pmu, PmuError};
use crate::kernel::required::Kernel;

/// The branch trace of one processor: Intel's branch trace store (BTS), with a buffer of `WORDS` 64-bit words, three
/// per branch. `WORDS` is a multiple of 512. A kernel whose [`Facilities`] have this type has a processor write each
/// taken branch to memory: [`Pmu::trace_branches`].
///
/// While a processor traces, each taken branch takes many additional cycles. For the last branches alone, use
/// [`BranchRecords`](crate::facilities::BranchRecords). In a pair with
/// [`PreciseRecords`](crate::facilities::PreciseRecords), in either order, both share one DS save area.
///
/// ```
/// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
/// # use stand_in::MyKernel as Bare;
/// # use stand_in::Registers;
/// # fn push(_from: u64, _to: u64) {}
/// use pmu::core::branches::Branch;
/// use pmu::facilities::BranchTraces;
/// use pmu::{Kernel, Pmu, PmuError};
///
/// static PMU: Pmu<MyKernel, 8> = Pmu::new();
///
/// struct MyKernel;
/// // SAFETY: (1) the kernel's statics are mapped, writable, in each address space; (2) the kernel has no other driver
/// // of the Debug Store; (3) it makes no session of its own; …
/// unsafe impl Kernel for MyKernel {
///     type Architecture = pmu::X86<BranchTraces>;
///     fn branch_traced(branch: Branch) {
///         push(branch.from, branch.to); // to a ring of this processor's
///     }
///     // … and the kernel's other functions
/// #   type Registers = Registers;
/// #   fn registers() -> Registers { Bare::registers() }
/// #   fn this_processor() -> usize { 0 }
/// #   fn pinned<R>(act: impl FnOnce() -> R) -> R { act() }
/// #   fn set_interrupt_masked(_: bool) {}
/// #   fn interrupt(_: usize) {}
/// }
///
/// /// Traces a program's branches in user mode.
/// fn traced(run: fn()) -> Result<(), PmuError> {
///     PMU.trace_branches(true, false)?;
///     run();
///     PMU.trace_branches(false, false)
/// }
/// # let _ = traced;
/// ```
///
/// # Safety
/// A kernel with this type among its [`Facilities`](Kernel::Architecture) promises by its `unsafe impl Kernel`:
/// - The static that has the [`Pmu`] is mapped and writable in *every* address space in which a processor of the `Pmu`
///   runs. With kernel page-table isolation, this includes the page tables of user mode.
/// - No other code writes `IA32_DS_AREA`, the bits of
///   [`BRANCH_TRACE`](crate::intel::debug_store::BRANCH_TRACE) in `IA32_DEBUGCTL`, or the words of the DS save area.
/// - If registers lost their contents in a suspend, the kernel calls [`Pmu::processor_resumed`] before any other
///   operation on the processor.
/// - The kernel makes no session from an event source that [`Pmu::events_of`] returned. It calls
///   [`BranchTrace::drain`] of a sample's facility with [`Kernel::registers`] only.
/// - [`Kernel::registers`] returns a backend that writes each given value to its register exactly once. The backend
///   does not keep the [`RegisterAddress`](pmu_core::access::RegisterAddress) of a register, and does not pass the
///   address to other safe code.
/// - If a type of another crate stands beside this one and has Intel's precise records, its
///   [`precise`](X86Facilities::precise) returns their memory.
#[doc(alias = "bts")]
#[derive(Debug)]
pub struct BranchTraces<const WORDS: usize = 8192> {
    detected: WriteOnce<Result<Detected, NoFacility>>,
    /// The trace, once it was asked for: only then the hardware beside it is known.
    trace: WriteOnce<BranchTrace<fn(Branch)>>,
    memory: BranchTraceMemory<[AtomicU64; WORDS]>,
}

/// Description of what the processor can trace, and the function that gets the traced branches.
type Detected = (BranchTraceUnit, fn(Branch));

impl<const WORDS: usize> Facilities for BranchTraces<WORDS> {
    type Facility = Option<BranchTrace<fn(Branch)>>;

    const NEW: Self = Self {
        detected: WriteOnce::new(),
        trace: WriteOnce::new(),
        memory: BranchTraceMemory::new(),
    };

    unsafe fn detect<M: RegisterBackend>(
        &'static self,
        this_processor: &Snapshot,
        msr: &M,
        kernel: &KernelFunctions,
    ) {
        if self.detected.get().is_none() {
            // The same each time that the processor comes up.
            let unit = BranchTraceUnit::detect(this_processor, msr);
            let _ = self.detected.set(unit.map(|unit| (unit, kernel.branch_traced)));
        }
    }

    #[inline]
    fn facility(&'static self) -> Self::Facility {
        self.trace.get().copied()
    }

    #[inline]
    fn is_idle(&'static self) -> bool {
        self.facility().is_idle()
    }
}

impl<const WORDS: usize> X86Facilities for BranchTraces<WORDS> {
    unsafe fn branch_trace(
        &'static self,
        beside: Option<&'static PreciseMemory>,
    ) -> Result<BranchTrace<fn(Branch)>, NoFacility> {
        let detected = self.detected.get().ok_or(NoFacility::NotDeclared)?;
        let (unit, report) = (*detected)?;
        // SAFETY: (1) the value is one processor's, by the promise of `detect`, and its session has no `Pebs` with
        // another memory than `beside`, by that of the caller; (2) the kernel promises the rest.
        let trace = unsafe { BranchTrace::new(unit, &self.memory, beside, report) };
        // By the promise of the caller, a trace that is there is the same.
        let _ = self.trace.set(trace);
        Ok(trace)
    }
}

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Pmu<K, P, E, N>
where
    FacilitiesOf<K>: X86Facilities,
{
    /// Traces the branches of user mode, of the kernel, or of both, on the processor that executes the call. With
    /// neither, ends the trace. A branch between user mode and the kernel is traced if both are asked for.
    ///
    /// [`Kernel::branch_traced`] gets each branch, the oldest first. Each performance interrupt of the processor passes
    /// on what the buffer has by then, and so do the operations that end, change or pause the trace. The buffer itself
    /// interrupts when three quarters of it are full.
    ///
    /// The trace goes on until this is called again, whatever events and profiles do, and ends in
    /// [`processor_down`](Self::processor_down). It pauses while the counters are [lent](Self::lend) and while the
    /// processor is [suspended](Self::processor_suspended). What it costs an interrupt is at [`BranchTrace`].
    ///
    /// # Errors
    /// - [`NotUp`](PmuError::NotUp), [`Suspended`](PmuError::Suspended), [`Session`](PmuError::Session).
    /// - [`Facility`](PmuError::Facility): the processor cannot trace branches, or has no counters, whose interrupt the
    ///   trace needs; or the kernel's [`Facilities`] have no [`BranchTraces`].
    /// - [`Counters`](PmuError::Counters): the kernel takes [no counters](Kernel::counters), or a register access
    ///   failed. A trace that was to begin or to change is then not asked for any more, but the processor may still
    ///   [trace](BranchTraceMemory::is_tracing). The call can be repeated.
    pub fn trace_branches(&'static self, user: bool, kernel: bool) -> Result<(), PmuError> {
        self.with_branch_trace(|trace, local| {
            trace.trace(local.session.counters_mut(), user, kernel)
        })
    }

    /// Passes the traced branches that wait in the executing processor's buffer to [`Kernel::branch_traced`]. Without a
    /// trace, the call does nothing.
    ///
    /// # Errors
    /// Those of [`trace_branches`](Self::trace_branches). If a register access failed, the trace may have stopped. It
    /// goes on when the call is repeated, or when an event next starts or stops.
    pub fn drain_branches(&'static self) -> Result<(), PmuError> {
        self.with_branch_trace(|trace, _| {
            trace.drain(&K::registers()).map_err(CounterError::StateUnknown)
        })
    }

    /// Returns the memory of the executing processor's branch trace. The memory says whether the processor
    /// [traces](BranchTraceMemory::is_tracing), and how many branches it [lost](BranchTraceMemory::lost) or
    /// [left out](BranchTraceMemory::hidden).
    ///
    /// # Errors
    /// Those of [`trace_branches`](Self::trace_branches), but no register is accessed.
    pub fn branch_trace_memory(&'static self) -> Result<&'static BranchTraceMemory, PmuError> {
        self.with_branch_trace(|trace, _| Ok(trace.memory()))
    }

    fn with_branch_trace<R>(
        &'static self,
        act: impl FnOnce(BranchTrace<fn(Branch)>, &mut LocalState<K>) -> Result<R, CounterError>,
    ) -> Result<R, PmuError> {
        self.on_processor(None, |of, local| {
            let beside = of.facilities.precise().ok().map(|(_, memory)| memory);
            // SAFETY: the hardware was detected as this processor came up, so the result is that of all of it.
            let trace = unsafe { of.facilities.branch_trace(beside) }?;
            if local.session.counters().usable.is_empty() {
                return Err(match local.unit.why_absent() {
                    Some(why) => NoFacility::NoCounters(why).into(),
                    None => CounterError::NotAvailable(local.unit.counters()).into(),
                });
            }
            Ok(act(trace, local)?)
        })
    }
}
