//! Facilities that perf's events may ask for and that the counters do not have.

use core::fmt;

/// Hardware or software that an event of perf can ask for, and that the converted event cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Facility {
    /// Precise samples that no [precise](pmu_core::Event::precise) event has: retire latencies (`:R`), and events that
    /// AMD's IBS does not sample.
    PreciseSampling,
    /// Records of taken branches (`branch_type`, `PERF_SAMPLE_BRANCH_STACK`) in samples of ops, of AMD's IBS.
    BranchRecords,
    /// Processor traces: Intel PT (`aux_output`).
    ProcessorTrace,
    /// Counters whose overflows reload other counters (`acr_mask`, `config2`).
    AutoCounterReload,
    /// BPF programs that count the event (`:b`).
    Bpf,
    /// Events that the kernel's software counts.
    SoftwareEvents,
    /// Hardware breakpoints (`mem:`).
    Breakpoints,
    /// Trace points of the kernel.
    TracePoints,
    /// Counters outside the cores, such as `uncore_…`, `amd_l3` and `power`.
    OtherUnits,
}

impl fmt::Display for Facility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PreciseSampling => "precise sampling",
            Self::BranchRecords => "branch records",
            Self::ProcessorTrace => "processor traces",
            Self::AutoCounterReload => "auto counter reload",
            Self::Bpf => "BPF",
            Self::SoftwareEvents => "software events",
            Self::Breakpoints => "breakpoints",
            Self::TracePoints => "trace points",
            Self::OtherUnits => "units outside the cores",
        })
    }
}
