//! The registers of architectural performance monitoring, branch records and the Debug Store.
//!
//! Read first: Intel SDM vol. 3B, ch. 20 "Performance Monitoring", §20.2; vol. 4, §2.1
//! "Architectural MSRs".

// To add a register, if code needs it: its number and, if code uses its fields, a `bitfield`, with the manual's
// section; a row for each in `tests/data/registers.csv` and `tests/data/register_fields.csv`, from another source; and
// a line in the test that compares them: `registers.rs` in the folder of `tests/tests` that has the register's subject
// (`counters`, `branches`, `precise`, `topdown`). If the register can make the processor write to memory, its
// `RegisterAddress` stays private behind an unsafe function with its duties.

use bitfield_struct::bitfield;
use pmu_core::registers::EventSelect;

/// `IA32_PMC0`: the first general counter. A write sets the counter to bits 31:0 of the written value, sign-extended
/// (SDM vol. 3B, §20.2.1.1).
pub const IA32_PMC0: u32 = 0xC1;

/// `IA32_PERFEVTSEL0`: the event select of the first general counter (SDM vol. 3B, §20.2.1.1).
pub const IA32_PERFEVTSEL0: u32 = 0x186;

/// `IA32_MISC_ENABLE`. Three of its bits say whether performance monitoring, BTS and PEBS are available (SDM vol. 4,
/// table 2-2).
pub const IA32_MISC_ENABLE: u32 = 0x1A0;

/// `IA32_DEBUGCTL`: controls branch records, branch tracing, and whether an interrupt freezes counters and branch
/// records (SDM vol. 3B, §18.4.1).
pub const IA32_DEBUGCTL: u32 = 0x1D9;

/// `MSR_LBR_SELECT`: the filter of the legacy last-branch stack (SDM vol. 3B, "Filtering of Last Branch Records").
pub const MSR_LBR_SELECT: u32 = 0x1C8;

/// `MSR_LASTBRANCH_TOS`: the index of the newest record of the legacy stack (SDM vol. 3B, "LBR Stack").
pub const MSR_LASTBRANCH_TOS: u32 = 0x1C9;

/// `MSR_LASTBRANCH_0_FROM_IP` of Core 2, Bonnell and Silvermont: the source address of the first record's branch (SDM
/// vol. 4, "MSRs in Processors Based on Intel Core Microarchitecture").
pub const MSR_LASTBRANCH_0_FROM_IP_CORE: u32 = 0x40;

/// `MSR_LASTBRANCH_0_TO_IP` of Core 2, Bonnell and Silvermont: the target address of the first record's branch (SDM
/// vol. 4, "MSRs in Processors Based on Intel Core Microarchitecture").
pub const MSR_LASTBRANCH_0_TO_IP_CORE: u32 = 0x60;

/// `MSR_LASTBRANCH_0_FROM_IP` from Nehalem on: the source address of the first record's branch (SDM vol. 3B, "LBR
/// Stack").
pub const MSR_LASTBRANCH_0_FROM_IP: u32 = 0x680;

/// `MSR_LASTBRANCH_0_TO_IP` from Nehalem on: the target address of the first record's branch (SDM vol. 3B, "LBR
/// Stack").
pub const MSR_LASTBRANCH_0_TO_IP: u32 = 0x6C0;

/// `MSR_LBR_INFO_0`, from Skylake on: cycle count and misprediction of the first record (SDM vol. 3B, "LBR Stack").
pub const MSR_LBR_INFO_0: u32 = 0xDC0;

/// `IA32_LBR_0_INFO`: cycles, event counts, kind and misprediction of the newest architectural record (SDM vol. 4,
/// table 2-2).
pub const IA32_LBR_0_INFO: u32 = 0x1200;

/// `IA32_LBR_CTL`: the enable bit and the filter of the architectural records (SDM vol. 4, table 2-2).
pub const IA32_LBR_CTL: u32 = 0x14CE;

/// `IA32_LBR_DEPTH`: the number of architectural records; each write clears all records (SDM vol. 4, table 2-2).
pub const IA32_LBR_DEPTH: u32 = 0x14CF;

/// `IA32_LBR_0_FROM_IP`: the source address of the newest architectural record's branch (SDM vol. 4, table 2-2).
pub const IA32_LBR_0_FROM_IP: u32 = 0x1500;

/// `IA32_LBR_0_TO_IP`: the target address of the newest architectural record's branch (SDM vol. 4, table 2-2).
pub const IA32_LBR_0_TO_IP: u32 = 0x1600;

/// `IA32_FIXED_CTR0` (architectural perfmon version 2 and later): the first fixed counter (SDM vol. 3B, §20.2.2).
pub const IA32_FIXED_CTR0: u32 = 0x309;

/// `IA32_PERF_CAPABILITIES`: features of performance monitoring. The register exists if CPUID leaf 1, ECX bit 15 is set
/// (SDM vol. 4, table 2-2).
pub const IA32_PERF_CAPABILITIES: u32 = 0x345;

/// `IA32_PERF_CAPABILITIES.FW_WRITE`: the general counters have a second address for full-width writes, [`IA32_A_PMC0`]
/// (SDM vol. 3B, "Full-Width Writes to Performance Counter Registers").
pub const FULL_WIDTH_WRITES: u64 = 1 << 13;

/// `IA32_PERF_CAPABILITIES.LBR_FMT`: the format of the legacy branch records (SDM vol. 3B, "LBR Stack and 64-bit
/// Addresses").
pub const LBR_FORMAT: u64 = 0x3F;

/// `IA32_PERF_CAPABILITIES.PERF_METRICS_AVAILABLE`: the processor has [`MSR_PERF_METRICS`] (SDM vol. 4, table 2-2).
pub const PERF_METRICS_AVAILABLE: u64 = 1 << 15;

/// `MSR_PERF_METRICS`: the top-down metrics. Each byte is the share of one category in all issue slots, in units of
/// 1/255 (SDM vol. 3B, "Performance Metrics").
pub const MSR_PERF_METRICS: u32 = 0x329;

/// The index with which RDPMC reads [`MSR_PERF_METRICS`] (SDM vol. 2B, RDPMC).
pub const RDPMC_METRICS: u32 = 1 << 29;

/// `IA32_FIXED_CTR_CTRL` (architectural perfmon version 2 and later): the control register of all fixed counters (SDM
/// vol. 3B, §20.2.2).
pub const IA32_FIXED_CTR_CTRL: u32 = 0x38D;

/// `IA32_PERF_GLOBAL_STATUS` (architectural perfmon version 2 and later): the overflow bits of all counters (SDM vol.
/// 3B, §20.2.2).
pub const IA32_PERF_GLOBAL_STATUS: u32 = 0x38E;

/// `IA32_PERF_GLOBAL_STATUS.CTR_FRZ` (architectural perfmon version 4 and later): the counters are frozen (SDM vol. 3B,
/// §20.2.4.1).
pub const STATUS_CTR_FRZ: u64 = 1 << 59;

/// `IA32_PERF_GLOBAL_STATUS.LBR_FRZ` (architectural perfmon version 4 and later): the branch records are frozen (SDM
/// vol. 3B, §20.2.4.1).
pub const STATUS_LBR_FRZ: u64 = 1 << 58;

/// `IA32_PERF_GLOBAL_CTRL` (architectural perfmon version 2 and later): the enable bits of all counters (SDM vol. 3B,
/// §20.2.2).
pub const IA32_PERF_GLOBAL_CTRL: u32 = 0x38F;

/// `IA32_PERF_GLOBAL_OVF_CTRL` (architectural perfmon version 2 and later): a write of 1 to a bit clears the
/// corresponding bit of `IA32_PERF_GLOBAL_STATUS`. From version 4 on, the SDM names the register
/// `IA32_PERF_GLOBAL_STATUS_RESET` (SDM vol. 3B, §20.2.2 and §20.2.4).
pub const IA32_PERF_GLOBAL_OVF_CTRL: u32 = 0x390;

/// `IA32_A_PMC0`: the first general counter, at a second address. A write to this address can set the counter to any
/// value of the counter's full width (SDM vol. 3B, "Full-Width Writes to Performance Counter Registers").
pub const IA32_A_PMC0: u32 = 0x4C1;

/// `IA32_PMC_GP0_CTR` (architectural perfmon version 6 and later): the first general counter. The next general counter
/// is at this address plus 4 (SDM vol. 4, table 2-2).
pub const IA32_PMC_GP0_CTR: u32 = 0x1900;

/// `IA32_PMC_GP0_CFG_A` (architectural perfmon version 6 and later): the event select of the first general counter. The
/// next event select is at this address plus 4 (SDM vol. 4, table 2-2).
pub const IA32_PMC_GP0_CFG_A: u32 = 0x1901;

/// `IA32_PMC_GP0_CFG_B` (architectural perfmon version 6 and later): a bitmap of the counters that reload the first
/// general counter. When one of these counters overflows, the processor writes the reload value to the first general
/// counter. The register of the next counter is at this address plus 4 (SDM vol. 4, table 2-2).
pub const IA32_PMC_GP0_CFG_B: u32 = 0x1902;

/// `IA32_PMC_GP0_CFG_C` (architectural perfmon version 6 and later): the reload value of the first general counter, and
/// the groups of the counter's architectural PEBS records. The register of the next counter is at this address plus 4
/// (SDM vol. 4, table 2-2).
pub const IA32_PMC_GP0_CFG_C: u32 = 0x1903;

/// `IA32_PMC_FX0_CTR` (architectural perfmon version 6 and later): the first fixed counter. The next fixed counter is
/// at this address plus 4 (SDM vol. 4, table 2-2).
pub const IA32_PMC_FX0_CTR: u32 = 0x1980;

/// `IA32_PMC_FX0_CFG_B` (architectural perfmon version 6 and later): a bitmap of the counters that reload the first
/// fixed counter. When one of these counters overflows, the processor writes the reload value to the first fixed
/// counter. The register of the next counter is at this address plus 4 (SDM vol. 4, table 2-2).
pub const IA32_PMC_FX0_CFG_B: u32 = 0x1982;

/// `IA32_PMC_FX0_CFG_C` (architectural perfmon version 6 and later): the reload value of the first fixed counter, and
/// the groups of the counter's architectural PEBS records. The register of the next counter is at this address plus 4
/// (SDM vol. 4, table 2-2).
pub const IA32_PMC_FX0_CFG_C: u32 = 0x1983;

/// `IA32_PEBS_ENABLE`: a bitmap of counters. When one of these counters overflows, the processor writes a PEBS record
/// (SDM vol. 3B, §20.6.2.4).
pub const IA32_PEBS_ENABLE: u32 = 0x3F1;

/// `IA32_DS_AREA`: the linear address of the DS save area (SDM vol. 3B, §18.4.9).
pub const IA32_DS_AREA: u32 = 0x600;

/// `IA32_PERFEVTSELx`: an event-select register (SDM vol. 3B, §20.2.1.1, figure "Layout of IA32_PERFEVTSELx MSRs").
///
/// ```
/// use pmu_intel::registers::PerfEvtSel;
/// // Misses of the last cache in user mode, with an interrupt on overflow.
/// let select = PerfEvtSel::new().with_event(0x2E).with_unit_mask(0x41).with_user(true).with_interrupt(true);
/// assert_eq!(select.into_bits(), 0x11_412E);
/// ```
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct PerfEvtSel {
    /// The event's number.
    pub event: u8,
    /// The unit mask.
    pub unit_mask: u8,
    /// Counts at privilege levels above 0.
    pub user: bool,
    /// Counts at privilege level 0.
    pub os: bool,
    /// Counts only transitions of the event's condition from false to true.
    pub edge: bool,
    /// Toggles the processor's PMi pins. The bit is reserved on later processors.
    pub pin_control: bool,
    /// Raises the performance interrupt of the local APIC when the counter overflows.
    pub interrupt: bool,
    /// Counts events of all logical processors of the core. The bit exists from architectural perfmon version 3 on, and
    /// is deprecated from version 5 on.
    pub any_thread: bool,
    /// Enables the counter.
    pub enable: bool,
    /// Inverts the comparison with the counter mask.
    pub invert: bool,
    /// If this field is 0, the counter counts events. Otherwise the counter counts cycles in which the number of events
    /// is at least the value of this field.
    pub counter_mask: u8,
    __: u32,
}

impl PerfEvtSel {
    /// Returns the register's value as an [`EventSelect`], without the reserved bits 63:32.
    pub const fn select(self) -> EventSelect {
        EventSelect::from_bits(self.into_bits() & 0xFFFF_FFFF)
    }
}

/// The bits of `IA32_MISC_ENABLE` that concern performance monitoring (SDM vol. 4, table 2-2).
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct MiscEnable {
    #[bits(7)]
    __: u8,
    /// Performance monitoring is available (read-only).
    pub performance_monitoring: bool,
    #[bits(3)]
    __: u8,
    /// The branch trace store (BTS) is unavailable (read-only).
    pub bts_unavailable: bool,
    /// Processor event-based sampling (PEBS) is unavailable (read-only).
    pub pebs_unavailable: bool,
    #[bits(51)]
    __: u64,
}

/// The bits of `IA32_DEBUGCTL` that concern tracing and performance monitoring (SDM vol. 3B,
/// §18.4.1, figure "IA32_DEBUGCTL MSR").
///
/// ```
/// use pmu_intel::registers::DebugCtl;
/// let branches = DebugCtl::new().with_tr(true).with_bts(true);
/// assert_eq!(branches.into_bits(), 0xC0);
/// ```
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct DebugCtl {
    /// Records branches in the LBR stack.
    pub lbr: bool,
    /// Makes the trap flag (RFLAGS.TF) single-step on branches.
    pub btf: bool,
    #[bits(4)]
    __: u8,
    /// Sends branch trace messages.
    pub tr: bool,
    /// Stores branch trace messages in the BTS buffer: **the processor writes to memory**.
    pub bts: bool,
    /// Raises an interrupt when the BTS buffer reaches its threshold. If this bit is clear, the processor uses the BTS
    /// buffer as a ring buffer.
    pub bt_int: bool,
    /// Suppresses branch trace messages at privilege level 0.
    pub bts_off_os: bool,
    /// Suppresses branch trace messages at privilege levels above 0.
    pub bts_off_usr: bool,
    /// Freezes the LBR stack when a counter requests a performance interrupt.
    pub freeze_lbrs_on_pmi: bool,
    /// Freezes the counters when a counter requests a performance interrupt.
    pub freeze_perfmon_on_pmi: bool,
    __: bool,
    /// Freezes the counters in system-management mode.
    pub freeze_while_smm: bool,
    #[bits(49)]
    __: u64,
}

/// `MSR_LBR_SELECT`: each bit except `en_callstack` excludes one kind of branch from the records (SDM vol. 3B,
/// "Filtering of Last Branch Records").
///
/// ```
/// use pmu_intel::registers::LbrSelect;
/// // The calls of user mode: level 0 and every other kind are suppressed.
/// let others = LbrSelect::new().with_cpl_eq_0(true).with_jcc(true).with_near_ret(true).with_near_ind_jmp(true);
/// assert_eq!(others.with_near_rel_jmp(true).with_far_branch(true).into_bits(), 0x1E5);
/// ```
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct LbrSelect {
    /// Does not record branches that end at privilege level 0.
    pub cpl_eq_0: bool,
    /// Does not record branches that end at privilege levels above 0.
    pub cpl_neq_0: bool,
    /// Does not record conditional branches.
    pub jcc: bool,
    /// Does not record near relative calls.
    pub near_rel_call: bool,
    /// Does not record near indirect calls.
    pub near_ind_call: bool,
    /// Does not record near returns.
    pub near_ret: bool,
    /// Does not record near indirect jumps.
    pub near_ind_jmp: bool,
    /// Does not record near relative jumps.
    pub near_rel_jmp: bool,
    /// Does not record far branches.
    pub far_branch: bool,
    /// Makes the records a call stack: a call adds a record, and a return removes the newest record. Processors before
    /// Haswell lack this bit.
    pub en_callstack: bool,
    #[bits(54)]
    __: u64,
}

/// `IA32_LBR_CTL`: the enable bit and the filter of the architectural branch records (SDM vol. 4, table 2-2).
///
/// ```
/// use pmu_intel::registers::LbrCtl;
/// // Conditional branches of user mode.
/// assert_eq!(LbrCtl::new().with_lbr_en(true).with_usr(true).with_jcc(true).into_bits(), 0x1_0005);
/// ```
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct LbrCtl {
    /// Records branches.
    pub lbr_en: bool,
    /// Records branches at privilege level 0.
    pub os: bool,
    /// Records branches at privilege levels above 0.
    pub usr: bool,
    /// Makes the records a call stack: a call adds a record, and a return removes the newest record.
    pub call_stack: bool,
    #[bits(12)]
    __: u16,
    /// Records conditional branches.
    pub jcc: bool,
    /// Records near relative jumps.
    pub near_rel_jmp: bool,
    /// Records near indirect jumps.
    pub near_ind_jmp: bool,
    /// Records near relative calls.
    pub near_rel_call: bool,
    /// Records near indirect calls.
    pub near_ind_call: bool,
    /// Records near returns.
    pub near_ret: bool,
    /// Records other branches: far branches, interrupts and exceptions.
    pub other_branch: bool,
    #[bits(41)]
    __: u64,
}

/// `IA32_LBR_x_INFO`: cycles, event counts, kind and misprediction of an architectural branch record. For a legacy
/// record, `MSR_LBR_INFO_x` has only the cycles and bits 63:61 (SDM vol. 4, table 2-2).
///
/// ```
/// use pmu_intel::registers::LbrInfo;
/// let info = LbrInfo::from_bits(0x9400_0000_0000_0009);
/// assert!(info.mispredicted() && info.cycle_count_valid());
/// assert_eq!((info.branch_type(), info.cycle_count()), (4, 9));
/// ```
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct LbrInfo {
    /// Core cycles since the previous record; 0xFFFF stands for 0xFFFF or more.
    pub cycle_count: u16,
    __: u16,
    /// Events of general counter 0 since the previous record; 3 stands for 3 or more.
    #[bits(2)]
    pub pmc0_count: u8,
    /// Events of general counter 1 since the previous record; 3 stands for 3 or more.
    #[bits(2)]
    pub pmc1_count: u8,
    /// Events of general counter 2 since the previous record; 3 stands for 3 or more.
    #[bits(2)]
    pub pmc2_count: u8,
    /// Events of general counter 3 since the previous record; 3 stands for 3 or more.
    #[bits(2)]
    pub pmc3_count: u8,
    __: u16,
    /// Kind of the branch, as a code of the SDM's field `BR_TYPE`.
    #[bits(4)]
    pub branch_type: u8,
    /// The field `cycle_count` is valid.
    pub cycle_count_valid: bool,
    /// The branch is the abort of a transaction.
    pub tsx_abort: bool,
    /// The branch was in a transaction.
    pub in_tsx: bool,
    /// The branch was mispredicted.
    pub mispredicted: bool,
}
