//! Hardware beside the counters of a machine.

use pmu_amd::ibs::{IbsKind, IbsUnit};
use pmu_core::{BranchUnit, MsrBackend, NoBranches, Snapshot};
use pmu_intel::precise::{NoPrecise, PreciseUnit};
use pmu_intel::topdown::{NoTopDown, TopDownUnit};

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
    /// # use pmu::core::{BranchUnit, MsrBackend, Snapshot};
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
    ) -> Result<BranchUnit, NoBranches> {
        branches(processor, msr)
    }

    /// Returns a unit of AMD's instruction-based sampling (IBS). `kind` selects either the unit that samples ops or the
    /// unit that samples fetches. Returns `None` if `processor` describes a processor without this unit.
    ///
    /// The kernel stores the result, for the interrupt handler. The handler passes the unit to
    /// [`service_with`](Self::service_with), which reports the unit's samples. Samples are reported even if no counter
    /// is in use:
    ///
    /// ```
    /// use pmu::Machine;
    /// use pmu::amd::ibs::{Ibs, IbsKind, IbsMemory, IbsRecord, IbsSampler, IbsSampling};
    /// use pmu::core::{Claim, CounterMemory, CounterSlot, MAX_COUNTERS};
    /// # use pmu_virt::mock::MockMsr;
    /// # use pmu_virt::{AmdConfiguration, Configuration, FedEvents, FedOp, IbsConfiguration, VirtualIbs, VirtualPmu};
    /// # let configuration = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    /// # let pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// # let processor = MockMsr::<8>::new(pmu).with_sampling(VirtualIbs::new(IbsConfiguration::ZEN_4));
    /// # let (this, msr, apic) = (&processor.snapshot(), &processor, &processor);
    /// static COUNTERS: CounterMemory<[CounterSlot; MAX_COUNTERS]> = CounterMemory::new();
    /// static OPS: IbsMemory = IbsMemory::new();
    /// let machine = Machine::detect(this);
    /// let unit = machine.ibs_of(this, IbsKind::Op).ok_or("no op sampling")?;
    /// let mut ops = IbsSampler::take(unit, msr, &apic, &OPS)?;
    /// ops.start(&IbsSampling::ops(160))?;
    /// # assert!((1..=160).any(|op| processor.execute(&FedOp::new(0x40_1000 + op))));
    /// // In the interrupt's handler:
    /// let mut address = None;
    /// let samples = Ibs::new(&unit, &OPS, |record: &IbsRecord| address = record.address(&unit));
    /// let serviced = machine.service_with(&msr, &apic, &COUNTERS, samples, |_, _| ())?;
    /// assert_eq!((serviced.claim, address), (Claim::Ours, Some(0x40_10A0))); // the 160th op's
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Context
    /// Task.
    pub fn ibs_of(&self, processor: &Snapshot, kind: IbsKind) -> Option<IbsUnit> {
        IbsUnit::of(processor, kind)
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
    ) -> Result<TopDownUnit, NoTopDown> {
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
    /// # use pmu::core::{Claim, CounterMemory, MsrBackend, OpenedEvents, Platform, service};
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
    ) -> Result<PreciseUnit, NoPrecise> {
        PreciseUnit::detect(processor, msr)
    }
}

/// Returns the branch records of a processor, of any known vendor.
pub(crate) fn branches<M: MsrBackend>(
    processor: &Snapshot,
    msr: &M,
) -> Result<BranchUnit, NoBranches> {
    match pmu_intel::branches(processor, msr) {
        Err(NoBranches::OtherVendor(_)) => pmu_amd::branches(processor),
        branches => branches,
    }
}
