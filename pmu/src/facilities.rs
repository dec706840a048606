//! Hardware beside the counters of a machine.

use pmu_core::{MsrBackend, Snapshot};
use pmu_intel::precise::{NoPrecise, PreciseUnit};

use crate::machine::Machine;

impl Machine {
    /// Detects Intel's precise records (PEBS) of the processor that `processor` describes and that executes the call.
    ///
    /// The interrupt handler uses the result, so the kernel keeps one result per processor. It passes a
    /// [`Precise`](pmu_intel::precise::Precise) to [`service_with`](Self::service_with):
    ///
    /// ```
    /// # use pmu::Machine;
    /// # use pmu::core::{Claim, CounterMemory, MsrBackend, Platform};
    /// use pmu::intel::precise::{Precise, PreciseMemory, PreciseReport, PreciseUnit};
    /// # fn push(_address: u64, _tag: u64) {}
    /// /// The kernel's handler of the performance interrupt.
    /// fn handler<M: MsrBackend, P: Platform>(
    ///     (machine, msr, platform, counters): (&Machine, &M, &P, &CounterMemory),
    ///     (unit, records): (&PreciseUnit, &PreciseMemory),
    /// ) -> Claim {
    ///     let records = Precise::new(unit, records, |report: &PreciseReport<'_>| {
    ///         if let Some(address) = report.record.address() {
    ///             push(address, report.tag);
    ///         }
    ///     });
    ///     let serviced = machine.service_with(msr, platform, counters, records, |_, _| ());
    ///     serviced.map_or(Claim::OursAndMore, |serviced| serviced.claim)
    /// }
    /// ```
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// The error is the reason why the processor has no supported precise records.
    pub fn precise_of<M: MsrBackend>(
        &self,
        processor: &Snapshot,
        msr: &M,
    ) -> Result<PreciseUnit, NoPrecise> {
        PreciseUnit::detect(processor, msr)
    }
}
