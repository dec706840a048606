//! The record of one sampled instruction.

/// The processor's record of one sampled instruction.
///
/// AMD's instruction-based sampling and Intel's precise event-based sampling both tag one instruction and record what
/// happens to the instruction. A field is `None` if the processor did not record the field's value, or declared the
/// value invalid.
///
/// In the default value, all fields are `None`.
///
/// ```
/// use pmu_core::precise::{DataSource, PreciseSample};
/// /// Returns the instruction, the source and the latency of a load, if the processor recorded all three.
/// fn slow_load(sample: &PreciseSample) -> Option<(u64, DataSource, u16)> {
///     let access = sample.access?;
///     Some((sample.address?, access.source?, access.latency?))
/// }
/// assert_eq!(slow_load(&PreciseSample::default()), None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PreciseSample {
    /// Linear address of the sampled instruction, or of the sampled fetch. If the address is `None`, use the address
    /// in the interrupt's frame, which is some instructions after the sampled instruction.
    pub address: Option<u64>,
    /// Outcome of the instruction, if it is a branch.
    pub branch: Option<BranchOutcome>,
    /// The instruction's access to memory.
    pub access: Option<DataAccess>,
    /// The instruction's fetch.
    pub fetch: Option<InstructionFetch>,
    /// Number of cycles from the tagging of the instruction to its retirement.
    pub latency: Option<u16>,
    /// Number of cycles from the completion of the instruction to its retirement.
    pub retire_latency: Option<u16>,
}

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

/// The outcome of a sampled branch instruction.
///
/// ```
/// use pmu_core::precise::{BranchOutcome, PreciseSample};
/// /// Adds a sample to the numbers of branches and of mispredicted branches.
/// fn count(sample: &PreciseSample, [branches, mispredicted]: &mut [u64; 2]) {
///     if let Some(branch) = sample.branch {
///         *branches += 1;
///         *mispredicted += u64::from(branch.mispredicted);
///     }
/// }
/// let mut numbers = [0; 2];
/// let branch = BranchOutcome { taken: true, mispredicted: true, ..BranchOutcome::default() };
/// count(&PreciseSample { branch: Some(branch), ..PreciseSample::default() }, &mut numbers);
/// assert_eq!(numbers, [1, 1]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct BranchOutcome {
    /// The branch was taken.
    pub taken: bool,
    /// The processor mispredicted whether the branch is taken, or mispredicted the target of the branch.
    pub mispredicted: bool,
    /// The branch is a return from a subroutine.
    pub is_return: bool,
    /// Linear address of the target, if the branch was taken and the processor records targets.
    pub target: Option<u64>,
}

/// A sampled fetch of instruction bytes.
///
/// ```
/// use pmu_core::precise::{InstructionFetch, PreciseSample};
/// /// Returns the address of code that was fetched from beyond the second-level cache.
/// fn cold_code(sample: &PreciseSample) -> Option<u64> {
///     let fetch = sample.fetch?;
///     (fetch.completed && fetch.l2_miss?).then_some(sample.address?)
/// }
/// let fetch = InstructionFetch { completed: true, l2_miss: Some(true), ..InstructionFetch::default() };
/// let sample = PreciseSample { address: Some(0x40_1000), fetch: Some(fetch), ..PreciseSample::default() };
/// assert_eq!(cold_code(&sample), Some(0x40_1000));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct InstructionFetch {
    /// The fetched bytes reached the decoder. A fetch that did not complete was abandoned, for example after a branch
    /// misprediction.
    pub completed: bool,
    /// Physical address of the fetch. A kernel gives physical addresses to privileged readers only, because these
    /// addresses reveal the layout of memory.
    pub physical_address: Option<u64>,
    /// Number of cycles from the start of the fetch to its completion or abandonment.
    pub latency: Option<u16>,
    /// The fetch missed the first-level instruction cache.
    pub cache_miss: Option<bool>,
    /// The fetch missed the second-level cache.
    pub l2_miss: Option<bool>,
    /// The fetch missed the third-level cache.
    pub l3_miss: Option<bool>,
    /// The fetch missed the op cache, which holds decoded instructions.
    pub op_cache_miss: Option<bool>,
    /// The TLB or page walk that translated the linear address of the fetch.
    pub translation: Option<Translation>,
    /// Size of the page from which the bytes were fetched, as recorded in the first-level TLB.
    pub page: Option<PageSize>,
    /// Number of cycles that a refill of the TLB took.
    pub tlb_latency: Option<u16>,
}

/// The TLB or page walk that translated the linear address of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Translation {
    /// The first-level TLB had the translation.
    L1Tlb,
    /// The second-level TLB had the translation, after a miss in the first-level TLB.
    L2Tlb,
    /// The processor walked the page tables.
    PageWalk,
}

/// Size of a page, as recorded in a TLB entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PageSize {
    /// 4 KiB.
    Small,
    /// 2 MiB.
    Large,
    /// 1 GiB.
    Huge,
    /// 16 KiB: four neighboring pages of 4 KiB in one TLB entry.
    Coalesced,
}
