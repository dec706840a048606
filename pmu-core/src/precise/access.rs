//! A sampled access to memory.

use crate::precise::tlb::{PageSize, Translation};

/// The memory access of a sampled instruction.
///
/// ```
/// use pmu_core::precise::{DataAccess, DataSource};
/// /// Returns the cache line of a load that missed the first-level cache.
/// fn missed_line(access: &DataAccess) -> Option<u64> {
///     let missed = access.load && access.source? != DataSource::L1;
///     missed.then_some(access.address? & !63)
/// }
/// let mut access = DataAccess { load: true, address: Some(0x7F_0048), ..DataAccess::default() };
/// assert_eq!(missed_line(&access), None);
/// access.source = Some(DataSource::L3);
/// assert_eq!(missed_line(&access), Some(0x7F_0040));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct DataAccess {
    /// The instruction loads.
    pub load: bool,
    /// The instruction stores. For an instruction that loads and stores, both `load` and `store` are set.
    pub store: bool,
    /// The instruction is a software prefetch.
    pub prefetch: bool,
    /// Linear address of the accessed data.
    pub address: Option<u64>,
    /// Physical address of the accessed data. A kernel gives physical addresses to privileged readers only, because
    /// these addresses reveal the layout of memory.
    pub physical_address: Option<u64>,
    /// Number of bytes that the instruction accesses.
    pub bytes: Option<u8>,
    /// Source of a load's data: a cache, memory or a device.
    pub source: Option<DataSource>,
    /// The data came from the memory or a cache of another socket.
    pub remote: Option<bool>,
    /// State of the cache line in another core's cache, if that cache delivered the data.
    pub line: Option<LineState>,
    /// Number of cycles from a load's miss in the first-level cache to the arrival of the data.
    pub latency: Option<u16>,
    /// The TLB or page walk that translated the linear address of the data.
    pub translation: Option<Translation>,
    /// Size of the accessed page, as recorded in the TLB entry.
    pub page: Option<PageSize>,
    /// Number of cycles that a refill of the TLB took.
    pub tlb_latency: Option<u16>,
    /// The access is locked: no other processor's access comes between its load and its store.
    pub locked: Option<bool>,
    /// The access is misaligned, and takes longer for this reason.
    pub misaligned: Option<bool>,
    /// Memory type of the access, if the type is uncacheable or write-combining.
    pub memory_type: Option<AccessType>,
}

/// The source of a load's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum DataSource {
    /// The core's first-level data cache, or a smaller data cache before it (Intel's L0).
    L1,
    /// A fill buffer of the first-level cache: an earlier access had already requested the cache line (Intel: line fill
    /// buffer; AMD: miss address buffer).
    FillBuffer,
    /// The core's second-level cache.
    L2,
    /// A miss handling buffer of the second-level cache: an earlier miss had already requested the cache line.
    L2FillBuffer,
    /// The core's third-level cache, or a first- or second-level cache of another core. Both cores share this
    /// third-level cache.
    L3,
    /// A cache of other cores in the same socket. These cores do not share the accessing core's third-level cache.
    NearCache,
    /// A cache of another socket.
    FarCache,
    /// A cache of other cores, which do not share the accessing core's third-level cache. The processor does not report
    /// whether these cores are in the same socket.
    OtherCache,
    /// A cache at the memory's side, which all agents of the processor share.
    MemorySideCache,
    /// DRAM.
    Memory,
    /// Persistent memory.
    PersistentMemory,
    /// Memory of an extension, such as CXL.
    ExtensionMemory,
    /// Memory of a coherent peer device.
    PeerMemory,
    /// Memory-mapped I/O, configuration space, or the local interrupt controller.
    Io,
}

/// The state of a line in another core's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum LineState {
    /// Modified: no other cache had the line, and memory was out of date.
    Modified,
    /// Owned: other caches may have had copies, and memory was out of date.
    Owned,
}

/// The memory type of an access that bypasses the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum AccessType {
    /// Uncacheable.
    Uncacheable,
    /// Write-combining.
    WriteCombining,
}
