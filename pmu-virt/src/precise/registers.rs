//! The registers of precise records and the branch trace store: addresses, names, and legal bits.

use crate::precise::adaptive::{
    DATA_BRANCHES, DATA_COUNTERS, DATA_GENERAL, DATA_MEMORY, DATA_METRICS, DATA_XMM,
};
use crate::precise::configuration::{DebugStoreRecords, PreciseRecords};
use crate::precise::virtual_precise::{BUFFER, INDEX_ENABLE, THRESHOLD, VirtualPrecise};

/// A register of precise records, or one that they share with the PMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    /// `IA32_DS_AREA`.
    Area,
    /// `IA32_PEBS_ENABLE`.
    Enable,
    /// `MSR_PEBS_DATA_CFG`.
    Data,
    /// `MSR_PEBS_LD_LAT_THRESHOLD`.
    Latency,
    /// `MSR_PEBS_FRONTEND`.
    Frontend,
    /// `IA32_PEBS_BASE`.
    Base,
    /// `IA32_PEBS_INDEX`.
    Index,
    /// `IA32_PMC_GPx_CFG_C` (0–7), `IA32_PMC_FXx_CFG_C` (8–15).
    Control(usize),
    /// The status, and the registers that clear and set its bits.
    Status,
    StatusClear,
    StatusSet,
    /// `IA32_DEBUGCTL`: the bits of the branch trace store.
    Debug,
    /// `IA32_MISC_ENABLE`: the bits "unavailable".
    Misc,
    /// `IA32_PERF_CAPABILITIES`.
    Capabilities,
    /// An event select: bit 34.
    Select(usize),
    /// `IA32_FIXED_CTR_CTRL`: bits 32 + 4*n*.
    FixedControl,
}

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
/// `MSR_PEBS_DATA_CFG`: the number of branch records less 1.
const DATA_DEPTH: u64 = 0x1F << 24;

const CFG_C_GENERAL: u32 = 0x1903;
const CFG_C_FIXED: u32 = 0x1983;

impl VirtualPrecise {
    pub(crate) const fn debug_store(&self) -> Option<DebugStoreRecords> {
        match self.configuration.records {
            PreciseRecords::DebugStore(records) => Some(records),
            _ => None,
        }
    }

    const fn has_baseline(&self) -> bool {
        matches!(self.debug_store(), Some(DebugStoreRecords { baseline: true, .. }))
    }

    /// Returns the register at an address, if the processor has it for its records.
    pub(crate) fn locate(&self, address: u32) -> Option<Register> {
        use Register as R;
        let store = self.debug_store();
        let architectural = matches!(self.configuration.records, PreciseRecords::Architectural(_));
        let (latency, frontend) = match self.configuration.records {
            PreciseRecords::None => (false, false),
            PreciseRecords::DebugStore(records) => (records.load_latency, records.frontend),
            PreciseRecords::Architectural(records) => (records.load_latency, records.frontend),
        };
        let (register, exists) = match address {
            0x600 => (R::Area, self.has_debug_store()),
            0x3F1 => (R::Enable, store.is_some()),
            0x3F2 => (R::Data, self.has_baseline()),
            0x3F4 => (R::Base, architectural),
            0x3F5 => (R::Index, architectural),
            0x3F6 => (R::Latency, latency),
            0x3F7 => (R::Frontend, frontend),
            0x1A0 => (R::Misc, self.has_debug_store()),
            0x1D9 => (R::Debug, self.configuration.branch_trace),
            0x345 => (R::Capabilities, store.is_some()),
            0x38E => (R::Status, true),
            0x390 => (R::StatusClear, true),
            0x391 => (R::StatusSet, self.version >= 4),
            0x38D => (R::FixedControl, self.has_baseline() && self.fixed != 0),
            0x186..=0x18D => {
                let counter = address - 0x186;
                let can = self.general >> counter & 1 != 0;
                (R::Select(counter as usize), self.has_baseline() && can)
            }
            0x1901..=0x19BF => return self.locate_in_blocks(address),
            _ => return None,
        };
        exists.then_some(register)
    }

    /// Returns the register at an address of version 6's blocks, of four registers each.
    fn locate_in_blocks(&self, address: u32) -> Option<Register> {
        let (counter, is_fixed) = match address {
            ..0x1980 => ((address - 0x1900) / 4, false),
            _ => ((address - 0x1980) / 4, true),
        };
        let can = if is_fixed { self.fixed } else { self.general };
        if counter >= 8 || can >> counter & 1 == 0 || self.version < 6 {
            return None;
        }
        let place = counter as usize + if is_fixed { 8 } else { 0 };
        let architectural = matches!(self.configuration.records, PreciseRecords::Architectural(_));
        match address & 3 {
            1 if self.has_baseline() && !is_fixed => Some(Register::Select(place)),
            3 if architectural => Some(Register::Control(place)),
            _ => None,
        }
    }

    /// Returns the registers that the records do not share with the PMU's table, in the order in which they are
    /// restored: nothing is enabled before its addresses are set.
    pub(crate) fn own(&self) -> impl Iterator<Item = (Register, u32, &'static str)> + use<> {
        let this = *self;
        let singles = [
            (0x600, "IA32_DS_AREA"),
            (0x3F2, "MSR_PEBS_DATA_CFG"),
            (0x3F6, "MSR_PEBS_LD_LAT_THRESHOLD"),
            (0x3F7, "MSR_PEBS_FRONTEND"),
            (0x3F1, "IA32_PEBS_ENABLE"),
            (0x3F4, "IA32_PEBS_BASE"),
            (0x3F5, "IA32_PEBS_INDEX"),
        ];
        let general = (0..8).map(|counter| (CFG_C_GENERAL + 4 * counter, "IA32_PMC_GPx_CFG_C"));
        let fixed = (0..8).map(|counter| (CFG_C_FIXED + 4 * counter, "IA32_PMC_FXx_CFG_C"));
        singles
            .into_iter()
            .chain(general)
            .chain(fixed)
            .filter_map(move |(address, name)| Some((this.locate(address)?, address, name)))
    }

    /// Returns the bits of a register that belong to the records; all bits unless the register is shared.
    pub(crate) fn owned(&self, register: Register) -> u64 {
        let when = |present: bool, bits: u64| if present { bits } else { 0 };
        let store = self.debug_store();
        match register {
            Register::Status | Register::StatusClear | Register::StatusSet => {
                let architectural =
                    matches!(self.configuration.records, PreciseRecords::Architectural(_));
                when(self.has_debug_store(), BUFFER) | when(architectural, THRESHOLD)
            }
            Register::Debug => DEBUG_OF_TRACE,
            Register::Misc => {
                when(self.configuration.branch_trace, MISC_NO_TRACE)
                    | when(store.is_some(), MISC_NO_RECORDS)
            }
            Register::Capabilities => 0b11 << 6 | 0xF << 8 | 1 << 14 | 1 << 17,
            Register::Select(_) => 1 << 34,
            Register::FixedControl => {
                let adaptive = (0..8).filter(|counter| self.fixed >> counter & 1 != 0);
                adaptive.fold(0, |bits, counter| bits | 1 << (32 + 4 * counter))
            }
            _ => u64::MAX,
        }
    }

    /// Returns the bits that a write may set.
    pub(crate) fn legal(&self, register: Register) -> u64 {
        let when = |present: bool, bits: u64| if present { bits } else { 0 };
        match (register, self.configuration.records) {
            (Register::Enable, PreciseRecords::DebugStore(records)) => {
                let loads = records.load_latency && !records.baseline;
                self.counters() | when(loads, u64::from(self.general) << 32)
            }
            (Register::Data, PreciseRecords::DebugStore(records)) => {
                let counters = u64::from(self.general) << 32 | u64::from(self.fixed) << 48;
                DATA_MEMORY
                    | DATA_GENERAL
                    | DATA_XMM
                    | DATA_BRANCHES
                    | DATA_DEPTH
                    | when(records.format >= 6, DATA_COUNTERS | counters)
                    | when(records.metrics, DATA_METRICS)
            }
            (Register::Latency, _) => 0xFFFF,
            (Register::Frontend, _) => 0x7F_FFFF,
            (Register::Base, _) => BASE_ADDRESS | BASE_SIZE,
            (Register::Index, _) => INDEX_WRITE | INDEX_FULL | INDEX_ENABLE | INDEX_THRESHOLD,
            (Register::Control(_), PreciseRecords::Architectural(records)) => {
                1 << 63 | u64::from(records.groups) << 32 | 0xFFFF_FFFF
            }
            _ => self.owned(register),
        }
    }

    /// Returns the bits of `IA32_PERF_CAPABILITIES`: PEBS_TRAP, PEBS_ARCH_REG, PEBS_REC_FMT, PEBS_BASELINE,
    /// PEBS_TIMING_INFO.
    pub(crate) fn capabilities(&self) -> u64 {
        self.debug_store().map_or(0, |records| {
            0b11 << 6
                | u64::from(records.format) << 8
                | u64::from(records.baseline) << 14
                | u64::from(records.timing) << 17
        })
    }
}
