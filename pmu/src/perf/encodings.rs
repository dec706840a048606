//! Generic events that processors encode differently, and the names of these generic events in the vendors' lists.

use crate::perf::attributes::{PERF_TYPE_HARDWARE, PERF_TYPE_RAW, PerfAttributes};
use crate::perf::cache_event::{Cache, CacheEvent, CacheOperation, PERF_TYPE_HW_CACHE};
use crate::perf::error::PerfError;
use crate::perf::raw_config::RawConfig;

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
    /// Replaces a generic event by the raw event of a processor. The function replaces only the generic events that
    /// processors encode differently: cache events ([`PERF_TYPE_HW_CACHE`]), bus cycles and stalled cycles. Any other
    /// event is returned unchanged.
    ///
    /// `names` looks up an event of the vendor's list by its name, and returns the event's `config` and `config1`. If
    /// the list has no event of that name, `names` returns `None`. If the list has the event that Linux counts, the
    /// function returns that event. Page walks are an exception on some processors: there, Linux counts the walks that
    /// began, but the returned event counts the walks that completed.
    ///
    /// ```
    /// use pmu::perf::{PERF_TYPE_HW_CACHE, PerfAttributes};
    /// let misses = PerfAttributes {
    ///     type_: PERF_TYPE_HW_CACHE,
    ///     config: 0x1_0000, // L1-dcache-load-misses
    ///     ..PerfAttributes::default()
    /// };
    /// let named = |name: &str| Some(pmu_events::SKYLAKE.event(name).ok()?.perf_config());
    /// assert_eq!(misses.resolved(named)?.config, 0x151); // L1D.REPLACEMENT
    /// # Ok::<(), pmu::perf::PerfError>(())
    /// ```
    ///
    /// # Errors
    /// - [`NotOnProcessor`](PerfError::NotOnProcessor): `config` does not encode a cache event, or `names` returned
    ///   `None` for every name of the event.
    /// - [`Bits`](PerfError::Bits): `names` returned a `config` with bits that a [`RawConfig`](crate::perf::RawConfig)
    ///   cannot have.
    pub fn resolved(
        self,
        names: impl FnMut(&str) -> Option<(u64, u64)>,
    ) -> Result<Self, PerfError> {
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
        let (config, config1) = known.iter().copied().find_map(names).ok_or(missing)?;
        Ok(Self { type_: PERF_TYPE_RAW, config: RawConfig::new(config)?.bits(), config1, ..self })
    }
}
