//! Perf's generic events of caches: their names and numbers.

use core::fmt;
use core::str::FromStr;

use crate::perf::error::PerfError;

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
