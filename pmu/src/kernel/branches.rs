//! The branch records of a kernel's processors: of events' samples, and the last branches without an event.

use pmu_core::WriteOnce;
use pmu_core::access::RegisterBackend;
use pmu_core::branch_recording::{BranchError, BranchRecorder};
use pmu_core::branches::{BranchFilter, BranchMemory, BranchSlot, BranchUnit, Branches};
use pmu_core::error::NoFacility;
use pmu_core::x86::Snapshot;

use crate::kernel::facilities::{Facilities, KernelFunctions, X86Facilities};
use crate::kernel::pmu::{Pmu, PmuError};
use crate::kernel::required::Kernel;
use crate::machine::branches;
use crate::per_processor::Busy;

/// The branch records of one processor, with memory for `N` records. The default of 32 suffices for every processor
/// known today. A kernel whose [`Facilities`] have this type can give its events' samples the last branches:
///
/// ```
/// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
/// # use stand_in::MyKernel as Bare;
/// # use stand_in::Registers;
/// use pmu::{BranchFilter, Event, GenericEvent};
/// use pmu::{Kernel, Pmu, PmuError, PmuEvent, PmuSample};
/// use pmu::facilities::BranchRecords;
///
/// static PMU: Pmu<MyKernel, 8> = Pmu::new();
///
/// struct MyKernel;
/// # // SAFETY: there is one thread.
/// unsafe impl Kernel for MyKernel {
///     type Architecture = pmu::X86<BranchRecords>;
///     fn sampled(sample: &PmuSample<'_, Self>) {
///         for branch in sample.branches() {
///             println!("{:#x} -> {:#x}", branch.from, branch.to); // the newest first
///         }
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
/// /// Samples the branches before every 10,007th mispredicted branch of the kernel.
/// fn open() -> Result<PmuEvent, PmuError> {
///     let misses = Event::generic(GenericEvent::BranchMisses).every(10_007).with_branches(BranchFilter::KERNEL);
///     PMU.open(&misses)
/// }
/// # let _ = open as fn() -> _;
/// ```
#[doc(alias = "lbr")]
#[derive(Debug)]
pub struct BranchRecords<const N: usize = 32> {
    unit: WriteOnce<Result<BranchUnit, NoFacility>>,
    memory: BranchMemory<[BranchSlot; N]>,
}

impl<const N: usize> Facilities for BranchRecords<N> {
    type Facility = Option<Branches<'static>>;

    const NEW: Self = Self { unit: WriteOnce::new(), memory: BranchMemory::new() };

    unsafe fn detect<M: RegisterBackend>(
        &'static self,
        this_processor: &Snapshot,
        msr: &M,
        kernel: &KernelFunctions,
    ) {
        // The same each time that the processor comes up.
        let _ = self.unit.set(branches(this_processor, msr));
        self.memory.set_call_stacks(kernel.call_stack);
    }

    fn facility(&'static self) -> Option<Branches<'static>> {
        let unit = self.unit.get()?.as_ref().ok()?;
        Some(Branches::new(unit, &self.memory))
    }

    #[inline]
    fn is_idle(&'static self) -> bool {
        self.memory.is_idle()
    }

    fn branches(&'static self) -> Result<(&'static BranchUnit, &'static BranchMemory), NoFacility> {
        match self.unit.get() {
            Some(Ok(unit)) => Ok((unit, &self.memory)),
            Some(Err(reason)) => Err(*reason),
            None => Err(NoFacility::NotDeclared),
        }
    }
}

impl<const N: usize> X86Facilities for BranchRecords<N> {}

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Pmu<K, P, E, N> {
    /// Takes ownership of the branch records of the processor that executes the call, for the last branches at chosen
    /// moments, without an event. At a context switch, the returned recorder saves and restores a thread's call stack.
    /// The kernel must call [`shut_down`](BranchRecorder::shut_down) before it drops the recorder. To record only while
    /// one function runs, use [`record_branches`](Self::record_branches).
    ///
    /// Until the recorder is shut down, another call on the same processor fails. Samples of sources have the
    /// recorder's branches meanwhile, and samples of events if they ask for the same filter. The processor's session
    /// [suspends, resumes and ends](BranchRecorder) the recording together with its counters.
    ///
    /// # Context
    /// Task. The task must stay on this processor until the recorder is shut down. No other task uses the processor's
    /// session during a call of the recorder's methods.
    ///
    /// # Errors
    /// - [`Session`](PmuError::Session): the processor's number is `P` or more.
    /// - [`Branches`](PmuError::Branches): the processor has no supported branch records, the kernel's [`Facilities`]
    ///   have no [`BranchRecords`], the processor records branches for events alone, another recorder has not been shut
    ///   down, an event that runs records branches, or an access to the records' registers failed.
    pub fn branch_recorder(
        &'static self,
    ) -> Result<BranchRecorder<'static, K::Registers>, PmuError> {
        let processor = K::this_processor();
        let of = self.processors.get(processor).ok_or(Busy::NoSlot { processor })?;
        let (unit, memory) = of.facilities.branches().map_err(BranchError::from)?;
        Ok(BranchRecorder::take(unit, K::registers(), memory)?)
    }

    /// Records the branches that `filter` selects, on the processor that executes the call, while `work` runs. `work`
    /// runs [pinned](Kernel::pinned). After `work`, the call clears the records, and shuts the recorder down.
    ///
    /// In `work`, [`read`](BranchRecorder::read) returns the last branches before the call of `read`. The records may
    /// contain branches of the interrupt handler. To exclude these branches, `work` calls
    /// [`freeze_on_interrupt`](BranchRecorder::freeze_on_interrupt). If `work` panics and unwinds, the call also ends
    /// the recording.
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use pmu::{BranchFilter, Pmu, PmuError};
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    ///
    /// /// Prints the last branches before the end of a function.
    /// fn last_branches(workload: fn()) -> Result<(), PmuError> {
    ///     PMU.record_branches(BranchFilter::KERNEL, |recorder| {
    ///         workload();
    ///         recorder.read()?.iter().for_each(|branch| println!("{:#x} -> {:#x}", branch.from, branch.to));
    ///         Ok(())
    ///     })?
    /// }
    /// # let _ = last_branches;
    /// ```
    ///
    /// # Errors
    /// - The errors of [`branch_recorder`](Self::branch_recorder) and of [`BranchRecorder::start`]: `work` was not run.
    /// - [`Branches`](PmuError::Branches), after `work` was run: the call could not end the recording, and the result
    ///   of `work` is lost.
    pub fn record_branches<R>(
        &'static self,
        filter: BranchFilter,
        work: impl FnOnce(&mut BranchRecorder<'static, K::Registers>) -> R,
    ) -> Result<R, PmuError> {
        K::pinned(|| {
            let mut recorded = Recorded(self.branch_recorder()?);
            recorded.0.start(filter)?;
            let result = work(&mut recorded.0);
            // `work` may have ended the recording itself.
            match recorded.0.shut_down() {
                Ok(()) | Err(BranchError::ShutDown) => Ok(result),
                Err(error) => Err(error.into()),
            }
        })
    }

    /// Stops Zen 3's branch sampling on the processor that executes the call, which is about to go idle: see
    /// [`Branches::before_idle`]. Otherwise the call accesses no register.
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use pmu::{Pmu, PmuError};
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    ///
    /// /// One round of the idle loop.
    /// fn idle(halt: fn()) -> Result<(), PmuError> {
    ///     PMU.before_idle()?;
    ///     halt();
    ///     PMU.after_idle()
    /// }
    /// # let _ = idle;
    /// ```
    ///
    /// # Context
    /// Task. The task stays on this processor until [`after_idle`](Self::after_idle). If an interrupt switches to
    /// another task before, the processor does not sample that task's branches.
    ///
    /// # Errors
    /// [`Branches`](PmuError::Branches): a register access failed. The call can be repeated.
    pub fn before_idle(&'static self) -> Result<(), PmuError> {
        let stopped = self.branch_sampling().map_or(Ok(()), |of| of.before_idle(&K::registers()));
        stopped.map_err(|fault| BranchError::NotRecording(fault).into())
    }

    /// Starts the branch sampling again that [`before_idle`](Self::before_idle) stopped.
    ///
    /// # Errors
    /// [`Branches`](PmuError::Branches): a register access failed. The call can be repeated.
    pub fn after_idle(&'static self) -> Result<(), PmuError> {
        let started = self.branch_sampling().map_or(Ok(()), |of| of.after_idle(&K::registers()));
        started.map_err(|fault| BranchError::NotRecording(fault).into())
    }

    fn branch_sampling(&'static self) -> Option<Branches<'static>> {
        let (unit, memory) =
            self.processors.get(K::this_processor())?.facilities.branches().ok()?;
        Some(Branches::new(unit, memory))
    }
}

/// A recording that ends also while `work` unwinds.
struct Recorded<M: RegisterBackend>(BranchRecorder<'static, M>);

impl<M: RegisterBackend> Drop for Recorded<M> {
    fn drop(&mut self) {
        // If `work` unwinds, the records are given back all the same.
        let _ = self.0.shut_down();
    }
}
