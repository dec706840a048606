//! The registers of precise records and the branch trace store.

use crate::pmu::facility::Writer;
use crate::pmu::rows::{FacilityRow, Register, Rows};
use crate::precise::adaptive::{
    DATA_BRANCHES, DATA_COUNTERS, DATA_GENERAL, DATA_MEMORY, DATA_METRICS, DATA_XMM,
};
use crate::precise::configuration::{DebugStoreRecords, PreciseRecords};
use crate::precise::virtual_precise::*;
use crate::registers::list::RegisterKind;
use crate::registers::row::WriteAs::{Cleared, Kept, Refused, Set, Stored};
use crate::registers::row::when;

/// `IA32_PEBS_BASE`: address and size.
pub(crate) const BASE_ADDRESS: u64 = 0x000F_FFFF_FFFF_F000;
pub(crate) const BASE_SIZE: u64 = 0x1F;
/// `IA32_PEBS_INDEX`: offset of the next record, and the buffer is full. Bits 58:36 are the threshold.
pub(crate) const INDEX_WRITE: u64 = 0x7FF_FFF0;
pub(crate) const INDEX_FULL: u64 = 1 << 31;
const INDEX_THRESHOLD: u64 = 0x7F_FFFF << 36;
/// `IA32_DEBUGCTL`: TR, BTS, BTINT, BTS_OFF_OS, BTS_OFF_USR.
const DEBUG_OF_TRACE: u64 = 0x7C0;
/// `IA32_MISC_ENABLE`: BTS unavailable, PEBS unavailable.
const MISC_NO_TRACE: u64 = 1 << 11;
const MISC_NO_RECORDS: u64 = 1 << 12;
/// `IA32_PERF_CAPABILITIES`: PEBS_TRAP, PEBS_ARCH_REG, PEBS_REC_FMT, PEBS_BASELINE, PEBS_TIMING_INFO.
const CAPABILITIES_OF_RECORDS: u64 = 0b11 << 6 | 0xF << 8 | 1 << 14 | 1 << 17;
/// `MSR_PEBS_DATA_CFG`: the number of branch records less 1.
const DATA_DEPTH: u64 = 0x1F << 24;
/// An event select: the counter's records are adaptive. The bits of `IA32_FIXED_CTR_CTRL` are 32 + 4*n*.
const SELECT_ADAPTIVE: u64 = 1 << 34;

/// Values that are computed: of `IA32_MISC_ENABLE`, `IA32_PERF_CAPABILITIES`, the event selects, `IA32_FIXED_CTR_CTRL`.
const MISC: usize = WORDS;
const CAPABILITIES: usize = WORDS + 1;
const SELECTS: usize = WORDS + 2;
const FIXED_CONTROL: usize = WORDS + 3;
/// `IA32_PMC_GPx_CFG_C`, `IA32_PMC_FXx_CFG_C`.
const CONTROLS: usize = WORDS + 4;

type Row = FacilityRow<VirtualPrecise>;

const STORE: &str = "SDM vol. 3B, Processor Event Based Sampling (PEBS)";
const PEBS: &str = "SDM vol. 3B, Architectural PEBS";

impl Rows for VirtualPrecise {
    const KIND: RegisterKind = RegisterKind::PreciseRecords;

    /// Nothing is enabled before its addresses are set.
    #[rustfmt::skip]
    const ROWS: &'static [Row] = &[
        Row::new(0x600, AREA, "IA32_DS_AREA", STORE).when(Self::has_debug_store),
        Row::new(0x3F2, DATA, "MSR_PEBS_DATA_CFG", STORE).when(Self::has_baseline).legal(Self::legal_data),
        Row::new(0x3F6, LATENCY, "MSR_PEBS_LD_LAT_THRESHOLD", STORE)
            .when(|own| own.extra_registers().0).legal(|_| 0xFFFF),
        Row::new(0x3F7, FRONTEND, "MSR_PEBS_FRONTEND", STORE)
            .when(|own| own.extra_registers().1).legal(|_| 0x7F_FFFF),
        Row::new(0x3F1, ENABLE, "IA32_PEBS_ENABLE", STORE)
            .when(|own| own.debug_store().is_some()).legal(Self::legal_enable),
        Row::new(0x3F4, BASE, "IA32_PEBS_BASE", PEBS)
            .when(Self::is_architectural).legal(|_| BASE_ADDRESS | BASE_SIZE),
        Row::new(0x3F5, INDEX, "IA32_PEBS_INDEX", PEBS)
            .when(Self::is_architectural).legal(|_| INDEX_WRITE | INDEX_FULL | INDEX_ENABLE | INDEX_THRESHOLD),
        Row::new(0x1903, CONTROLS, "IA32_PMC_GPx_CFG_C", PEBS).each_counter("IA32_PMC_FXx_CFG_C", Self::counters)
            .when(Self::is_architectural).legal(Self::legal_control),
        // Neither the guest nor a host changes what the processor has.
        Row::shared(0x1A0, MISC, |own, _| own.unavailable()).when(Self::has_debug_store).write(Kept, Kept),
        Row::shared(0x345, CAPABILITIES, |_, _| CAPABILITIES_OF_RECORDS)
            .when(|own| own.debug_store().is_some()).write(Refused, Kept),
        Row::shared(0x1D9, DEBUG, |_, _| DEBUG_OF_TRACE).when(|own| own.configuration.branch_trace),
        Row::shared(0x38E, STATUS, |own, _| own.status_bits()).write(Refused, Stored),
        Row::shared(0x390, STATUS, |own, _| own.status_bits()).write(Cleared, Cleared),
        Row::shared(0x391, STATUS, |own, _| own.status_bits()).write(Set, Set).when(|own| own.version >= 4),
        Row::shared(0x38D, FIXED_CONTROL, |own, _| spread(own.fixed.into()))
            .when(|own| own.has_baseline() && own.fixed != 0),
        Row::shared(0x186, SELECTS, |_, _| SELECT_ADAPTIVE)
            .each(1, |own| own.general.into()).when(Self::has_baseline),
        Row::shared(0x1901, SELECTS, |_, _| SELECT_ADAPTIVE)
            .each(4, |own| own.general.into()).when(|own| own.has_baseline() && own.version >= 6),
    ];

    fn held(&self, register: &Register<Self>) -> u64 {
        match register.row.value {
            MISC => 0,
            CAPABILITIES => self.capabilities(),
            SELECTS => (self.words[ADAPTIVE] >> register.number & 1) << 34,
            FIXED_CONTROL => spread(self.words[ADAPTIVE] >> 32),
            CONTROLS => self.controls[register.counter() % 16],
            word => self.words[word % WORDS],
        }
    }

    fn hold(&mut self, _: Writer, register: &Register<Self>, value: u64) {
        let adaptive = &mut self.words[ADAPTIVE];
        match register.row.value {
            MISC | CAPABILITIES => {}
            SELECTS => {
                *adaptive =
                    *adaptive & !(1 << register.number) | (value >> 34 & 1) << register.number;
            }
            FIXED_CONTROL => {
                let fixed = (0..8).fold(0, |fixed, n| fixed | (value >> (32 + 4 * n) & 1) << n);
                *adaptive = *adaptive & 0xFFFF_FFFF | fixed << 32;
            }
            CONTROLS => self.controls[register.counter() % 16] = value,
            word => self.words[word % WORDS] = value,
        }
        // A counter that writes no records any more is disarmed.
        self.words[DUE] &= self.enabled();
    }

    /// The bits that do not repeat the sign of a linear address of 57 bits are illegal.
    fn breaks(&self, _: Writer, register: &Register<Self>, value: u64) -> u64 {
        if register.row.value == AREA { value ^ ((value << 7) as i64 >> 7) as u64 } else { 0 }
    }
}

/// Returns a bitmap of fixed counters as bits of `IA32_FIXED_CTR_CTRL`.
fn spread(fixed: u64) -> u64 {
    (0..8).fold(0, |bits, counter| bits | (fixed >> counter & 1) << (32 + 4 * counter))
}

impl VirtualPrecise {
    pub(crate) const fn debug_store(&self) -> Option<DebugStoreRecords> {
        match self.configuration.records {
            PreciseRecords::DebugStore(records) => Some(records),
            _ => None,
        }
    }

    pub(crate) const fn is_architectural(&self) -> bool {
        matches!(self.configuration.records, PreciseRecords::Architectural(_))
    }

    const fn has_baseline(&self) -> bool {
        matches!(self.debug_store(), Some(DebugStoreRecords { baseline: true, .. }))
    }

    /// Returns whether the load-latency threshold and the front-end register exist.
    const fn extra_registers(&self) -> (bool, bool) {
        match self.configuration.records {
            PreciseRecords::None => (false, false),
            PreciseRecords::DebugStore(records) => (records.load_latency, records.frontend),
            PreciseRecords::Architectural(records) => (records.load_latency, records.frontend),
        }
    }

    const fn status_bits(&self) -> u64 {
        when(self.has_debug_store(), BUFFER) | when(self.is_architectural(), THRESHOLD)
    }

    const fn unavailable(&self) -> u64 {
        let has_records = self.debug_store().is_some();
        when(self.configuration.branch_trace, MISC_NO_TRACE) | when(has_records, MISC_NO_RECORDS)
    }

    fn legal_enable(&self) -> u64 {
        let loads = self.debug_store().is_some_and(|own| own.load_latency && !own.baseline);
        self.counters() | when(loads, u64::from(self.general) << 32)
    }

    fn legal_data(&self) -> u64 {
        let counters = u64::from(self.general) << 32 | u64::from(self.fixed) << 48;
        let records = self.debug_store();
        let [has_counters, has_metrics] =
            [records.is_some_and(|own| own.format >= 6), records.is_some_and(|own| own.metrics)];
        let basic = DATA_MEMORY | DATA_GENERAL | DATA_XMM | DATA_BRANCHES | DATA_DEPTH;
        basic | when(has_counters, DATA_COUNTERS | counters) | when(has_metrics, DATA_METRICS)
    }

    fn legal_control(&self) -> u64 {
        let PreciseRecords::Architectural(records) = self.configuration.records else { return 0 };
        1 << 63 | u64::from(records.groups) << 32 | 0xFFFF_FFFF
    }

    fn capabilities(&self) -> u64 {
        self.debug_store().map_or(0, |records| {
            0b11 << 6
                | u64::from(records.format) << 8
                | u64::from(records.baseline) << 14
                | u64::from(records.timing) << 17
        })
    }
}
