//! The registers of AMD's performance counters.
//!
//! Read first: AMD APM vol. 2, §13.2.1 "Performance Counters"; PPR of a family, MSRC001_00[00…07].

// To add a register: as in `pmu-intel/src/registers.rs`. The test of sampled instructions is in `tests/tests/ibs`.

use bitfield_struct::bitfield;
use pmu_core::registers::EventSelect;

/// `PerfEvtSel0`: the first of the four legacy event selects (APM vol. 2, appendix A).
pub const PERF_LEGACY_CTL0: u32 = 0xC001_0000;

/// `PerfCtr0`: the first of the four legacy counters (APM vol. 2, appendix A).
pub const PERF_LEGACY_CTR0: u32 = 0xC001_0004;

/// Number of legacy counters, which every processor of the architecture has (APM vol. 2, §13.2.1).
pub const LEGACY_COUNTERS: u8 = 4;

/// `PERF_CTL0`: the event-select register of counter 0, on processors with the core counter extension. `PERF_CTL1` is
/// at this address plus 2 (APM vol. 2, §13.2.1; CPUID 0x80000001 ECX bit 23, PerfCtrExtCore).
pub const PERF_CTL0: u32 = 0xC001_0200;

/// `PERF_CTR0`: counter 0, on processors with the core counter extension. `PERF_CTR1` is at this address plus 2 (APM
/// vol. 2, §13.2.1; CPUID 0x80000001 ECX bit 23, PerfCtrExtCore).
pub const PERF_CTR0: u32 = 0xC001_0201;

/// Number of core counters with the core counter extension, if CPUID does not report the number of counters (APM vol.
/// 2, §13.2.1).
pub const CORE_COUNTERS: u8 = 6;

/// `PerfCntrGlobalStatus`: the overflow bits of all counters, on processors with PerfMonV2 (APM vol. 2, §13.2.1; CPUID
/// 0x80000022 EAX bit 0).
pub const PERF_CNTR_GLOBAL_STATUS: u32 = 0xC000_0300;

/// `PerfCntrGlobalCtl`: the enable bits of all counters, on processors with PerfMonV2 (APM vol. 2, §13.2.1; CPUID
/// 0x80000022 EAX bit 0).
pub const PERF_CNTR_GLOBAL_CTL: u32 = 0xC000_0301;

/// `PerfCntrGlobalStatusClr`, on processors with PerfMonV2: writing 1 to bit *n* clears bit *n* of
/// `PerfCntrGlobalStatus` (APM vol. 2, §13.2.1; CPUID 0x80000022 EAX bit 0).
pub const PERF_CNTR_GLOBAL_STATUS_CLR: u32 = 0xC000_0302;

/// `PerfCntrGlobalStatus` bit 59, PMCF: the counters are frozen until the bit is cleared (APM vol. 2, §13.2.1). The
/// processor sets PMCF only if bit 12 of DebugCtl is set. This crate does not set bit 12, but firmware may.
pub const STATUS_PMC_FREEZE: u64 = 1 << 59;

/// `PerfCntrGlobalStatus` bit 58, LBRF: the branch records are frozen until the bit is cleared (APM vol. 2, §13.2.1).
pub const STATUS_LBR_FREEZE: u64 = 1 << 58;

/// `DebugCtl`: bit 11 freezes the branch records on the performance interrupt, if CPUID 0x80000022 EAX bit 2 is set
/// (APM vol. 2, "Debug-Control MSR").
pub const DEBUG_CTL: u32 = 0x1D9;

/// `DebugCtl` bit 11, FLBRI: freezes the branch records on the performance interrupt (APM vol. 2, "Debug-Control MSR").
pub const DEBUG_CTL_FREEZE_LBRS: u64 = 1 << 11;

/// `LastBranchStackSelect`: the filter of the last-branch stack (APM vol. 2, "Last Branch Stack Registers"; CPUID
/// 0x80000022 EAX bit 1).
pub const LAST_BRANCH_STACK_SELECT: u32 = 0xC000_010E;

/// `DebugExtnCtl`: bit 6, LBRSE, enables the last-branch stack (APM vol. 2, "Debug-Extension-Control MSR"). On Zen 3,
/// other bits control branch sampling. A debug exception (#DB) clears bit 6.
pub const DEBUG_EXTN_CTL: u32 = 0xC000_010F;

/// `SAMP_BR_FROM`, or `LastBranchStackFromIp`: the address of the branch in record 0. The branch's target is in the MSR
/// at this address plus 1. Record 1 is at this address plus 2 (APM vol. 2, "Last Branch Stack Registers").
pub const LAST_BRANCH_STACK_FROM_IP: u32 = 0xC001_0300;

/// Number of core counters that RDPMC can read. An RDPMC index of 6 or more selects a counter outside the core (APM
/// vol. 3, RDPMC).
pub const RDPMC_CORE_COUNTERS: u8 = 6;

/// Width of the core counters in bits (APM vol. 2, §13.2.1).
pub const COUNTER_WIDTH: u8 = 48;

/// `PERF_CTL`: an event-select register (APM vol. 2, §13.2.1, figure "Core Performance Event-Select
/// Register").
///
/// ```
/// use pmu_amd::registers::PerfCtl;
/// // Retired instructions at every privilege level.
/// let select = PerfCtl::new().with_event_low(0xC0).with_user(true).with_os(true);
/// assert_eq!(select.into_bits(), 0x3_00C0);
/// ```
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct PerfCtl {
    /// Bits 7:0 of the event-select code.
    pub event_low: u8,
    /// The unit mask.
    pub unit_mask: u8,
    /// Counts at privilege levels above 0.
    pub user: bool,
    /// Counts at privilege level 0.
    pub os: bool,
    /// Counts how often the event begins (edge detect), not how long it lasts.
    pub edge: bool,
    __: bool,
    /// If the counter overflows, the local APIC raises an interrupt.
    pub interrupt: bool,
    __: bool,
    /// Enables the counter.
    pub enable: bool,
    /// Inverts the comparison with `counter_mask`: the counter counts the cycles with fewer events than `counter_mask`.
    pub invert: bool,
    /// Counter mask. If it is 0, the counter counts events. If it is *n*, the counter counts the cycles with at least
    /// *n* events.
    pub counter_mask: u8,
    /// Bits 11:8 of the event-select code. They are 0 in all events of [`SOURCES`](crate::SOURCES).
    #[bits(4, access = RO)]
    pub event_high: u8,
    #[bits(4)]
    __: u8,
    /// Counts only while a guest runs (needs SVM).
    pub guest_only: bool,
    /// Counts only while no guest runs (needs SVM).
    pub host_only: bool,
    #[bits(22)]
    __: u32,
}

impl PerfCtl {
    /// Returns the register's value as an [`EventSelect`].
    pub const fn select(self) -> EventSelect {
        EventSelect::from_bits(self.into_bits())
    }
}

/// `LastBranchStackSelect`: the filter of the last-branch stack. Each bit excludes one type of branch (APM vol. 2,
/// "Last Branch Stack Registers").
///
/// ```
/// use pmu_amd::registers::LastBranchStackSelect;
/// // Only branches that end in user mode.
/// assert_eq!(LastBranchStackSelect::new().with_cpl_eq_0(true).into_bits(), 1);
/// ```
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct LastBranchStackSelect {
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
    #[bits(55)]
    __: u64,
}

/// `DebugExtnCtl`: controls branch recording. From Zen 4 on, bit 6 enables the last-branch stack (APM vol. 2,
/// "Debug-Extension-Control MSR"). Zen 3 uses the bits below and above bit 6 for branch sampling (PPR of family 19h,
/// models 00h to 0Fh).
///
/// ```
/// use pmu_amd::registers::DebugExtnCtl;
/// assert_eq!(DebugExtnCtl::new().with_lbrse(true).into_bits(), 0x40);
/// // Zen 3: five branches were sampled.
/// let sampling = DebugExtnCtl::from_bits(0x5_003C);
/// assert!(sampling.brs_enable() && sampling.valid());
/// assert_eq!((sampling.next_record(), sampling.always_set()), (5, 3));
/// ```
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct DebugExtnCtl {
    #[bits(2)]
    __: u8,
    /// Samples branches after an overflow (Zen 3).
    pub brs_enable: bool,
    /// Always 3 on Zen 3.
    #[bits(2)]
    pub always_set: u8,
    /// At least one branch was sampled (Zen 3).
    pub valid: bool,
    /// Records branches in the last-branch stack (from Zen 4 on).
    pub lbrse: bool,
    #[bits(9)]
    __: u16,
    /// Index of the branch record that the processor writes next. The index is 0 after the processor has written all
    /// records (Zen 3).
    #[bits(4)]
    pub next_record: u8,
    #[bits(4)]
    __: u8,
    /// Number of the counter whose overflow starts branch sampling (Zen 3).
    #[bits(3)]
    pub counter: u8,
    #[bits(37)]
    __: u64,
}

/// `LastBranchStackFromIp`: the first register of a branch record, with the address of the branch (APM vol. 2, "Last
/// Branch Stack Registers").
///
/// ```
/// use pmu_amd::registers::LastBranchFrom;
/// let from = LastBranchFrom::from_bits(0x8000_7F00_1234_5678);
/// assert_eq!((from.address(), from.mispredicted()), (0x7F00_1234_5678, true));
/// ```
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct LastBranchFrom {
    /// Address of the branch.
    #[bits(57)]
    pub address: u64,
    #[bits(6)]
    __: u8,
    /// The branch was mispredicted.
    pub mispredicted: bool,
}

/// `LastBranchStackToIp`: the second register of a branch record, with the target of the branch (APM vol. 2, "Last
/// Branch Stack Registers").
///
/// ```
/// use pmu_amd::registers::LastBranchTo;
/// let to = LastBranchTo::from_bits(0xC000_0000_0040_1000);
/// assert!(to.valid() && to.speculative() && !to.reserved());
/// assert_eq!(to.address(), 0x40_1000);
/// ```
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct LastBranchTo {
    /// Address of the target.
    #[bits(57)]
    pub address: u64,
    #[bits(4)]
    __: u8,
    /// Reserved; set in erroneous records (erratum 1452 of family 19h).
    pub reserved: bool,
    /// The branch was executed speculatively.
    pub speculative: bool,
    /// The branch was on the correct path of execution.
    pub valid: bool,
}
