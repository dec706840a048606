//! The registers of AMD's performance counters.
//!
//! Read first: AMD APM vol. 2, §13.2.1 "Performance Counters"; PPR of a family, MSRC001_00[00…07].

use bitfield_struct::bitfield;
use pmu_core::EventSelect;

/// `PerfEvtSel0`: the first of the four legacy event selects (APM vol. 2, appendix A).
pub const PERF_LEGACY_CTL0: u32 = 0xC001_0000;

/// `PerfCtr0`: the first of the four legacy counters (APM vol. 2, appendix A).
pub const PERF_LEGACY_CTR0: u32 = 0xC001_0004;

/// Number of legacy counters, which every processor of the architecture has (APM vol. 2, §13.2.1).
pub const LEGACY_COUNTERS: u8 = 4;

/// `PERF_CTL0`: the first event select of the core extension. The next event select is at this address plus 2 (APM vol.
/// 2, §13.2.1; CPUID 0x80000001 ECX bit 23, PerfCtrExtCore).
pub const PERF_CTL0: u32 = 0xC001_0200;

/// `PERF_CTR0`: the first counter of the core extension. The next counter is at this address plus 2 (APM vol. 2,
/// §13.2.1; CPUID 0x80000001 ECX bit 23, PerfCtrExtCore).
pub const PERF_CTR0: u32 = 0xC001_0201;

/// Number of counters of the core extension if CPUID does not declare a number (APM vol. 2, §13.2.1).
pub const CORE_COUNTERS: u8 = 6;

/// `PerfCntrGlobalStatus`: the overflow bits of all counters, on processors with PerfMonV2 (APM vol. 2, §13.2.1; CPUID
/// 0x80000022 EAX bit 0).
pub const PERF_CNTR_GLOBAL_STATUS: u32 = 0xC000_0300;

/// `PerfCntrGlobalCtl`: the enable bits of all counters, on processors with PerfMonV2 (APM vol. 2, §13.2.1; CPUID
/// 0x80000022 EAX bit 0).
pub const PERF_CNTR_GLOBAL_CTL: u32 = 0xC000_0301;

/// `PerfCntrGlobalStatusClr`, on processors with PerfMonV2: writing 1 to a bit clears the same bit of
/// `PerfCntrGlobalStatus` (APM vol. 2, §13.2.1; CPUID 0x80000022 EAX bit 0).
pub const PERF_CNTR_GLOBAL_STATUS_CLR: u32 = 0xC000_0302;

/// `PerfCntrGlobalStatus` bit 59, PMCF: the counters are frozen until the bit is cleared (APM vol. 2, §13.2.1). Bit 12
/// of DebugCtl enables freezing; the interface does not set bit 12, but firmware may have set it.
pub const STATUS_PMC_FREEZE: u64 = 1 << 59;

/// Number of core counters that RDPMC can read; from index 6 on, RDPMC reads counters of other units (APM vol. 3,
/// RDPMC).
pub const RDPMC_CORE_COUNTERS: u8 = 6;

/// Width of the counters in bits (APM vol. 2, §13.2.1).
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
    /// Bits 7:0 of the event's number.
    pub event_low: u8,
    /// The unit mask.
    pub unit_mask: u8,
    /// Counts at privilege levels above 0.
    pub user: bool,
    /// Counts at privilege level 0.
    pub os: bool,
    /// Counts rising edges of the event.
    pub edge: bool,
    __: bool,
    /// Interrupts through the local APIC when the counter overflows.
    pub interrupt: bool,
    __: bool,
    /// Enables the counter.
    pub enable: bool,
    /// Inverts the comparison with the counter mask.
    pub invert: bool,
    /// If not 0, counts the cycles with at least this many events; if 0, counts the events.
    pub counter_mask: u8,
    /// Bits 11:8 of the event's number, which are 0 in every event of [`SOURCES`](crate::SOURCES).
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
