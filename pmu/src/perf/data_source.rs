//! `perf_mem_data_src`: what a sample says of the instruction's access to memory.
//!
//! Source: `perf_event_open(2)`, `PERF_SAMPLE_DATA_SRC`; `include/uapi/linux/perf_event.h`, `PERF_MEM_…`.

use pmu_core::precise::{DataAccess, DataSource, LineState, PreciseSample, Translation};

// The lowest bits of the fields. Each field but the level's number and the hops is a set of bits, of which the first
// says that nothing is known.
const LEVEL: u32 = 5;
const SNOOP: u32 = 19;
const LOCK: u32 = 24;
const TLB: u32 = 26;
const LEVEL_NUMBER: u32 = 33;
const REMOTE: u32 = 37;
const HOPS: u32 = 43;

const NOT_AVAILABLE: u64 = 1;

const OP_LOAD: u64 = 1 << 1;
const OP_STORE: u64 = 1 << 2;
const OP_PREFETCH: u64 = 1 << 3;

const LEVEL_HIT: u64 = 1 << 1;
const LEVEL_L1: u64 = 1 << 3;
const LEVEL_FILL_BUFFER: u64 = 1 << 4;
const LEVEL_L2: u64 = 1 << 5;
const LEVEL_L3: u64 = 1 << 6;
const LEVEL_LOCAL_MEMORY: u64 = 1 << 7;
const LEVEL_REMOTE_MEMORY: u64 = 1 << 8;
const LEVEL_REMOTE_CACHE: u64 = 1 << 10;
const LEVEL_FAR_CACHE: u64 = 1 << 11;
const LEVEL_IO: u64 = 1 << 12;

const NUMBER_L2_FILL_BUFFER: u64 = 5;
const NUMBER_MEMORY_SIDE_CACHE: u64 = 6;
const NUMBER_CXL: u64 = 9;
const NUMBER_IO: u64 = 10;
const NUMBER_ANY_CACHE: u64 = 11;
const NUMBER_FILL_BUFFER: u64 = 12;
const NUMBER_MEMORY: u64 = 13;
const NUMBER_PERSISTENT: u64 = 14;
const NUMBER_NOT_AVAILABLE: u64 = 15;

/// The cache of another core of the node, and that of another socket.
const HOPS_CORE: u64 = 1;
const HOPS_SOCKET: u64 = 3;

const SNOOP_HIT: u64 = 1 << 2;
const SNOOP_HIT_MODIFIED: u64 = 1 << 4;

const LOCKED: u64 = 1 << 1;

const TLB_HIT: u64 = 1 << 1;
const TLB_MISS: u64 = 1 << 2;
const TLB_L1: u64 = 1 << 3;
const TLB_L2: u64 = 1 << 4;

/// Returns the word of a sampled instruction; that of an instruction without an access says that nothing is known.
pub(crate) fn data_source(instruction: &PreciseSample) -> u64 {
    let access = instruction.access.unwrap_or_default();
    let DataAccess { load, store, prefetch, source, .. } = access;
    let op = [(load, OP_LOAD), (store, OP_STORE), (prefetch, OP_PREFETCH)];
    let op = op.iter().filter(|(is, _)| *is).fold(0, |ops, (_, bit)| ops | bit);
    let remote = access.remote == Some(true);
    let (level, number) = source.map_or((0, NUMBER_NOT_AVAILABLE), |source| level(source, remote));
    let hops = match source {
        Some(DataSource::NearCache) => HOPS_CORE,
        Some(DataSource::FarCache) => HOPS_SOCKET,
        _ => 0,
    };
    let is_other_cache = level & (LEVEL_REMOTE_CACHE | LEVEL_FAR_CACHE) != 0;
    let snoop = match access.line {
        // Memory is out of date in both.
        Some(LineState::Modified | LineState::Owned) => SNOOP_HIT_MODIFIED,
        None if is_other_cache => SNOOP_HIT,
        None => NOT_AVAILABLE,
    };
    let tlb = match access.translation {
        None => NOT_AVAILABLE,
        Some(Translation::L1Tlb) => TLB_HIT | TLB_L1,
        Some(Translation::L2Tlb) => TLB_HIT | TLB_L2,
        Some(Translation::PageWalk) => TLB_MISS | TLB_L2,
    };
    let op = if op == 0 { NOT_AVAILABLE } else { op };
    let level = if level == 0 { NOT_AVAILABLE } else { level | LEVEL_HIT };
    let lock = if access.locked == Some(true) { LOCKED } else { NOT_AVAILABLE };
    let remote = u64::from(remote || is_other_cache);
    [
        (level, LEVEL),
        (snoop, SNOOP),
        (lock, LOCK),
        (tlb, TLB),
        (number, LEVEL_NUMBER),
        (remote, REMOTE),
        (hops, HOPS),
    ]
    .iter()
    .fold(op, |word, (field, at)| word | field << at)
}

/// Returns the bit of the level, which tools up to Linux 4.14 read, and the number that later ones read. A level of
/// which older tools do not know has no bit.
const fn level(source: DataSource, remote: bool) -> (u64, u64) {
    let memory = if remote { LEVEL_REMOTE_MEMORY } else { LEVEL_LOCAL_MEMORY };
    match source {
        DataSource::L1 => (LEVEL_L1, 1),
        DataSource::FillBuffer => (LEVEL_FILL_BUFFER, NUMBER_FILL_BUFFER),
        DataSource::L2 => (LEVEL_L2, 2),
        DataSource::L2FillBuffer => (LEVEL_L2, NUMBER_L2_FILL_BUFFER),
        DataSource::L3 => (LEVEL_L3, 3),
        DataSource::NearCache | DataSource::OtherCache => (LEVEL_REMOTE_CACHE, NUMBER_ANY_CACHE),
        DataSource::FarCache => (LEVEL_FAR_CACHE, NUMBER_ANY_CACHE),
        DataSource::MemorySideCache => (memory, NUMBER_MEMORY_SIDE_CACHE),
        DataSource::Memory | DataSource::PeerMemory => (memory, NUMBER_MEMORY),
        DataSource::PersistentMemory => (memory, NUMBER_PERSISTENT),
        DataSource::ExtensionMemory => (0, NUMBER_CXL),
        DataSource::Io => (LEVEL_IO, NUMBER_IO),
    }
}
