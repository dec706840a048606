//! Hardware beside the counters of a machine.

use pmu_core::branches::BranchUnit;
use pmu_core::msr::MsrBackend;
use pmu_core::{NoFacility, Snapshot};
use pmu_intel::precise::PreciseUnit;
use pmu_intel::topdown::TopDownUnit;

use crate::machine::Machine;

impl Machine {
    /// Detects the branch records of the processor that executes the call, on a machine of any vendor. `processor` is
    /// the snapshot of that processor. [`BranchUnit::offers`] of the result tells what each record contains, and which
    /// filters the processor has.
    ///
    /// The kernel stores one result per processor, for the interrupt handler. On a hybrid machine, the results of
    /// different core types may differ.
    ///
    /// ```
    /// # use pmu::Machine;
    /// # use pmu::core::branches::BranchUnit;
    /// # use pmu::core::msr::MsrBackend;
    /// # use pmu::core::Snapshot;
    /// /// Returns the description of this processor's branch records, if the records can be a call stack.
    /// fn call_stacks(machine: &Machine, this: &Snapshot, msr: &impl MsrBackend) -> Option<BranchUnit> {
    ///     machine.branches_of(this, msr).ok().filter(|unit| unit.offers().call_stack)
    /// }
    /// ```
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// The processor has no supported branch records. The error is the reason.
    pub fn branches_of<M: MsrBackend>(
        &self,
        processor: &Snapshot,
        msr: &M,
    ) -> Result<BranchUnit, NoFacility> {
        branches(processor, msr)
    }

    /// Detects the top-down counters of the processor that executes the call. `processor` is the snapshot of that
    /// processor. The top-down counters divide issue slots into four categories: retiring, bad speculation, front-end
    /// bound and back-end bound. On a hybrid machine, the kernel calls this on each type of core.
    ///
    /// A kernel with a [`Pmu`](crate::Pmu) chooses [`TopDownParts`](crate::TopDownParts) instead. The event source of
    /// any other kernel's session has a [`TopDown`](pmu_intel::topdown::TopDown) of the result.
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// The processor has no top-down counters. The error is the reason.
    pub fn top_down_of<M: MsrBackend>(
        &self,
        processor: &Snapshot,
        msr: &M,
    ) -> Result<TopDownUnit, NoFacility> {
        TopDownUnit::of(processor, msr)
    }

    /// Detects Intel's precise records (PEBS) of the processor that executes the call. `processor` is the snapshot of
    /// that processor.
    ///
    /// A kernel with a [`Pmu`](crate::Pmu) chooses [`PreciseRecords`](crate::PreciseRecords) instead. Any other kernel
    /// stores one result per processor, and makes a [`Pebs`](pmu_intel::precise::Pebs) with it. The event source of the
    /// processor's session has the `Pebs`, and so has the interrupt handler's:
    ///
    /// ```
    /// # use pmu::Machine;
    /// # use pmu::core::{Claim, CounterMemory, OpenedEvents, Platform, service};
    /// # use pmu::core::msr::MsrBackend;
    /// use pmu::intel::precise::Pebs;
    /// # fn push(_address: u64, _tag: u64) {}
    /// /// The kernel's handler of the performance interrupt, with the event source of the processor's session.
    /// fn handler<M: MsrBackend, P: Platform>(
    ///     events: &OpenedEvents<'_, Option<Pebs<'static>>>,
    ///     (msr, platform, counters): (&M, &P, &CounterMemory),
    /// ) -> Claim {
    ///     let serviced = service(events, msr, platform, counters, |sample| {
    ///         if let Some(address) = sample.instruction().and_then(|instruction| instruction.address) {
    ///             push(address, sample.tag);
    ///         }
    ///     });
    ///     serviced.map_or(Claim::OursAndMore, |serviced| serviced.claim)
    /// }
    /// ```
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// The processor has no supported precise records. The error is the reason.
    pub fn precise_of<M: MsrBackend>(
        &self,
        processor: &Snapshot,
        msr: &M,
    ) -> Result<PreciseUnit, NoFacility> {
        PreciseUnit::detect(processor, msr)
    }
}

/// Returns the branch records of a processor, of any known vendor.
pub(crate) fn branches<M: MsrBackend>(
    processor: &Snapshot,
    msr: &M,
) -> Result<BranchUnit, NoFacility> {
    match pmu_intel::branches(processor, msr) {
        Err(NoFacility::OtherVendor(_)) => pmu_amd::branches(processor),
        branches => branches,
    }
}
