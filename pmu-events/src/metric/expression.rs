//! Metrics by their names, as events of a core type, and their values.

// To add a metric's formula: a row in `data/metrics.csv`, below those of the metrics that it names; the tables anew
// (`cargo run -p pmu-events-generator`); and the published formula in `tests/data/topdown_metrics.csv`. A new metric:
// its row below, too.

use core::fmt;

use pmu_core::Event;

use crate::event::PmuEvent;
use crate::format::CoreType;
use crate::metric::evaluation::{Evaluation, Ratio, Word, Words, is_keyword};
use crate::tables::FORMULAS;

/// Defines the metrics, each by a row: variant, name, parent, and the words of [`Display`](fmt::Display).
macro_rules! metrics {
    ($($(#[$doc:meta])* $metric:ident = $row:expr,)*) => {
        /// A ratio of event counts that has a name of its own, such as instructions per cycle or a top-down share.
        ///
        /// Four of the metrics are the shares of top-down level 1: each issue slot of a thread belongs to exactly one
        /// of these four shares (A. Yasin, "A Top-Down Method for Performance Analysis and Counters Architecture",
        /// ISPASS 2014). On Intel cores up to Cascade Lake, and on AMD Zen cores, the number of slots is computed from
        /// the cycles of the thread. The number of slots is then correct only while the other thread of the core is
        /// idle.
        ///
        /// The metrics of levels 2 and 3 divide a metric of the level above, their [`parent`](Self::parent). Metrics of
        /// level 2 are also shares of the slots. Metrics of level 3 are estimates, and many of them count cycles
        /// instead of slots. So the sum of the metrics of level 3 can differ from their parent. A metric of level 3 has
        /// a meaning only if its parent is large. AMD publishes only levels 1 and 2.
        ///
        /// ```
        /// use pmu_events::SKYLAKE;
        /// use pmu_events::metric::Metric;
        /// let ipc = SKYLAKE.metric(Metric::InstructionsPerCycle)?;
        /// let needs: Vec<_> = ipc.events().map(|event| event.name()).collect();
        /// assert_eq!(needs, ["INST_RETIRED.ANY", "CPU_CLK_UNHALTED.THREAD"]);
        /// let counted = |name: &str| if name == "INST_RETIRED.ANY" { Some(3_000) } else { Some(2_000) };
        /// assert_eq!(ipc.ratio(counted)?.times(100), Some(150));
        /// # Ok::<(), pmu_events::metric::MetricError>(())
        /// ```
        ///
        /// # Limitations
        /// - Levels 2 and 3 are there for the core types of which Linux 6.12 has formulas: of Intel from Sandy Bridge
        ///   to Meteor Lake, Emerald Rapids and Sierra Forest; not of Lion Cove, Skymont, Granite Rapids, later ones,
        ///   and small cores before Gracemont. Floating point (level 3) is missing on Sandy Bridge and Ivy Bridge,
        ///   because the published formula gives no share.
        /// - The formulas are for a core whose other thread is idle. Persistent memory is counted as memory.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(feature = "defmt", derive(defmt::Format))]
        #[non_exhaustive]
        pub enum Metric { $($(#[$doc])* $metric,)* }

        impl Metric {
            /// All metrics, in the order of their declaration.
            pub const ALL: [Self; [$(stringify!($metric)),*].len()] = [$(Self::$metric),*];

            const fn row(self) -> (&'static str, Option<Self>, &'static str) {
                use Metric::*;
                match self {
                    $($metric => $row,)*
                }
            }
        }
    };
}

metrics! {
    /// Retired instructions per unhalted cycle of the thread.
    InstructionsPerCycle = ("tma_info_thread_ipc", None, "instructions per cycle"),
    /// Mispredicted branches per thousand retired instructions. On Nehalem and Westmere, the metric counts the
    /// mispredicted branches that were executed. On all other core types, the metric counts the mispredicted branches
    /// that retired.
    BranchMissesPerThousand = ("branch_mpki", None, "branch misses per thousand instructions"),
    /// Level 1: share of issue slots with an operation that retired.
    Retiring = ("tma_retiring", None, "top-down: retiring"),
    /// Level 1: share of issue slots lost to wrong speculation. Either the slot's operation did not retire, or the
    /// processor was recovering from the wrong speculation.
    BadSpeculation = ("tma_bad_speculation", None, "top-down: bad speculation"),
    /// Level 1: share of issue slots for which the front end delivered no operation.
    FrontendBound = ("tma_frontend_bound", None, "top-down: front-end bound"),
    /// Level 1: share of issue slots that stayed empty because the back end could not accept an operation.
    BackendBound = ("tma_backend_bound", None, "top-down: back-end bound"),
    /// Level 1 of AMD cores: share of the thread's issue slots that the other thread of the core used.
    SmtContention = ("smt_contention", None, "top-down: SMT contention"),
    /// Level 2: the part of [`FrontendBound`](Self::FrontendBound) in cycles in which the front end delivered no
    /// operation.
    FetchLatency = ("tma_fetch_latency", Some(FrontendBound), "top-down: fetch latency"),
    /// Level 2: the part of [`FrontendBound`](Self::FrontendBound) in cycles in which the front end delivered some
    /// operations, but fewer than the back end could accept.
    FetchBandwidth = ("tma_fetch_bandwidth", Some(FrontendBound), "top-down: fetch bandwidth"),
    /// Level 2: the part of [`BadSpeculation`](Self::BadSpeculation) caused by mispredicted branches.
    BranchMispredicts = ("tma_branch_mispredicts", Some(BadSpeculation), "top-down: branch mispredicts"),
    /// Level 2: the part of [`BadSpeculation`](Self::BadSpeculation) caused by machine clears or, on AMD cores, by
    /// restarts of the pipeline.
    MachineClears = ("tma_machine_clears", Some(BadSpeculation), "top-down: machine clears"),
    /// Level 2: the part of [`BackendBound`](Self::BackendBound) caused by loads and stores.
    MemoryBound = ("tma_memory_bound", Some(BackendBound), "top-down: memory bound"),
    /// Level 2: the part of [`BackendBound`](Self::BackendBound) caused by execution or, on Intel's small cores, by
    /// allocation restrictions.
    CoreBound = ("tma_core_bound", Some(BackendBound), "top-down: core bound"),
    /// Level 2 of Intel's small cores: the part of [`BackendBound`](Self::BackendBound) caused by a full buffer or
    /// queue.
    ResourceBound = ("tma_resource_bound", Some(BackendBound), "top-down: resource bound"),
    /// Level 2: the part of [`Retiring`](Self::Retiring) for instructions that have at most one operation. On AMD
    /// cores: for operations that are not from microcode.
    LightOperations = ("tma_light_operations", Some(Retiring), "top-down: light operations"),
    /// Level 2: the part of [`Retiring`](Self::Retiring) for instructions that have several operations. On AMD cores:
    /// for operations from microcode.
    HeavyOperations = ("tma_heavy_operations", Some(Retiring), "top-down: heavy operations"),
    /// Level 3: the part of [`FetchLatency`](Self::FetchLatency) caused by misses of the instruction cache.
    IcacheMisses = ("tma_icache_misses", Some(FetchLatency), "top-down: instruction cache misses"),
    /// Level 3: the part of [`FetchLatency`](Self::FetchLatency) caused by misses of the instruction TLB.
    ItlbMisses = ("tma_itlb_misses", Some(FetchLatency), "top-down: instruction TLB misses"),
    /// Level 3: the part of [`FetchLatency`](Self::FetchLatency) caused by branch resteers: after a branch, the front
    /// end had fetched from the wrong address.
    BranchResteers = ("tma_branch_resteers", Some(FetchLatency), "top-down: branch resteers"),
    /// Level 3 of Intel's small cores: the part of [`FetchLatency`](Self::FetchLatency) caused by branches that were
    /// detected late.
    BranchDetect = ("tma_branch_detect", Some(FetchLatency), "top-down: branch detection"),
    /// Level 3: the part of [`FetchLatency`](Self::FetchLatency) caused by switches from the decoded instruction cache
    /// (DSB) to the legacy decoders (MITE).
    DsbSwitches = ("tma_dsb_switches", Some(FetchLatency), "top-down: DSB switches"),
    /// Level 3: the part of [`FetchLatency`](Self::FetchLatency) caused by prefixes that change the length of an
    /// instruction.
    LengthChangingPrefixes = ("tma_lcp", Some(FetchLatency), "top-down: length-changing prefixes"),
    /// Level 3: the part of [`FetchLatency`](Self::FetchLatency) caused by switches to the microcode sequencer (MS).
    MicrocodeSwitches = ("tma_ms_switches", Some(FetchLatency), "top-down: microcode switches"),
    /// Level 3: cycles in which the legacy decoders (MITE) limit the fetch bandwidth.
    Mite = ("tma_mite", Some(FetchBandwidth), "top-down: MITE"),
    /// Level 3: cycles in which the decoded instruction cache (DSB) limits the fetch bandwidth.
    Dsb = ("tma_dsb", Some(FetchBandwidth), "top-down: DSB"),
    /// Level 3: cycles in which the loop stream detector (LSD) limits the fetch bandwidth.
    Lsd = ("tma_lsd", Some(FetchBandwidth), "top-down: LSD"),
    /// Level 3 of Intel's small cores: the part of [`FetchBandwidth`](Self::FetchBandwidth) lost to microcode.
    Cisc = ("tma_cisc", Some(FetchBandwidth), "top-down: CISC"),
    /// Level 3 of Intel's small cores: the part of [`FetchBandwidth`](Self::FetchBandwidth) lost to decoders.
    Decode = ("tma_decode", Some(FetchBandwidth), "top-down: decode"),
    /// Level 3 of Intel's small cores: the part of [`FetchBandwidth`](Self::FetchBandwidth) lost to wrong predecoding.
    Predecode = ("tma_predecode", Some(FetchBandwidth), "top-down: predecode"),
    /// Level 3 of Intel's small cores: the part of [`FetchBandwidth`](Self::FetchBandwidth) lost for a reason other
    /// than microcode, decoders and predecoding.
    OtherFrontend = ("tma_other_fb", Some(FetchBandwidth), "top-down: other front end"),
    /// Level 3: the part of [`BranchMispredicts`](Self::BranchMispredicts) that is not caused by retired branches.
    OtherMispredicts = ("tma_other_mispredicts", Some(BranchMispredicts), "top-down: other mispredicts"),
    /// Level 3 of Intel's small cores: the part of [`MachineClears`](Self::MachineClears) that needs microcode.
    Nuke = ("tma_nuke", Some(MachineClears), "top-down: slow machine clears"),
    /// Level 3 of Intel's small cores: the part of [`MachineClears`](Self::MachineClears) that needs no microcode.
    FastNuke = ("tma_fast_nuke", Some(MachineClears), "top-down: fast machine clears"),
    /// Level 3: the part of [`MachineClears`](Self::MachineClears) that is not caused by memory ordering.
    OtherNukes = ("tma_other_nukes", Some(MachineClears), "top-down: other machine clears"),
    /// Level 3: the part of [`MemoryBound`](Self::MemoryBound) in which no load misses the first-level cache.
    L1Bound = ("tma_l1_bound", Some(MemoryBound), "top-down: L1 bound"),
    /// Level 3: the part of [`MemoryBound`](Self::MemoryBound) caused by loads that hit the second-level cache.
    L2Bound = ("tma_l2_bound", Some(MemoryBound), "top-down: L2 bound"),
    /// Level 3: the part of [`MemoryBound`](Self::MemoryBound) caused by loads that hit the third-level cache, or a
    /// sibling core's cache.
    L3Bound = ("tma_l3_bound", Some(MemoryBound), "top-down: L3 bound"),
    /// Level 3: the part of [`MemoryBound`](Self::MemoryBound) caused by loads from memory. Persistent memory is
    /// counted as memory.
    DramBound = ("tma_dram_bound", Some(MemoryBound), "top-down: DRAM bound"),
    /// Level 3: the part of [`MemoryBound`](Self::MemoryBound) caused by stores.
    StoreBound = ("tma_store_bound", Some(MemoryBound), "top-down: store bound"),
    /// Level 3: the part of [`CoreBound`](Self::CoreBound) caused by the divider.
    Divider = ("tma_divider", Some(CoreBound), "top-down: divider"),
    /// Level 3: the part of [`CoreBound`](Self::CoreBound) caused by the use of the execution ports.
    PortsUtilization = ("tma_ports_utilization", Some(CoreBound), "top-down: ports utilization"),
    /// Level 3: the part of [`CoreBound`](Self::CoreBound) caused by serializing operations.
    SerializingOperation = ("tma_serializing_operation", Some(CoreBound), "top-down: serializing operations"),
    /// Level 3: the part of [`CoreBound`](Self::CoreBound) caused by the matrix unit (AMX).
    AmxBusy = ("tma_amx_busy", Some(CoreBound), "top-down: AMX busy"),
    /// Level 3 of Intel's small cores: the part of [`ResourceBound`](Self::ResourceBound) caused by a full scheduler of
    /// memory operations.
    MemoryScheduler = ("tma_mem_scheduler", Some(ResourceBound), "top-down: memory scheduler"),
    /// Level 3 of Intel's small cores: the part of [`ResourceBound`](Self::ResourceBound) caused by a full scheduler of
    /// operations that do not access memory.
    OtherScheduler = ("tma_non_mem_scheduler", Some(ResourceBound), "top-down: other scheduler"),
    /// Level 3 of Intel's small cores: the part of [`ResourceBound`](Self::ResourceBound) caused by a lack of physical
    /// registers.
    Registers = ("tma_register", Some(ResourceBound), "top-down: registers"),
    /// Level 3 of Intel's small cores: the part of [`ResourceBound`](Self::ResourceBound) caused by a full reorder
    /// buffer.
    ReorderBuffer = ("tma_reorder_buffer", Some(ResourceBound), "top-down: reorder buffer"),
    /// Level 3 of Intel's small cores: the part of [`ResourceBound`](Self::ResourceBound) caused by serializing
    /// operations.
    Serialization = ("tma_serialization", Some(ResourceBound), "top-down: serialization"),
    /// Level 3: the part of [`LightOperations`](Self::LightOperations) for floating-point arithmetic.
    FloatingPoint = ("tma_fp_arith", Some(LightOperations), "top-down: floating point"),
    /// Level 3: the part of [`LightOperations`](Self::LightOperations) for operations on integer vectors.
    IntegerVectors = ("tma_int_operations", Some(LightOperations), "top-down: integer vectors"),
    /// Level 3: the part of [`LightOperations`](Self::LightOperations) for operations that access memory.
    MemoryOperations = ("tma_memory_operations", Some(LightOperations), "top-down: memory operations"),
    /// Level 3: the part of [`LightOperations`](Self::LightOperations) for pairs of fused instructions, such as a
    /// comparison and a branch.
    FusedInstructions = ("tma_fused_instructions", Some(LightOperations), "top-down: fused instructions"),
    /// Level 3: the part of [`LightOperations`](Self::LightOperations) for branches that are not fused.
    NonFusedBranches = ("tma_non_fused_branches", Some(LightOperations), "top-down: other branches"),
    /// Level 3: the part of [`LightOperations`](Self::LightOperations) for branches.
    BranchInstructions = ("tma_branch_instructions", Some(LightOperations), "top-down: branches"),
    /// Level 3: the part of [`LightOperations`](Self::LightOperations) for operations that no other level 3 metric
    /// counts.
    OtherLightOperations = ("tma_other_light_ops", Some(LightOperations), "top-down: other light operations"),
    /// Level 3: the part of [`HeavyOperations`](Self::HeavyOperations) for operations that the decoders deliver.
    FewUopsInstructions =
        ("tma_few_uops_instructions", Some(HeavyOperations), "top-down: instructions of a few operations"),
    /// Level 3: the part of [`HeavyOperations`](Self::HeavyOperations) for operations from the microcode sequencer.
    MicrocodeSequencer = ("tma_microcode_sequencer", Some(HeavyOperations), "top-down: microcode"),
}

impl Metric {
    /// Returns the name of the metric, such as `tma_memory_bound`. Formulas use this name to refer to the metric.
    ///
    /// For Intel's cores, Linux' perf has the same names, except that perf has no name for branch misses per thousand
    /// instructions. For AMD's cores, perf has other names.
    ///
    /// ```
    /// use pmu_events::SKYLAKE;
    /// use pmu_events::metric::Metric;
    /// let formula = SKYLAKE.metric(Metric::CoreBound)?.to_string();
    /// assert!(formula.ends_with(Metric::MemoryBound.name()));
    /// # Ok::<(), pmu_events::metric::MetricError>(())
    /// ```
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// Returns the metric of the level above, of which this metric is a part. Returns `None` for a metric of level 1,
    /// and for a metric that is not a top-down metric.
    ///
    /// ```
    /// use pmu_events::metric::Metric;
    /// // Where is the time, if memory bound is the largest share of level 2?
    /// let children = Metric::ALL.into_iter().filter(|of| of.parent() == Some(Metric::MemoryBound));
    /// assert!(children.into_iter().any(|metric| metric == Metric::DramBound));
    /// ```
    pub const fn parent(self) -> Option<Self> {
        self.row().1
    }

    /// Returns the metric with this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|metric| metric.name() == name)
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.row().2)
    }
}

/// Metrics within each other's formulas, at most.
const DEPTH: usize = 6;

impl CoreType {
    /// Returns the formula of a metric for this core type. The formula names the events to count, and computes the
    /// ratio from their counts.
    ///
    /// ```
    /// use pmu_events::metric::{Metric, MetricError};
    /// use pmu_events::{NEHALEMEP, SKYLAKE};
    /// let speculation = SKYLAKE.metric(Metric::BadSpeculation)?;
    /// println!("count {} events for {speculation}", speculation.events().count());
    /// let missing = NEHALEMEP.metric(Metric::FrontendBound).err();
    /// assert_eq!(missing, Some(MetricError::NotHere(Metric::FrontendBound)));
    /// # Ok::<(), MetricError>(())
    /// ```
    ///
    /// # Errors
    /// [`NotHere`](MetricError::NotHere): this crate has no formula of the metric for this core type.
    pub fn metric(&'static self, metric: Metric) -> Result<Expression, MetricError> {
        let mut formulas = FORMULAS.iter();
        let formula = formulas.find(|formula| formula.is_of(metric.name(), self.name));
        let formula = formula.ok_or(MetricError::NotHere(metric))?;
        Ok(Expression { core_type: self, metric, text: formula.text })
    }
}

/// Formula of a [`Metric`] for a core type. The formula computes the metric from event counts.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Expression {
    core_type: &'static CoreType,
    metric: Metric,
    text: &'static str,
}

impl Expression {
    /// Returns the events of the formula. If the formula uses other metrics, the result also has the events of these
    /// metrics. Each event is returned once. Count these events together, as a group.
    ///
    /// A [metric](Metric) of level 3 may have more events than a processor has counters. In this case, count the events
    /// in turns and scale the counts, as `perf stat` does. Or count groups of the events in several runs of the same
    /// work.
    pub fn events(&self) -> impl Iterator<Item = MetricEvent> {
        let (core_type, own) = (self.core_type, self.names());
        self.names().enumerate().filter_map(move |(place, name)| {
            // Read again for each name: a formula has few names, and remembering them would need an allocation.
            let is_first = !own.clone().take(place).any(|before| before == name);
            is_first.then(|| MetricEvent::find(core_type, name)).flatten()
        })
    }

    /// Computes the value of the metric from the counts of the events.
    ///
    /// `counted` takes the name of an event, spelled as [`MetricEvent::name`] spells it, and returns the count of this
    /// event. If `counted` returns `None`, the result is an error. The function calls `counted` once for each place
    /// where the formula names an event.
    ///
    /// ```
    /// use pmu_events::ZEN4;
    /// use pmu_events::metric::Metric;
    /// let ipc = ZEN4.metric(Metric::InstructionsPerCycle)?;
    /// let counts = [("ex_ret_instr", 5_000), ("ls_not_halted_cyc", 4_000)];
    /// let counted = |name: &str| Some(counts.iter().find(|(of, _)| *of == name)?.1);
    /// assert_eq!(ipc.ratio(counted)?.times(100), Some(125)); // 1.25
    /// # Ok::<(), pmu_events::metric::MetricError>(())
    /// ```
    ///
    /// # Context
    /// Task: for a metric of level 3, the function may evaluate the formulas of many other metrics.
    ///
    /// # Errors
    /// - [`NotCounted`](MetricError::NotCounted): `counted` returned `None` for an event of the formula.
    /// - [`NothingToShare`](MetricError::NothingToShare): a denominator in the formula is 0.
    pub fn ratio(&self, counted: impl Fn(&str) -> Option<u64>) -> Result<Ratio, MetricError> {
        self.value(&counted, DEPTH)
    }

    fn value(
        &self,
        counted: &dyn Fn(&str) -> Option<u64>,
        depth: usize,
    ) -> Result<Ratio, MetricError> {
        let malformed = MetricError::NotHere(self.metric);
        let value_of = |name: &'static str| match Metric::named(name) {
            Some(metric) if depth > 0 => self.core_type.metric(metric)?.value(counted, depth - 1),
            // Never of the crate's own formulas, which refer to fewer levels: it bounds the recursion.
            Some(_) => Err(malformed),
            None => match counted(name) {
                Some(count) => Ok(Ratio::whole(count.into())),
                None => Err(MetricError::NotCounted(name)),
            },
        };
        Evaluation::evaluate(self.text, &value_of, malformed)
    }

    fn names(&self) -> Names {
        let mut texts = [Words(""); DEPTH + 1];
        texts[0] = Words(self.text);
        Names { core_type: self.core_type, texts, depth: 0 }
    }
}

/// Writes the formula, for instance `(INST_RETIRED.ANY) / (CPU_CLK_UNHALTED.THREAD)`. If the formula uses another
/// metric, the text contains the [name](Metric::name) of this metric.
impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text)
    }
}

/// The names of events in a formula, and in the formulas of its metrics.
#[derive(Clone)]
struct Names {
    core_type: &'static CoreType,
    /// Rest of each formula that is being read.
    texts: [Words; DEPTH + 1],
    depth: usize,
}

impl Iterator for Names {
    type Item = &'static str;

    fn next(&mut self) -> Option<&'static str> {
        loop {
            // A stack in place of recursion: an iterator returns in the midst of a formula within a formula.
            match self.texts.get_mut(self.depth)?.next() {
                Some(Word::Name(name)) if !is_keyword(name) => match Metric::named(name) {
                    None => return Some(name),
                    Some(metric) => {
                        let formula = self.core_type.metric(metric).ok()?;
                        *self.texts.get_mut(self.depth + 1)? = Words(formula.text);
                        self.depth += 1;
                    }
                },
                Some(_) => {}
                None => self.depth = self.depth.checked_sub(1)?,
            }
        }
    }
}

/// An event in a metric's formula. The formula may set fields in the event's select.
///
/// ```
/// use pmu_core::Event;
/// use pmu_events::ZEN5;
/// use pmu_events::metric::Metric;
/// // Slots without an operation, and cycles in which all eight slots were without one.
/// let latency = ZEN5.metric(Metric::FetchLatency)?;
/// let starved = latency.events().next().unwrap();
/// assert_eq!(starved.name(), "de_no_dispatch_per_slot.no_ops_from_frontend:cmask=8");
/// assert_eq!(starved.event().select().select_bits() >> 24 & 0xFF, 8);
/// let to_open: Event = starved.into();
/// # let _ = to_open;
/// # Ok::<(), pmu_events::metric::MetricError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct MetricEvent {
    name: &'static str,
    event: PmuEvent,
}

impl MetricEvent {
    /// Finds `NAME:field=value:…`.
    fn find(core_type: &'static CoreType, name: &'static str) -> Option<Self> {
        let mut parts = name.split(':');
        let listed = core_type.event(parts.next()?).ok()?;
        let event = parts.try_fold(listed, |event, field| {
            let (field, value) = field.split_once('=')?;
            // The fields are as in Linux' formulas, which have some values in hexadecimal.
            let value = match value.strip_prefix("0x") {
                Some(digits) => u8::from_str_radix(digits, 16),
                None => value.parse(),
            };
            event.with_field(field, value.ok()?)
        })?;
        Some(Self { name, event })
    }

    /// Returns the name of the event in the formula, such as `ICACHE_16B.IFDATA_STALL:cmask=1:edge=1`. The name
    /// consists of the event's name in the vendor's list, and of the fields that the formula sets.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the event of the core type. The event's select has the fields that the formula sets.
    pub const fn event(&self) -> PmuEvent {
        self.event
    }
}

/// Converts the [`PmuEvent`] of a `MetricEvent` to an event that `pmu-core` can count.
impl From<MetricEvent> for Event {
    fn from(event: MetricEvent) -> Self {
        event.event.into()
    }
}

/// Reason why a metric has no formula or no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum MetricError {
    /// This crate has no formula for the metric on this core type. The core type lacks events that the metric needs.
    /// The value is the metric.
    #[error("{0}: no formula is known for this core type")]
    NotHere(Metric),
    /// The caller gave no count for an event that the metric needs. The value is the event's name.
    #[error("{0} was not counted")]
    NotCounted(&'static str),
    /// A denominator in the metric's formula is 0, because the denominator's events did not occur.
    #[error("nothing was counted of what it is a share of")]
    NothingToShare,
}
