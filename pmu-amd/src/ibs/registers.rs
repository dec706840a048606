//! The registers of instruction-based sampling.
//!
//! Read first: AMD APM vol. 2, "Instruction-Based Sampling"; PPR of a family, MSRC001_10[30…3F].

use bitfield_struct::bitfield;

/// `IBS_FETCH_CTL`: control and status of fetch sampling.
pub const IBS_FETCH_CTL: u32 = 0xC001_1030;
/// `IBS_FETCH_LINADDR`: linear address of the sampled fetch.
pub const IBS_FETCH_LINADDR: u32 = 0xC001_1031;
/// `IBS_FETCH_PHYSADDR`: physical address of the sampled fetch.
pub const IBS_FETCH_PHYSADDR: u32 = 0xC001_1032;
/// `IBS_OP_CTL`: control and status of op sampling.
pub const IBS_OP_CTL: u32 = 0xC001_1033;
/// `IBS_OP_RIP`: linear address of the instruction to which the sampled op belongs.
pub const IBS_OP_RIP: u32 = 0xC001_1034;
/// `IBS_OP_DATA`: latencies and branch outcome of the sampled op.
pub const IBS_OP_DATA: u32 = 0xC001_1035;
/// `IBS_OP_DATA2`: the place from which a sampled load got its data, if the load missed the data cache.
pub const IBS_OP_DATA2: u32 = 0xC001_1036;
/// `IBS_OP_DATA3`: the sampled op's access to memory.
pub const IBS_OP_DATA3: u32 = 0xC001_1037;
/// `IBS_DC_LINADDR`: linear address of the sampled op's data.
pub const IBS_DC_LINADDR: u32 = 0xC001_1038;
/// `IBS_DC_PHYSADDR`: physical address of the sampled op's data.
pub const IBS_DC_PHYSADDR: u32 = 0xC001_1039;
/// `IBS_CTL`: contains the number of the extended LVT entry for IBS interrupts.
pub const IBS_CTL: u32 = 0xC001_103A;
/// `BP_IBSTGT_RIP`: target of the sampled branch (leaf 0x8000001B EAX bit 5).
pub const BP_IBSTGT_RIP: u32 = 0xC001_103B;
/// `IC_IBS_EXTD_CTL`: latency of the instruction TLB's refill (leaf 0x8000001B EAX bit 9).
pub const IC_IBS_EXTD_CTL: u32 = 0xC001_103C;
/// `IBS_OP_DATA4`: another data register of op sampling (leaf 0x8000001B EAX bit 10).
pub const IBS_OP_DATA4: u32 = 0xC001_103D;
/// `IBS_OP_CTL2`: disable bit and filters of op sampling (leaf 0x8000001B EAX bit 13).
pub const IBS_OP_CTL2: u32 = 0xC001_103E;
/// `IBS_FETCH_CTL2`: disable bit and filters of fetch sampling (leaf 0x8000001B EAX bit 13).
pub const IBS_FETCH_CTL2: u32 = 0xC001_103F;

/// `IBS_FETCH_CTL`: control and status of fetch sampling.
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct IbsFetchCtl {
    /// Bits 19:4 of the period.
    pub max_count: u16,
    /// Bits 19:4 of the number of fetches since the last sample.
    pub count: u16,
    /// Number of cycles from the start of the fetch to its completion or abandonment.
    pub latency: u16,
    /// Enables fetch sampling.
    pub enable: bool,
    /// The other registers of the sampling unit hold a sample. While this bit is set, the unit takes no further sample.
    pub valid: bool,
    /// The fetched bytes reached the decoder.
    pub complete: bool,
    /// The fetch missed the instruction cache.
    pub cache_miss: bool,
    /// `IBS_FETCH_PHYSADDR` is valid.
    pub physical_address_valid: bool,
    /// Code of the page size in the first-level TLB: 0 is 4 KiB, 1 is 2 MiB, 2 is 1 GiB, 3 is 16 KiB.
    #[bits(2)]
    pub page_size: u8,
    /// The fetch missed the first-level TLB.
    pub l1_tlb_miss: bool,
    /// The fetch missed the second-level TLB.
    pub l2_tlb_miss: bool,
    /// The processor chooses the lowest bits of the period at random.
    pub random: bool,
    /// The fetch missed the second-level cache.
    pub l2_miss: bool,
    /// Only fetches that miss the third-level cache are sampled (leaf 0x8000001B EAX bit 11).
    pub l3_miss_only: bool,
    /// The fetch missed the op cache (leaf 0x8000001B EAX bit 11).
    pub op_cache_miss: bool,
    /// The fetch missed the third-level cache (leaf 0x8000001B EAX bit 11).
    pub l3_miss: bool,
    #[bits(2)]
    __: u8,
}

/// `IBS_OP_CTL`: control and status of op sampling.
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct IbsOpCtl {
    /// Bits 19:4 of the period.
    pub max_count: u16,
    /// Only ops that miss the third-level cache are sampled (leaf 0x8000001B EAX bit 11).
    pub l3_miss_only: bool,
    /// Enables op sampling.
    pub enable: bool,
    /// The other registers of the sampling unit hold a sample. While this bit is set, the unit takes no further sample.
    pub valid: bool,
    /// The period is a number of dispatched ops. If the bit is clear, the period is a number of cycles (leaf 0x8000001B
    /// EAX bit 4).
    pub count_ops: bool,
    /// Bits 26:20 of the period (leaf 0x8000001B EAX bit 6).
    #[bits(7)]
    pub max_count_high: u8,
    #[bits(5)]
    __: u8,
    /// Number of ops or cycles since the last sample. The processor sets the lowest seven bits at random when a new
    /// period begins.
    #[bits(27)]
    pub count: u32,
    /// Latency threshold in units of 128 cycles, minus 1 (leaf 0x8000001B EAX bit 12).
    #[bits(4)]
    pub latency_threshold: u8,
    /// Enables the latency threshold (leaf 0x8000001B EAX bit 12).
    pub latency_filter: bool,
}

/// `IBS_OP_DATA`: latencies and branch outcome of the sampled op.
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct IbsOpData {
    /// Number of cycles from the op's completion to its retirement.
    pub completion_to_retire: u16,
    /// Number of cycles from the op's tagging to its retirement.
    pub tag_to_retire: u16,
    #[bits(2)]
    __: u8,
    /// The op is a return from a subroutine.
    pub is_return: bool,
    /// The op is a branch that was taken.
    pub taken: bool,
    /// The op is a branch that was mispredicted.
    pub mispredicted: bool,
    /// The op is a branch that retired.
    pub branch: bool,
    /// `IBS_OP_RIP` is not valid (leaf 0x8000001B EAX bit 7).
    pub rip_invalid: bool,
    /// The branch was fused with the preceding instruction (leaf 0x8000001B EAX bit 8).
    pub fused: bool,
    /// The op came from microcode.
    pub microcode: bool,
    #[bits(23)]
    __: u32,
}

/// `IBS_OP_DATA2`: the place from which a sampled load got its data, if the load missed the data cache.
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct IbsOpData2 {
    /// Bits 2:0 of the code for the data's source.
    #[bits(3)]
    pub source_low: u8,
    __: bool,
    /// The data came from another node.
    pub remote_node: bool,
    /// State of the cache line from which the data came: `false` for modified, `true` for owned.
    pub line_owned: bool,
    /// Bits 4:3 of the code for the data's source (leaf 0x8000001B EAX bit 11).
    #[bits(2)]
    pub source_high: u8,
    /// The op is a streaming store (leaf 0x8000001B EAX bit 16).
    pub streaming_store: bool,
    /// The data came from another socket (leaf 0x8000001B EAX bit 16).
    pub remote_socket: bool,
    #[bits(54)]
    __: u64,
}

/// `IBS_OP_DATA3`: the sampled op's access to memory.
///
/// If leaf 0x8000001B EAX bit 19 is set (from Zen 5 on), bits 5:4 are the [page size](Self::page_size), bits 6 and 19
/// are reserved, and `l1_tlb_miss`, `l2_tlb_miss` and the page size are valid only if `physical_address_valid` is set.
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct IbsOpData3 {
    /// The op loads.
    pub load: bool,
    /// The op stores.
    pub store: bool,
    /// The access missed the first-level data TLB.
    pub l1_tlb_miss: bool,
    /// The access missed the second-level data TLB.
    pub l2_tlb_miss: bool,
    /// The access hit a 2 MiB page in the first-level data TLB (not if leaf 0x8000001B EAX bit 19 is set).
    pub l1_tlb_hit_2m: bool,
    /// The access hit a 1 GiB page in the first-level data TLB (not if leaf 0x8000001B EAX bit 19 is set).
    pub l1_tlb_hit_1g: bool,
    /// The access hit a 2 MiB page in the second-level data TLB (not if leaf 0x8000001B EAX bit 19 is set).
    pub l2_tlb_hit_2m: bool,
    /// The access missed the data cache.
    pub cache_miss: bool,
    /// The access is misaligned: it crosses an alignment boundary.
    pub misaligned: bool,
    #[bits(4)]
    __: u8,
    /// The access is to write-combining memory.
    pub write_combining: bool,
    /// The access is to uncacheable memory.
    pub uncacheable: bool,
    /// The access is locked.
    pub locked: bool,
    /// The access missed the data cache and found a miss address buffer that an earlier access had allocated.
    pub miss_buffer_hit: bool,
    /// `IBS_DC_LINADDR` is valid.
    pub linear_address_valid: bool,
    /// `IBS_DC_PHYSADDR` is valid.
    pub physical_address_valid: bool,
    /// The access hit a 1 GiB page in the second-level data TLB (not if leaf 0x8000001B EAX bit 19 is set).
    pub l2_tlb_hit_1g: bool,
    /// The access missed the second-level cache.
    pub l2_miss: bool,
    /// The op is a software prefetch.
    pub prefetch: bool,
    /// Code of the access's width. Code 0 means no width, 1 means 1 byte, 2 means 2 bytes, 3 means 4 bytes, and so on.
    #[bits(4)]
    pub width: u8,
    /// Number of miss address buffers that were in use when the access missed the data cache.
    #[bits(6)]
    pub open_misses: u8,
    /// Number of cycles from the load's data-cache miss until the data arrived.
    pub miss_latency: u16,
    /// Number of cycles from a first-level data TLB miss until the TLB was refilled.
    pub tlb_latency: u16,
}

impl IbsOpData3 {
    /// Returns the code of the page size, bits 5:4, if leaf 0x8000001B EAX bit 19 is set: 0 is 4 KiB, 1 is 2 MiB, 2 is
    /// 1 GiB, and 3 is reserved. The code is valid only if the physical address is valid.
    pub const fn page_size(self) -> u8 {
        (self.into_bits() >> 4 & 0b11) as u8
    }
}

/// `IBS_CTL`: contains the number of the extended LVT entry for IBS interrupts. Firmware chooses the entry.
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct IbsCtl {
    /// Number of the extended LVT entry for IBS interrupts.
    #[bits(4)]
    pub lvt_offset: u8,
    #[bits(4)]
    __: u8,
    /// The field `lvt_offset` is valid.
    pub lvt_offset_valid: bool,
    #[bits(55)]
    __: u64,
}

/// `IBS_OP_CTL2`: the second control register of op sampling, with a disable bit and filters.
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct IbsOpCtl2 {
    /// Disables op sampling, even if `IBS_OP_CTL` enables op sampling.
    pub disable: bool,
    /// Excludes ops at user addresses, which have bit 63 clear.
    pub exclude_low_half: bool,
    /// Excludes ops at kernel addresses, which have bit 63 set.
    pub exclude_high_half: bool,
    /// Only streaming stores are sampled (leaf 0x8000001B EAX bit 16).
    pub streaming_stores_only: bool,
    #[bits(60)]
    __: u64,
}

/// `IBS_FETCH_CTL2`: the second control register of fetch sampling, with a disable bit and filters. The two bits that
/// exclude addresses are in the reverse order of those in [`IbsOpCtl2`].
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct IbsFetchCtl2 {
    /// Disables fetch sampling, even if `IBS_FETCH_CTL` enables fetch sampling.
    pub disable: bool,
    /// Least latency of a sampled fetch, in units of 128 cycles. If this field is 0, fetches of any latency are sampled
    /// (leaf 0x8000001B EAX bit 14).
    #[bits(4)]
    pub latency_filter: u8,
    /// Excludes fetches at kernel addresses, which have bit 63 set.
    pub exclude_high_half: bool,
    /// Excludes fetches at user addresses, which have bit 63 clear.
    pub exclude_low_half: bool,
    #[bits(57)]
    __: u64,
}
