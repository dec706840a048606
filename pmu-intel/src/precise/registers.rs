//! The registers of precise records.

use bitfield_struct::bitfield;

/// `MSR_PEBS_DATA_CFG`: the groups of adaptive records (SDM vol. 3B, "Adaptive PEBS").
pub const MSR_PEBS_DATA_CFG: u32 = 0x3F2;

/// `IA32_PEBS_BASE`: the buffer of architectural PEBS (Intel's Architecture Instruction Set Extensions reference,
/// "Architectural PEBS").
pub const IA32_PEBS_BASE: u32 = 0x3F4;

/// `IA32_PEBS_INDEX`: the place of the next record of architectural PEBS (Intel's Architecture Instruction Set
/// Extensions reference, "Architectural PEBS").
pub const IA32_PEBS_INDEX: u32 = 0x3F5;

/// `MSR_PEBS_LD_LAT_THRESHOLD`: the latency of the loads that are sampled (SDM vol. 3B, "Load Latency Performance
/// Monitoring Facility").
pub const MSR_PEBS_LD_LAT_THRESHOLD: u32 = 0x3F6;

/// `MSR_PEBS_FRONTEND`: the condition of the front end's precise event (SDM vol. 3B, "PEBS Facility" of Skylake).
pub const MSR_PEBS_FRONTEND: u32 = 0x3F7;

/// `PEBS_BASELINE` in `IA32_PERF_CAPABILITIES`: records are adaptive, and every counter can write them (SDM vol. 4,
/// table 2-2).
pub const PEBS_BASELINE: u64 = 1 << 14;

/// `PEBS_TIMING_INFO` in `IA32_PERF_CAPABILITIES`: adaptive records have the retire latency (SDM vol. 4, table 2-2).
pub const PEBS_TIMING_INFO: u64 = 1 << 17;

/// The Debug Store's bit of the overflow status, `OvfBuf`: a buffer reached its threshold (SDM vol. 4, table 2-2,
/// `IA32_PERF_GLOBAL_STATUS`).
pub const STATUS_OVF_BUFFER: u64 = 1 << 62;

/// The bit of the overflow status by which architectural PEBS interrupts (SDM vol. 4, table 2-2,
/// `IA32_PERF_GLOBAL_STATUS`).
pub const STATUS_ARCH_PEBS: u64 = 1 << 54;

/// Value of `MSR_PEBS_DATA_CFG`.
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct PebsDataCfg {
    /// Records have the group that describes the access to memory: address, source and latency.
    pub memory: bool,
    /// Records have the general registers.
    pub registers: bool,
    /// Records have the registers XMM0 to XMM15.
    pub vectors: bool,
    /// Records have the last branches.
    pub branches: bool,
    /// Records have the values of the counters in the two masks.
    pub counters: bool,
    /// Records have the top-down metrics.
    pub metrics: bool,
    #[bits(18)]
    __: u32,
    /// Number of branches, minus 1.
    pub branch_count: u8,
    /// Bitmap of the general counters whose values are in each record.
    pub general_counters: u16,
    /// Bitmap of the fixed counters whose values are in each record.
    pub fixed_counters: u8,
    __: u8,
}

/// Value of `IA32_PEBS_INDEX`.
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct PebsIndex {
    #[bits(4)]
    __: u8,
    /// Offset of the next record in the buffer, in units of 16 bytes.
    #[bits(23)]
    pub write: u32,
    #[bits(4)]
    __: u8,
    /// The buffer is full: no more records are written.
    pub full: bool,
    /// Records are written.
    pub enable: bool,
    #[bits(3)]
    __: u8,
    /// Offset at which the processor interrupts, in units of 16 bytes.
    #[bits(23)]
    pub threshold: u32,
    #[bits(5)]
    __: u8,
}

/// Value of a counter's CFG_C, `IA32_PMC_GPx_CFG_C` and `IA32_PMC_FXx_CFG_C`: the counter's records of architectural
/// PEBS.
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct PmcCfgC {
    /// Low half of the value with which the processor loads the counter after each record.
    pub reload: u32,
    #[bits(3)]
    __: u8,
    /// Records have values of counters.
    pub counters: bool,
    /// These values include the general counters.
    pub general_counters: bool,
    /// These values include the fixed counters.
    pub fixed_counters: bool,
    /// These values include the top-down metrics.
    pub metrics: bool,
    __: bool,
    /// Last branches: 0, 8 or 16 (values 0 to 2), or as many as `IA32_LBR_DEPTH` (3).
    #[bits(2)]
    pub branches: u8,
    #[bits(7)]
    __: u8,
    /// Records have the registers XMM0 to XMM15.
    pub xmm: bool,
    /// Records have the upper halves of the registers YMM0 to YMM15.
    pub ymm_high: bool,
    #[bits(2)]
    __: u8,
    /// Records have the opmask registers.
    pub opmask: bool,
    /// Records have the upper halves of the registers ZMM0 to ZMM15.
    pub zmm_high: bool,
    /// Records have the registers ZMM16 to ZMM31.
    pub high_zmm: bool,
    #[bits(5)]
    __: u8,
    /// Records have the general registers.
    pub registers: bool,
    /// Records have the group that describes the access to memory: address, source and latency.
    pub memory: bool,
    /// The counter writes records.
    pub enable: bool,
}
