//! The metrics by their names.

use core::fmt;

/// A ratio of event counts that has a name of its own, such as instructions per cycle or a top-down share.
///
/// Four of the metrics are the shares of top-down level 1: each issue slot of a thread belongs to exactly one of these
/// four shares (A. Yasin, "A Top-Down Method for Performance Analysis and Counters Architecture", ISPASS 2014). On
/// Intel cores up to Cascade Lake, and on AMD Zen cores, the number of slots is computed from the cycles of the thread.
/// The number of slots is then correct only while the other thread of the core is idle.
///
/// The metrics of levels 2 and 3 divide a metric of the level above, their [`parent`](Self::parent). Metrics of level 2
/// are also shares of the slots. Metrics of level 3 are estimates, and many of them count cycles instead of slots. So
/// the sum of the metrics of level 3 can differ from their parent. A metric of level 3 has a meaning only if its parent
/// is large. AMD publishes only levels 1 and 2.
///
/// ```
/// use pmu_events::{Metric, SKYLAKE};
/// let ipc = SKYLAKE.metric(Metric::InstructionsPerCycle)?;
/// let needs: Vec<_> = ipc.events().map(|event| event.name()).collect();
/// assert_eq!(needs, ["INST_RETIRED.ANY", "CPU_CLK_UNHALTED.THREAD"]);
/// let counted = |name: &str| if name == "INST_RETIRED.ANY" { Some(3_000) } else { Some(2_000) };
/// assert_eq!(ipc.ratio(counted)?.times(100), Some(150));
/// # Ok::<(), pmu_events::MetricError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Metric {
    /// Retired instructions per unhalted cycle of the thread.
    InstructionsPerCycle,
    /// Mispredicted branches per thousand retired instructions. On Nehalem and Westmere, the metric counts the
    /// mispredicted branches that were executed. On all other core types, the metric counts the mispredicted branches
    /// that retired.
    BranchMissesPerThousand,
    /// Level 1: share of issue slots with an operation that retired.
    Retiring,
    /// Level 1: share of issue slots lost to wrong speculation. Either the slot's operation did not retire, or the
    /// processor was recovering from the wrong speculation.
    BadSpeculation,
    /// Level 1: share of issue slots for which the front end delivered no operation.
    FrontendBound,
    /// Level 1: share of issue slots that stayed empty because the back end could not accept an operation.
    BackendBound,
    /// Level 1 of AMD cores: share of the thread's issue slots that the other thread of the core used.
    SmtContention,
    /// Level 2: the part of [`FrontendBound`](Self::FrontendBound) in cycles in which the front end delivered no
    /// operation.
    FetchLatency,
    /// Level 2: the part of [`FrontendBound`](Self::FrontendBound) in cycles in which the front end delivered some
    /// operations, but fewer than the back end could accept.
    FetchBandwidth,
    /// Level 2: the part of [`BadSpeculation`](Self::BadSpeculation) caused by mispredicted branches.
    BranchMispredicts,
    /// Level 2: the part of [`BadSpeculation`](Self::BadSpeculation) caused by machine clears or, on AMD cores, by
    /// restarts of the pipeline.
    MachineClears,
    /// Level 2: the part of [`BackendBound`](Self::BackendBound) caused by loads and stores.
    MemoryBound,
    /// Level 2: the part of [`BackendBound`](Self::BackendBound) caused by execution or, on Intel's small cores, by
    /// allocation restrictions.
    CoreBound,
    /// Level 2 of Intel's small cores: the part of [`BackendBound`](Self::BackendBound) caused by a full buffer or
    /// queue.
    ResourceBound,
    /// Level 2: the part of [`Retiring`](Self::Retiring) for instructions that have at most one operation. On AMD
    /// cores: for operations that are not from microcode.
    LightOperations,
    /// Level 2: the part of [`Retiring`](Self::Retiring) for instructions that have several operations. On AMD cores:
    /// for operations from microcode.
    HeavyOperations,
    /// Level 3: the part of [`FetchLatency`](Self::FetchLatency) caused by misses of the instruction cache.
    IcacheMisses,
    /// Level 3: the part of [`FetchLatency`](Self::FetchLatency) caused by misses of the instruction TLB.
    ItlbMisses,
    /// Level 3: the part of [`FetchLatency`](Self::FetchLatency) caused by branch resteers: after a branch, the front
    /// end had fetched from the wrong address.
    BranchResteers,
    /// Level 3 of Intel's small cores: the part of [`FetchLatency`](Self::FetchLatency) caused by branches that were
    /// detected late.
    BranchDetect,
    /// Level 3: the part of [`FetchLatency`](Self::FetchLatency) caused by switches from the decoded instruction cache
    /// (DSB) to the legacy decoders (MITE).
    DsbSwitches,
    /// Level 3: the part of [`FetchLatency`](Self::FetchLatency) caused by prefixes that change the length of an
    /// instruction.
    LengthChangingPrefixes,
    /// Level 3: the part of [`FetchLatency`](Self::FetchLatency) caused by switches to the microcode sequencer (MS).
    MicrocodeSwitches,
    /// Level 3: cycles in which the legacy decoders (MITE) limit the fetch bandwidth.
    Mite,
    /// Level 3: cycles in which the decoded instruction cache (DSB) limits the fetch bandwidth.
    Dsb,
    /// Level 3: cycles in which the loop stream detector (LSD) limits the fetch bandwidth.
    Lsd,
    /// Level 3 of Intel's small cores: the part of [`FetchBandwidth`](Self::FetchBandwidth) lost to microcode.
    Cisc,
    /// Level 3 of Intel's small cores: the part of [`FetchBandwidth`](Self::FetchBandwidth) lost to decoders.
    Decode,
    /// Level 3 of Intel's small cores: the part of [`FetchBandwidth`](Self::FetchBandwidth) lost to wrong predecoding.
    Predecode,
    /// Level 3 of Intel's small cores: the part of [`FetchBandwidth`](Self::FetchBandwidth) lost for a reason other
    /// than microcode, decoders and predecoding.
    OtherFrontend,
    /// Level 3: the part of [`BranchMispredicts`](Self::BranchMispredicts) that is not caused by retired branches.
    OtherMispredicts,
    /// Level 3 of Intel's small cores: the part of [`MachineClears`](Self::MachineClears) that needs microcode.
    Nuke,
    /// Level 3 of Intel's small cores: the part of [`MachineClears`](Self::MachineClears) that needs no microcode.
    FastNuke,
    /// Level 3: the part of [`MachineClears`](Self::MachineClears) that is not caused by memory ordering.
    OtherNukes,
    /// Level 3: the part of [`MemoryBound`](Self::MemoryBound) in which no load misses the first-level cache.
    L1Bound,
    /// Level 3: the part of [`MemoryBound`](Self::MemoryBound) caused by loads that hit the second-level cache.
    L2Bound,
    /// Level 3: the part of [`MemoryBound`](Self::MemoryBound) caused by loads that hit the third-level cache, or a
    /// sibling core's cache.
    L3Bound,
    /// Level 3: the part of [`MemoryBound`](Self::MemoryBound) caused by loads from memory. Persistent memory is
    /// counted as memory.
    DramBound,
    /// Level 3: the part of [`MemoryBound`](Self::MemoryBound) caused by stores.
    StoreBound,
    /// Level 3: the part of [`CoreBound`](Self::CoreBound) caused by the divider.
    Divider,
    /// Level 3: the part of [`CoreBound`](Self::CoreBound) caused by the use of the execution ports.
    PortsUtilization,
    /// Level 3: the part of [`CoreBound`](Self::CoreBound) caused by serializing operations.
    SerializingOperation,
    /// Level 3: the part of [`CoreBound`](Self::CoreBound) caused by the matrix unit (AMX).
    AmxBusy,
    /// Level 3 of Intel's small cores: the part of [`ResourceBound`](Self::ResourceBound) caused by a full scheduler of
    /// memory operations.
    MemoryScheduler,
    /// Level 3 of Intel's small cores: the part of [`ResourceBound`](Self::ResourceBound) caused by a full scheduler of
    /// operations that do not access memory.
    OtherScheduler,
    /// Level 3 of Intel's small cores: the part of [`ResourceBound`](Self::ResourceBound) caused by a lack of physical
    /// registers.
    Registers,
    /// Level 3 of Intel's small cores: the part of [`ResourceBound`](Self::ResourceBound) caused by a full reorder
    /// buffer.
    ReorderBuffer,
    /// Level 3 of Intel's small cores: the part of [`ResourceBound`](Self::ResourceBound) caused by serializing
    /// operations.
    Serialization,
    /// Level 3: the part of [`LightOperations`](Self::LightOperations) for floating-point arithmetic.
    FloatingPoint,
    /// Level 3: the part of [`LightOperations`](Self::LightOperations) for operations on integer vectors.
    IntegerVectors,
    /// Level 3: the part of [`LightOperations`](Self::LightOperations) for operations that access memory.
    MemoryOperations,
    /// Level 3: the part of [`LightOperations`](Self::LightOperations) for pairs of fused instructions, such as a
    /// comparison and a branch.
    FusedInstructions,
    /// Level 3: the part of [`LightOperations`](Self::LightOperations) for branches that are not fused.
    NonFusedBranches,
    /// Level 3: the part of [`LightOperations`](Self::LightOperations) for branches.
    BranchInstructions,
    /// Level 3: the part of [`LightOperations`](Self::LightOperations) for operations that no other level 3 metric
    /// counts.
    OtherLightOperations,
    /// Level 3: the part of [`HeavyOperations`](Self::HeavyOperations) for operations that the decoders deliver.
    FewUopsInstructions,
    /// Level 3: the part of [`HeavyOperations`](Self::HeavyOperations) for operations from the microcode sequencer.
    MicrocodeSequencer,
}

impl Metric {
    /// All metrics, in the order of their declaration.
    pub const ALL: [Self; 57] = [
        Self::InstructionsPerCycle,
        Self::BranchMissesPerThousand,
        Self::Retiring,
        Self::BadSpeculation,
        Self::FrontendBound,
        Self::BackendBound,
        Self::SmtContention,
        Self::FetchLatency,
        Self::FetchBandwidth,
        Self::BranchMispredicts,
        Self::MachineClears,
        Self::MemoryBound,
        Self::CoreBound,
        Self::ResourceBound,
        Self::LightOperations,
        Self::HeavyOperations,
        Self::IcacheMisses,
        Self::ItlbMisses,
        Self::BranchResteers,
        Self::BranchDetect,
        Self::DsbSwitches,
        Self::LengthChangingPrefixes,
        Self::MicrocodeSwitches,
        Self::Mite,
        Self::Dsb,
        Self::Lsd,
        Self::Cisc,
        Self::Decode,
        Self::Predecode,
        Self::OtherFrontend,
        Self::OtherMispredicts,
        Self::Nuke,
        Self::FastNuke,
        Self::OtherNukes,
        Self::L1Bound,
        Self::L2Bound,
        Self::L3Bound,
        Self::DramBound,
        Self::StoreBound,
        Self::Divider,
        Self::PortsUtilization,
        Self::SerializingOperation,
        Self::AmxBusy,
        Self::MemoryScheduler,
        Self::OtherScheduler,
        Self::Registers,
        Self::ReorderBuffer,
        Self::Serialization,
        Self::FloatingPoint,
        Self::IntegerVectors,
        Self::MemoryOperations,
        Self::FusedInstructions,
        Self::NonFusedBranches,
        Self::BranchInstructions,
        Self::OtherLightOperations,
        Self::FewUopsInstructions,
        Self::MicrocodeSequencer,
    ];

    /// Returns the name of the metric, such as `tma_memory_bound`. Formulas use this name to refer to the metric.
    ///
    /// For Intel's cores, Linux' perf has the same names, except that perf has no name for branch misses per thousand
    /// instructions. For AMD's cores, perf has other names.
    ///
    /// ```
    /// use pmu_events::{Metric, SKYLAKE};
    /// let formula = SKYLAKE.metric(Metric::CoreBound)?.to_string();
    /// assert!(formula.ends_with(Metric::MemoryBound.name()));
    /// # Ok::<(), pmu_events::MetricError>(())
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Self::InstructionsPerCycle => "tma_info_thread_ipc",
            Self::BranchMissesPerThousand => "branch_mpki",
            Self::Retiring => "tma_retiring",
            Self::BadSpeculation => "tma_bad_speculation",
            Self::FrontendBound => "tma_frontend_bound",
            Self::BackendBound => "tma_backend_bound",
            Self::SmtContention => "smt_contention",
            Self::FetchLatency => "tma_fetch_latency",
            Self::FetchBandwidth => "tma_fetch_bandwidth",
            Self::BranchMispredicts => "tma_branch_mispredicts",
            Self::MachineClears => "tma_machine_clears",
            Self::MemoryBound => "tma_memory_bound",
            Self::CoreBound => "tma_core_bound",
            Self::ResourceBound => "tma_resource_bound",
            Self::LightOperations => "tma_light_operations",
            Self::HeavyOperations => "tma_heavy_operations",
            Self::IcacheMisses => "tma_icache_misses",
            Self::ItlbMisses => "tma_itlb_misses",
            Self::BranchResteers => "tma_branch_resteers",
            Self::BranchDetect => "tma_branch_detect",
            Self::DsbSwitches => "tma_dsb_switches",
            Self::LengthChangingPrefixes => "tma_lcp",
            Self::MicrocodeSwitches => "tma_ms_switches",
            Self::Mite => "tma_mite",
            Self::Dsb => "tma_dsb",
            Self::Lsd => "tma_lsd",
            Self::Cisc => "tma_cisc",
            Self::Decode => "tma_decode",
            Self::Predecode => "tma_predecode",
            Self::OtherFrontend => "tma_other_fb",
            Self::OtherMispredicts => "tma_other_mispredicts",
            Self::Nuke => "tma_nuke",
            Self::FastNuke => "tma_fast_nuke",
            Self::OtherNukes => "tma_other_nukes",
            Self::L1Bound => "tma_l1_bound",
            Self::L2Bound => "tma_l2_bound",
            Self::L3Bound => "tma_l3_bound",
            Self::DramBound => "tma_dram_bound",
            Self::StoreBound => "tma_store_bound",
            Self::Divider => "tma_divider",
            Self::PortsUtilization => "tma_ports_utilization",
            Self::SerializingOperation => "tma_serializing_operation",
            Self::AmxBusy => "tma_amx_busy",
            Self::MemoryScheduler => "tma_mem_scheduler",
            Self::OtherScheduler => "tma_non_mem_scheduler",
            Self::Registers => "tma_register",
            Self::ReorderBuffer => "tma_reorder_buffer",
            Self::Serialization => "tma_serialization",
            Self::FloatingPoint => "tma_fp_arith",
            Self::IntegerVectors => "tma_int_operations",
            Self::MemoryOperations => "tma_memory_operations",
            Self::FusedInstructions => "tma_fused_instructions",
            Self::NonFusedBranches => "tma_non_fused_branches",
            Self::BranchInstructions => "tma_branch_instructions",
            Self::OtherLightOperations => "tma_other_light_ops",
            Self::FewUopsInstructions => "tma_few_uops_instructions",
            Self::MicrocodeSequencer => "tma_microcode_sequencer",
        }
    }

    /// Returns the metric of the level above, of which this metric is a part. Returns `None` for a metric of level 1,
    /// and for a metric that is not a top-down metric.
    ///
    /// ```
    /// use pmu_events::Metric;
    /// // Where is the time, if memory bound is the largest share of level 2?
    /// let children = Metric::ALL.into_iter().filter(|of| of.parent() == Some(Metric::MemoryBound));
    /// assert!(children.into_iter().any(|metric| metric == Metric::DramBound));
    /// ```
    pub const fn parent(self) -> Option<Self> {
        match self {
            Self::FetchLatency | Self::FetchBandwidth => Some(Self::FrontendBound),
            Self::BranchMispredicts | Self::MachineClears => Some(Self::BadSpeculation),
            Self::MemoryBound | Self::CoreBound | Self::ResourceBound => Some(Self::BackendBound),
            Self::LightOperations | Self::HeavyOperations => Some(Self::Retiring),
            Self::IcacheMisses
            | Self::ItlbMisses
            | Self::BranchResteers
            | Self::BranchDetect
            | Self::DsbSwitches
            | Self::LengthChangingPrefixes
            | Self::MicrocodeSwitches => Some(Self::FetchLatency),
            Self::Mite
            | Self::Dsb
            | Self::Lsd
            | Self::Cisc
            | Self::Decode
            | Self::Predecode
            | Self::OtherFrontend => Some(Self::FetchBandwidth),
            Self::OtherMispredicts => Some(Self::BranchMispredicts),
            Self::Nuke | Self::FastNuke | Self::OtherNukes => Some(Self::MachineClears),
            Self::L1Bound | Self::L2Bound | Self::L3Bound | Self::DramBound | Self::StoreBound => {
                Some(Self::MemoryBound)
            }
            Self::Divider | Self::PortsUtilization | Self::SerializingOperation | Self::AmxBusy => {
                Some(Self::CoreBound)
            }
            Self::MemoryScheduler
            | Self::OtherScheduler
            | Self::Registers
            | Self::ReorderBuffer
            | Self::Serialization => Some(Self::ResourceBound),
            Self::FloatingPoint
            | Self::IntegerVectors
            | Self::MemoryOperations
            | Self::FusedInstructions
            | Self::NonFusedBranches
            | Self::BranchInstructions
            | Self::OtherLightOperations => Some(Self::LightOperations),
            Self::FewUopsInstructions | Self::MicrocodeSequencer => Some(Self::HeavyOperations),
            Self::InstructionsPerCycle
            | Self::BranchMissesPerThousand
            | Self::Retiring
            | Self::BadSpeculation
            | Self::FrontendBound
            | Self::BackendBound
            | Self::SmtContention => None,
        }
    }

    /// Returns the metric with this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|metric| metric.name() == name)
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::InstructionsPerCycle => "instructions per cycle",
            Self::BranchMissesPerThousand => "branch misses per thousand instructions",
            Self::Retiring => "top-down: retiring",
            Self::BadSpeculation => "top-down: bad speculation",
            Self::FrontendBound => "top-down: front-end bound",
            Self::BackendBound => "top-down: back-end bound",
            Self::SmtContention => "top-down: SMT contention",
            Self::FetchLatency => "top-down: fetch latency",
            Self::FetchBandwidth => "top-down: fetch bandwidth",
            Self::BranchMispredicts => "top-down: branch mispredicts",
            Self::MachineClears => "top-down: machine clears",
            Self::MemoryBound => "top-down: memory bound",
            Self::CoreBound => "top-down: core bound",
            Self::ResourceBound => "top-down: resource bound",
            Self::LightOperations => "top-down: light operations",
            Self::HeavyOperations => "top-down: heavy operations",
            Self::IcacheMisses => "top-down: instruction cache misses",
            Self::ItlbMisses => "top-down: instruction TLB misses",
            Self::BranchResteers => "top-down: branch resteers",
            Self::BranchDetect => "top-down: branch detection",
            Self::DsbSwitches => "top-down: DSB switches",
            Self::LengthChangingPrefixes => "top-down: length-changing prefixes",
            Self::MicrocodeSwitches => "top-down: microcode switches",
            Self::Mite => "top-down: MITE",
            Self::Dsb => "top-down: DSB",
            Self::Lsd => "top-down: LSD",
            Self::Cisc => "top-down: CISC",
            Self::Decode => "top-down: decode",
            Self::Predecode => "top-down: predecode",
            Self::OtherFrontend => "top-down: other front end",
            Self::OtherMispredicts => "top-down: other mispredicts",
            Self::Nuke => "top-down: slow machine clears",
            Self::FastNuke => "top-down: fast machine clears",
            Self::OtherNukes => "top-down: other machine clears",
            Self::L1Bound => "top-down: L1 bound",
            Self::L2Bound => "top-down: L2 bound",
            Self::L3Bound => "top-down: L3 bound",
            Self::DramBound => "top-down: DRAM bound",
            Self::StoreBound => "top-down: store bound",
            Self::Divider => "top-down: divider",
            Self::PortsUtilization => "top-down: ports utilization",
            Self::SerializingOperation => "top-down: serializing operations",
            Self::AmxBusy => "top-down: AMX busy",
            Self::MemoryScheduler => "top-down: memory scheduler",
            Self::OtherScheduler => "top-down: other scheduler",
            Self::Registers => "top-down: registers",
            Self::ReorderBuffer => "top-down: reorder buffer",
            Self::Serialization => "top-down: serialization",
            Self::FloatingPoint => "top-down: floating point",
            Self::IntegerVectors => "top-down: integer vectors",
            Self::MemoryOperations => "top-down: memory operations",
            Self::FusedInstructions => "top-down: fused instructions",
            Self::NonFusedBranches => "top-down: other branches",
            Self::BranchInstructions => "top-down: branches",
            Self::OtherLightOperations => "top-down: other light operations",
            Self::FewUopsInstructions => "top-down: instructions of a few operations",
            Self::MicrocodeSequencer => "top-down: microcode",
        })
    }
}
