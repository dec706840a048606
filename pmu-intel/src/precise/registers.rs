//! The registers of precise records.

use bitfield_struct::bitfield;

/// `MSR_PEBS_DATA_CFG`: the groups of adaptive records (SDM vol. 3B, "Adaptive PEBS").
pub const MSR_PEBS_DATA_CFG: u32 = 0x3F2;

/// `IA32_PEBS_BASE`: the buffer of architectural PEBS (Intel's Architecture Instruction Set Extensions reference,
/// "Architectural PEBS").
pub const IA32_PEBS_BASE: u32 = 0x3F4;

/// `IA32_PEBS_INDEX`: the offset in the buffer at which architectural PEBS writes the next record (Intel's Architecture
/// Instruction Set Extensions reference, "Architectural PEBS").
pub const IA32_PEBS_INDEX: u32 = 0x3F5;

/// `MSR_PEBS_LD_LAT_THRESHOLD`: the least latency of the loads that the processor samples (SDM vol. 3B, "Load Latency
/// Performance Monitoring Facility").
pub const MSR_PEBS_LD_LAT_THRESHOLD: u32 = 0x3F6;

/// `MSR_PEBS_FRONTEND`: the condition of the precise front-end event (SDM vol. 3B, "PEBS Facility" of Skylake).
pub const MSR_PEBS_FRONTEND: u32 = 0x3F7;

/// `PEBS_BASELINE` in `IA32_PERF_CAPABILITIES`: the processor writes adaptive records, and every counter can cause
/// records (SDM vol. 4, table 2-2).
pub const PEBS_BASELINE: u64 = 1 << 14;

/// `PEBS_TIMING_INFO` in `IA32_PERF_CAPABILITIES`: adaptive records have the retire latency (SDM vol. 4, table 2-2).
pub const PEBS_TIMING_INFO: u64 = 1 << 17;

/// `IA32_PERF_GLOBAL_STATUS.OvfBuf`: a buffer of the Debug Store has reached its threshold (SDM vol. 4, table 2-2).
pub const STATUS_OVF_BUFFER: u64 = 1 << 62;

/// Bit 54 of `IA32_PERF_GLOBAL_STATUS`: the processor sets this bit when architectural PEBS raises an interrupt (SDM
/// vol. 4, table 2-2).
pub const STATUS_ARCH_PEBS: u64 = 1 << 54;

/// Value of `MSR_PEBS_DATA_CFG`.
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct PebsDataCfg {
    /// Records have the sampled instruction's access to memory: address, source and latency.
    pub memory: bool,
    /// Records have the general registers.
    pub registers: bool,
    /// Records have the registers XMM0 to XMM15.
    pub vectors: bool,
    /// Records have the last branches.
    pub branches: bool,
    /// Records have the values of the counters in `general_counters` and `fixed_counters`.
    pub counters: bool,
    /// Records have the top-down metrics.
    pub metrics: bool,
    #[bits(18)]
    __: u32,
    /// Number of last branches in a record, minus 1.
    pub branch_count: u8,
    /// Bitmap of general counters. Each record has the values of these counters.
    pub general_counters: u16,
    /// Bitmap of fixed counters. Each record has the values of these counters.
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
    /// The buffer is full, so the processor writes no more records.
    pub full: bool,
    /// The processor writes records.
    pub enable: bool,
    #[bits(3)]
    __: u8,
    /// Offset of the interrupt threshold in the buffer, in units of 16 bytes. The processor interrupts when `write`
    /// reaches this offset.
    #[bits(23)]
    pub threshold: u32,
    #[bits(5)]
    __: u8,
}

/// Value of a counter's CFG_C register (`IA32_PMC_GPx_CFG_C`, `IA32_PMC_FXx_CFG_C`), which selects the contents of the
/// counter's architectural PEBS records.
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct PmcCfgC {
    /// Low 32 bits of the reload value. After each record of the counter, the processor loads the reload value into the
    /// counter.
    pub reload: u32,
    #[bits(3)]
    __: u8,
    /// Records have values of counters. The fields `general_counters`, `fixed_counters` and `metrics` select these
    /// values.
    pub counters: bool,
    /// Records have the values of the general counters, if the field `counters` is also set.
    pub general_counters: bool,
    /// Records have the values of the fixed counters, if the field `counters` is also set.
    pub fixed_counters: bool,
    /// Records have the top-down metrics, if the field `counters` is also set.
    pub metrics: bool,
    __: bool,
    /// Number of last branches in a record: 0 stands for no branches, 1 for 8, 2 for 16, and 3 for the number in
    /// `IA32_LBR_DEPTH`.
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
    /// Records have the sampled instruction's access to memory: address, source and latency.
    pub memory: bool,
    /// The counter writes records.
    pub enable: bool,
}
