//! Perf's generic events: their names, their numbers, and their encodings.

use core::fmt;
use core::str::FromStr;

use pmu_core::SoftwareEvent;
use pmu_core::registers::EventList;

use crate::perf::attributes::{PERF_TYPE_HARDWARE, PERF_TYPE_RAW, PerfAttributes, RawConfig};
use crate::perf::error::{Facility, PerfError};

/// Names of `enum perf_hw_id`, each with its number. Source: perf-list(1).
const HARDWARE_NAMES: [(&str, u64); 14] = [
    ("cpu-cycles", 0),
    ("cycles", 0),
    ("instructions", 1),
    ("cache-references", 2),
    ("cache-misses", 3),
    ("branch-instructions", 4),
    ("branches", 4),
    ("branch-misses", 5),
    ("bus-cycles", 6),
    ("stalled-cycles-frontend", 7),
    ("idle-cycles-frontend", 7),
    ("stalled-cycles-backend", 8),
    ("idle-cycles-backend", 8),
    ("ref-cycles", 9),
];

/// Names of `enum perf_sw_ids`, each with its event; `None` for those that this crate does not have. Source:
/// perf-list(1).
const SOFTWARE_NAMES: [(&str, Option<SoftwareEvent>); 15] = [
    ("cpu-clock", Some(SoftwareEvent::CpuClock)),
    ("task-clock", Some(SoftwareEvent::TaskClock)),
    ("page-faults", Some(SoftwareEvent::PageFaults)),
    ("faults", Some(SoftwareEvent::PageFaults)),
    ("context-switches", Some(SoftwareEvent::ContextSwitches)),
    ("cs", Some(SoftwareEvent::ContextSwitches)),
    ("cpu-migrations", Some(SoftwareEvent::CpuMigrations)),
    ("migrations", Some(SoftwareEvent::CpuMigrations)),
    ("minor-faults", Some(SoftwareEvent::MinorFaults)),
    ("major-faults", Some(SoftwareEvent::MajorFaults)),
    ("alignment-faults", Some(SoftwareEvent::AlignmentFaults)),
    ("emulation-faults", Some(SoftwareEvent::EmulationFaults)),
    ("dummy", Some(SoftwareEvent::Dummy)),
    ("bpf-output", None),
    ("cgroup-switches", None),
];

/// Returns the number of the hardware event with this name.
pub(crate) fn hardware_event(name: &str) -> Option<u64> {
    let found = HARDWARE_NAMES.iter().find(|(known, _)| name.eq_ignore_ascii_case(known));
    found.map(|(_, number)| *number)
}

/// Returns the software event with this name.
pub(crate) fn software_event(name: &str) -> Option<SoftwareEvent> {
    let found = SOFTWARE_NAMES.iter().find(|(known, _)| name.eq_ignore_ascii_case(known));
    found.and_then(|(_, event)| *event)
}

/// Returns what an event that no counter counts needs; `None` if the name tells nothing.
pub(crate) fn facility(name: &str) -> Option<Facility> {
    if SOFTWARE_NAMES.iter().any(|(known, _)| name.eq_ignore_ascii_case(known)) {
        Some(Facility::SoftwareEvents)
    } else if name == "mem" {
        Some(Facility::Breakpoints)
    } else {
        None
    }
}

/// Type of perf's generic cache events, `PERF_TYPE_HW_CACHE`: the configuration is the [`config`](CacheEvent::config)
/// of a [`CacheEvent`].
pub const PERF_TYPE_HW_CACHE: u32 = 3;

/// Cache whose accesses or misses one of perf's generic cache events counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Cache {
    /// `L1-dcache`: the first level's data cache.
    L1Data,
    /// `L1-icache`: the first level's instruction cache.
    L1Instruction,
    /// `LLC`: the last-level cache. On a processor without events of that cache, `LLC` means the outermost cache that
    /// has events.
    LastLevel,
    /// `dTLB`: translations of data addresses.
    DataTlb,
    /// `iTLB`: translations of instruction addresses.
    InstructionTlb,
    /// `branch`: the branch predictor.
    Branches,
    /// `node`: the memory of the processor's own NUMA node. A miss is an access to the memory of another node.
    Node,
}

/// An operation on a [`Cache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum CacheOperation {
    /// `loads`.
    Load,
    /// `stores`.
    Store,
    /// `prefetches`.
    Prefetch,
}

/// One of perf's generic cache events, such as `L1-dcache-load-misses`.
///
/// Source: `include/uapi/linux/perf_event.h`, `enum perf_hw_cache_id` and the two enumerations after it; perf-list(1).
///
/// ```
/// use pmu::perf::{Cache, CacheEvent, CacheOperation};
/// let event: CacheEvent = "LLC-load-misses".parse()?;
/// assert_eq!(event.cache, Cache::LastLevel);
/// assert_eq!(event.operation, CacheOperation::Load);
/// assert!(event.misses);
/// assert_eq!(event.config(), 0x1_0002);
/// assert_eq!(event.to_string(), "LLC-load-misses");
/// # Ok::<(), pmu::perf::PerfError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CacheEvent {
    /// The cache.
    pub cache: Cache,
    /// The operation on the cache.
    pub operation: CacheOperation,
    /// `true` if the event counts misses; `false` if the event counts all accesses.
    pub misses: bool,
}

/// Caches by number, with perf's own name first.
const CACHES: [(Cache, &[&str]); 7] = [
    (Cache::L1Data, &["L1-dcache", "l1-d", "l1d", "L1-data"]),
    (Cache::L1Instruction, &["L1-icache", "l1-i", "l1i", "L1-instruction"]),
    (Cache::LastLevel, &["LLC", "L2"]),
    (Cache::DataTlb, &["dTLB", "d-tlb", "Data-TLB"]),
    (Cache::InstructionTlb, &["iTLB", "i-tlb", "Instruction-TLB"]),
    (Cache::Branches, &["branch", "branches", "bpu", "btb", "bpc"]),
    (Cache::Node, &["node"]),
];

/// Operations by number, with the names for accesses and before `-misses` first.
const OPERATIONS: [(CacheOperation, &[&str]); 3] = [
    (CacheOperation::Load, &["loads", "load", "read"]),
    (CacheOperation::Store, &["stores", "store", "write"]),
    (CacheOperation::Prefetch, &["prefetches", "prefetch", "speculative-read", "speculative-load"]),
];

/// Results by number, with perf's own name first.
const RESULTS: [(bool, &[&str]); 2] =
    [(false, &["refs", "Reference", "ops", "access"]), (true, &["misses", "miss"])];

/// Returns the entry of `table` with the longest of the names that `text` begins with, and the text after its hyphen.
fn prefix<'a, T: Copy>(table: &[(T, &[&str])], text: &'a str) -> Option<(T, &'a str)> {
    let names = table.iter().flat_map(|(entry, names)| names.iter().map(|name| (*entry, *name)));
    let found = names.filter_map(|(entry, name)| {
        let (head, rest) = text.split_at_checked(name.len())?;
        let ends = rest.is_empty() || rest.starts_with('-') && rest.len() > 1;
        let rest = rest.strip_prefix('-').unwrap_or(rest);
        (ends && head.eq_ignore_ascii_case(name)).then_some((entry, rest))
    });
    found.min_by_key(|(_, rest)| rest.len())
}

impl CacheEvent {
    /// Returns whether the cache has the operation: instructions are not stored, and translations of instructions and
    /// branches are not prefetched either.
    const fn is_possible(self) -> bool {
        match self.cache {
            Cache::L1Data | Cache::LastLevel | Cache::DataTlb | Cache::Node => true,
            Cache::L1Instruction => !matches!(self.operation, CacheOperation::Store),
            Cache::InstructionTlb | Cache::Branches => {
                matches!(self.operation, CacheOperation::Load)
            }
        }
    }

    /// Returns the cache event with the configuration `config`; `None` if no cache event has this configuration.
    pub fn from_config(config: u64) -> Option<Self> {
        let number = |at: u32| usize::from((config >> at) as u8);
        let (cache, _) = CACHES.get(number(0))?;
        let (operation, _) = OPERATIONS.get(number(8))?;
        let (misses, _) = RESULTS.get(number(16))?;
        let event = Self { cache: *cache, operation: *operation, misses: *misses };
        (config >> 24 == 0 && event.is_possible()).then_some(event)
    }

    /// Returns the value of perf's field `config`. Bits 7:0 are the cache, and bits 15:8 are the operation. Bits 23:16
    /// are 1 for misses, and 0 for all accesses.
    pub const fn config(self) -> u64 {
        self.cache as u64 | (self.operation as u64) << 8 | (self.misses as u64) << 16
    }
}

impl FromStr for CacheEvent {
    type Err = PerfError;

    /// Parses perf's name of a cache event, such as `L1-dcache-load-misses`, in upper or lower case. A name begins with
    /// a cache. An operation, a result or both may follow, each after a hyphen. A name without an operation means
    /// loads. A name without a result means all accesses.
    fn from_str(text: &str) -> Result<Self, PerfError> {
        let no_event = PerfError::Term { at: 0 };
        let (cache, mut rest) = prefix(&CACHES, text).ok_or(no_event)?;
        let (mut operation, mut result) = (None, None);
        while !rest.is_empty() {
            if let (None, Some((found, after))) = (operation, prefix(&OPERATIONS, rest)) {
                (operation, rest) = (Some(found), after);
            } else if let (None, Some((found, after))) = (result, prefix(&RESULTS, rest)) {
                (result, rest) = (Some(found), after);
            } else {
                return Err(no_event);
            }
        }
        let operation = operation.unwrap_or(CacheOperation::Load);
        let event = Self { cache, operation, misses: result.unwrap_or(false) };
        if event.is_possible() { Ok(event) } else { Err(no_event) }
    }
}

/// Writes perf's own name: `L1-dcache-loads`, `L1-dcache-load-misses`.
impl fmt::Display for CacheEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cache = CACHES.iter().find(|(cache, _)| *cache == self.cache);
        let operation = OPERATIONS.iter().find(|(operation, _)| *operation == self.operation);
        if let (Some((_, [cache, ..])), Some((_, [plural, singular, ..]))) = (cache, operation) {
            match self.misses {
                false => write!(f, "{cache}-{plural}")?,
                true => write!(f, "{cache}-{singular}-misses")?,
            }
        }
        Ok(())
    }
}

/// Loads and stores, of the L1 data cache and before the data TLB.
const LOADS: [&str; 3] =
    ["MEM_INST_RETIRED.ALL_LOADS", "MEM_UOPS_RETIRED.ALL_LOADS", "MEM_INST_RETIRED.LOADS"];
const STORES: [&str; 3] =
    ["MEM_INST_RETIRED.ALL_STORES", "MEM_UOPS_RETIRED.ALL_STORES", "MEM_INST_RETIRED.STORES"];

/// Names of bus cycles (`config` 6), and of cycles in which the front end (7) or the back end (8) is stalled.
const BUS_CYCLES: &[&str] =
    &["CPU_CLK_UNHALTED.REF_P", "CPU_CLK_UNHALTED.REF_XCLK", "CPU_CLK_UNHALTED.REF_TSC_P"];
const STALLED_FRONTEND: &[&str] =
    &["UOPS_ISSUED.STALL_CYCLES", "de_dis_uop_queue_empty_di0", "ic_fetch_stall.ic_stall_dq_empty"];
const STALLED_BACKEND: &[&str] = &[
    "UOPS_EXECUTED.CORE_STALL_CYCLES",
    "UOPS_DISPATCHED.STALL_CYCLES",
    "UOPS_EXECUTED.STALL_CYCLES",
    "ic_fetch_stall.ic_stall_back_pressure",
];

/// Returns names of a cache event, the best first: a processor has the first that its list has.
///
/// Source: Intel's event lists (perfmon); AMD's processor programming references; for the choice among them, the tables
/// of Linux' `arch/x86/events`.
const fn names_of(event: CacheEvent) -> &'static [&'static str] {
    use Cache::*;
    use CacheOperation::*;
    match (event.cache, event.operation, event.misses) {
        (L1Data, Load, false) => &[LOADS[0], LOADS[1], LOADS[2], "ls_dc_accesses"],
        (L1Data, Load, true) => &[
            "L1D.REPLACEMENT",
            "L1D.REPL",
            "l2_request_g1.all_dc",
            "l2_cache_accesses_from_dc_misses",
        ],
        (L1Data | DataTlb, Store, false) => &STORES,
        (L1Data, Store, true) => &["L1D.ALL_M_REPLACEMENT", "L1D.M_REPL"],
        (L1Data, Prefetch, false) => &["L1D_PREFETCH.REQUESTS", "ls_hw_pf_dc_fills.all"],
        (L1Data, Prefetch, true) => &["HW_PRE_REQ.DL1_MISS", "L1D_PREFETCH.MISS"],
        (L1Instruction, Load, false) => &[
            "L1I.READS",
            "ICACHE.ACCESSES",
            "ic_fw32",
            "ic_tag_hit_miss.all_instruction_cache_accesses",
        ],
        (L1Instruction, Load, true) => &[
            "ICACHE_64B.IFTAG_MISS",
            "ICACHE.MISSES",
            "L1I.MISSES",
            "L2_RQSTS.ALL_CODE_RD",
            "ic_fw32_miss",
            "ic_tag_hit_miss.instruction_cache_miss",
        ],
        (LastLevel, Load, false) => {
            &["OCR.DEMAND_DATA_RD.ANY_RESPONSE", "OFFCORE_RESPONSE.DEMAND_DATA_RD.ANY_RESPONSE"]
        }
        (LastLevel, Load, true) => {
            &["OCR.DEMAND_DATA_RD.L3_MISS", "OFFCORE_RESPONSE.DEMAND_DATA_RD.L3_MISS.ANY_SNOOP"]
        }
        (LastLevel, Store, false) => {
            &["OCR.DEMAND_RFO.ANY_RESPONSE", "OFFCORE_RESPONSE.DEMAND_RFO.ANY_RESPONSE"]
        }
        (LastLevel, Store, true) => {
            &["OCR.DEMAND_RFO.L3_MISS", "OFFCORE_RESPONSE.DEMAND_RFO.L3_MISS.ANY_SNOOP"]
        }
        (DataTlb, Load, false) => &[LOADS[0], LOADS[1], LOADS[2], "ls_l1_d_tlb_miss.all"],
        (DataTlb, Load, true) => {
            &["DTLB_LOAD_MISSES.WALK_COMPLETED", "ls_l1_d_tlb_miss.all_l2_miss", "l2_dtlb_misses"]
        }
        (DataTlb, Store, true) => {
            &["DTLB_STORE_MISSES.WALK_COMPLETED", "MEM_STORE_RETIRED.DTLB_MISS"]
        }
        (InstructionTlb, Load, false) => {
            &["ITLB_MISSES.STLB_HIT", "bp_l1_tlb_miss_l2_tlb_hit", "bp_l1_tlb_miss_l2_hit"]
        }
        (InstructionTlb, Load, true) => &[
            "ITLB_MISSES.WALK_COMPLETED",
            "bp_l1_tlb_miss_l2_tlb_miss.all",
            "bp_l1_tlb_miss_l2_tlb_miss",
            "bp_l1_tlb_miss_l2_miss",
        ],
        (Branches, Load, false) => &["BR_INST_RETIRED.ALL_BRANCHES", "ex_ret_brn"],
        (Branches, Load, true) => {
            &["BR_MISP_RETIRED.ALL_BRANCHES", "BPU_CLEARS.ANY", "ex_ret_brn_misp"]
        }
        _ => &[],
    }
}

impl PerfAttributes {
    /// Replaces a cache event, bus cycles and stalled cycles by the raw event of a processor. Any other event is
    /// returned unchanged.
    pub(crate) fn resolved(self, list: &dyn EventList) -> Result<Self, PerfError> {
        let known = match (self.type_, self.config) {
            (PERF_TYPE_HARDWARE, 6) => BUS_CYCLES,
            (PERF_TYPE_HARDWARE, 7) => STALLED_FRONTEND,
            (PERF_TYPE_HARDWARE, 8) => STALLED_BACKEND,
            (PERF_TYPE_HW_CACHE, config) => {
                CacheEvent::from_config(config).map(names_of).unwrap_or_default()
            }
            _ => return Ok(self),
        };
        let missing = PerfError::NotOnProcessor { type_: self.type_, config: self.config };
        let (config, config1) =
            known.iter().find_map(|name| list.perf_config(name)).ok_or(missing)?;
        Ok(Self { type_: PERF_TYPE_RAW, config: RawConfig::new(config)?.bits(), config1, ..self })
    }
}
