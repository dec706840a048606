//! The branch records of all processors.

use core::fmt;
use core::marker::PhantomData;

use pmu_core::{
    BranchError, BranchFilter, BranchMemory, BranchRecorder, BranchSlot, BranchUnit, Branches,
    MsrBackend, Snapshot, WriteOnce,
};

use crate::facilities::branches;
use crate::kernel::error::PmuError;
use crate::kernel::required::Kernel;
use crate::per_processor::Busy;

/// The branch records of all processors of a machine. A kernel `K` keeps this value in a static, beside its static
/// [`Pmu`](crate::Pmu). The machine has at most `P` processors. Each processor has memory for `N` branch records. The
/// default of 32 suffices for every processor known today.
///
/// A kernel that records no branches does not need this static.
///
/// This example records branches while `sample` runs. The example prints the last branches before each sample of a
/// profile, and counts the last branches before the end of `sample`:
///
/// ```
/// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
/// # use stand_in::*;
/// use pmu::core::{BranchFilter, Event, GenericEvent, PlainFrame, Snapshot};
/// use pmu::kprofile::ProfileCallback;
/// use pmu::{Interrupted, Pmu, PmuBranches, PmuError};
///
/// static PMU: Pmu<MyKernel, 8> = Pmu::new();
/// static BRANCHES: PmuBranches<MyKernel, 8> = PmuBranches::new();
///
/// fn non_maskable_interrupt(frame: &PlainFrame) -> Interrupted {
///     PMU.interrupt_beside(frame, BRANCHES.here(), |_sample, branches| {
///         for branch in branches.iter().flat_map(|branches| branches.iter()) {
///             println!("{:#x} -> {:#x}", branch.from, branch.to); // the newest first
///         }
///     })
/// }
///
/// fn sample(this: &Snapshot, nothing: &dyn ProfileCallback, workload: fn()) -> Result<(), PmuError> {
///     let misses = Event::generic(GenericEvent::BranchMisses).every(10_007);
///     BRANCHES.record(this, BranchFilter::KERNEL, |recorder| {
///         PMU.sample(misses, nothing, workload)?;
///         println!("{} branches at the end", recorder.read()?.iter().count());
///         Ok(())
///     })?
/// }
/// # let _ = (non_maskable_interrupt, sample as fn(&Snapshot, &'static dyn ProfileCallback, fn()) -> _);
/// ```
pub struct PmuBranches<K, const P: usize, const N: usize = 32> {
    of: [OfProcessor<N>; P],
    kernel: PhantomData<fn() -> K>,
}

/// The branch records of one processor.
struct OfProcessor<const N: usize> {
    unit: WriteOnce<BranchUnit>,
    memory: BranchMemory<[BranchSlot; N]>,
}

impl<K: Kernel, const P: usize, const N: usize> PmuBranches<K, P, N> {
    /// Creates a `PmuBranches`. No processor records branches yet. The value is all zeros, so a static of this type is
    /// in `.bss` and takes no room in the kernel's image.
    pub const fn new() -> Self {
        let of = [const { OfProcessor { unit: WriteOnce::new(), memory: BranchMemory::new() } }; P];
        Self { of, kernel: PhantomData }
    }

    /// Takes ownership of the branch records of the processor that executes the call. `this_processor` is the snapshot
    /// of that processor. The returned recorder starts and stops the recording. At a context switch, the recorder saves
    /// and restores a thread's records. The kernel must call [`shut_down`](BranchRecorder::shut_down) before it drops
    /// the recorder. To record only while one function runs, use [`record`](Self::record).
    ///
    /// Until the recorder is shut down, another call of `take` on the same processor fails.
    ///
    /// # Context
    /// Task. The task must stay on this processor until the recorder is shut down.
    ///
    /// # Errors
    /// - [`Session`](PmuError::Session): the processor's number is `P` or more.
    /// - [`Branches`](PmuError::Branches): the processor has no supported branch records, another recorder has not been
    ///   shut down, or an access to the records' registers failed.
    pub fn take(
        &'static self,
        this_processor: &Snapshot,
    ) -> Result<BranchRecorder<'static, K::Msr>, PmuError> {
        let processor = K::this_processor();
        let of = self.of.get(processor).ok_or(Busy::NoPlace { processor })?;
        let unit = match of.unit.get() {
            Some(unit) => unit,
            None => {
                let unit = branches(this_processor, &K::msr()).map_err(BranchError::from)?;
                // The processor's other tasks come to the same.
                let _ = of.unit.set(unit);
                of.unit.get().ok_or(BranchError::MemoryInUse)?
            }
        };
        Ok(BranchRecorder::take(unit, K::msr(), &of.memory)?)
    }

    /// Records the branches that `filter` selects, on the processor that executes the call, while `work` runs. `work`
    /// runs [pinned](Kernel::pinned). After `work`, the call clears the records, and shuts the recorder down.
    ///
    /// In `work`, [`read`](BranchRecorder::read) returns the last branches before the call of `read`. The records may
    /// contain branches of the interrupt handler. To exclude these branches, `work` calls
    /// [`freeze_on_interrupt`](BranchRecorder::freeze_on_interrupt). If `work` panics and unwinds, the call also ends
    /// the recording.
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// - The errors of [`take`](Self::take) and of [`BranchRecorder::start`]: `work` was not run.
    /// - [`Branches`](PmuError::Branches), after `work` was run: the call could not end the recording, and the result
    ///   of `work` is lost.
    pub fn record<R>(
        &'static self,
        this_processor: &Snapshot,
        filter: BranchFilter,
        work: impl FnOnce(&mut BranchRecorder<'static, K::Msr>) -> R,
    ) -> Result<R, PmuError> {
        K::pinned(|| {
            let mut recorded = Recorded(self.take(this_processor)?);
            recorded.0.start(filter)?;
            let result = work(&mut recorded.0);
            // `work` may have ended the recording itself.
            match recorded.0.shut_down() {
                Ok(()) | Err(BranchError::ShutDown) => Ok(result),
                Err(error) => Err(error.into()),
            }
        })
    }

    /// Returns the branch records of the processor that executes the call, for
    /// [`Pmu::interrupt_beside`](crate::Pmu::interrupt_beside). Returns `None` if no task has [taken](Self::take)
    /// ownership of this processor's records yet.
    ///
    /// # Context
    /// The handler of the performance interrupt, which may be an NMI.
    #[inline]
    pub fn here(&'static self) -> Option<Branches<'static>> {
        let of = self.of.get(K::this_processor())?;
        Some(Branches::new(of.unit.get()?, &of.memory))
    }
}

impl<K: Kernel, const P: usize, const N: usize> Default for PmuBranches<K, P, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K, const P: usize, const N: usize> fmt::Debug for PmuBranches<K, P, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PmuBranches").finish_non_exhaustive()
    }
}

/// A recording that ends also while `work` unwinds.
struct Recorded<M: MsrBackend>(BranchRecorder<'static, M>);

impl<M: MsrBackend> Drop for Recorded<M> {
    fn drop(&mut self) {
        let _ = self.0.shut_down();
    }
}
