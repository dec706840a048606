//! The naive model's registers, by the manuals' tables.

use super::*;
use pmu_tests::field;

/// Fields of a select that only some processors have, of the data file. "Layout of IA32_PERFEVTSELx MSRs".
pub(crate) const SELECT_FIELDS: [(IntelFeature, &str); 6] = [
    (IntelFeature::AnyThread, "ANY_THREAD"),
    (IntelFeature::Transactional, "IN_TX"),
    (IntelFeature::Transactional, "IN_TXCP"),
    (IntelFeature::UnitMask2, "UMASK2"),
    (IntelFeature::Equal, "EQ"),
    (IntelFeature::RdpmcUserDisable, "RDPMC_USR_DISABLE"),
];

/// The same of fixed counter 0 in IA32_FIXED_CTR_CTRL.
pub(crate) const FIXED_FIELDS: [(IntelFeature, &str); 2] = [
    (IntelFeature::AnyThread, "ANY_THREAD0"),
    (IntelFeature::RdpmcUserDisable, "RDPMC_USR_DISABLE0"),
];

impl Naive {
    pub(crate) fn new(configuration: Configuration) -> Self {
        let mut naive = Self { configuration, registers: HashMap::new(), pending: false };
        naive.reset();
        naive
    }

    pub(crate) fn reset(&mut self) {
        self.registers.clear();
        self.pending = false;
        if self.has_global() {
            let all: u64 = (0..8).filter(|n| self.exists(*n)).map(|n| 1 << n).sum();
            self.registers.insert(self.at(Kind::Control), all);
        }
    }

    pub(crate) fn intel(&self) -> Option<IntelConfiguration> {
        match self.configuration {
            Configuration::Intel(intel) => Some(intel),
            _ => None,
        }
    }

    pub(crate) fn amd(&self) -> Option<AmdCounters> {
        match self.configuration {
            Configuration::Amd(amd) => Some(amd.counters),
            _ => None,
        }
    }

    pub(crate) fn hidden(&self) -> Option<HiddenConfiguration> {
        match self.configuration {
            Configuration::Hidden(hidden) => Some(hidden),
            _ => None,
        }
    }

    pub(crate) fn version(&self) -> u8 {
        self.intel().map_or(0, |intel| intel.version)
    }

    pub(crate) fn has_global(&self) -> bool {
        self.version() >= 2 || matches!(self.amd(), Some(AmdCounters::PerfMonV2 { .. }))
    }

    /// General counters from 0, fixed ones from 8.
    pub(crate) fn exists(&self, counter: u32) -> bool {
        match self.configuration {
            Configuration::Intel(intel) if counter < 8 => intel.general >> counter & 1 == 1,
            Configuration::Intel(intel) if counter < 16 => intel.fixed >> (counter - 8) & 1 == 1,
            Configuration::Amd(amd) => {
                counter
                    < match amd.counters {
                        AmdCounters::Legacy => 4,
                        AmdCounters::CoreExtension => 6,
                        AmdCounters::PerfMonV2 { counters } => counters.into(),
                    }
            }
            _ => false,
        }
    }

    pub(crate) fn width(&self, counter: u32) -> u8 {
        match self.intel() {
            Some(intel) if counter < 8 => intel.general_width,
            Some(intel) => intel.fixed_width,
            None => 48,
        }
    }

    /// Returns the address under which a register is kept.
    pub(crate) fn at(&self, kind: Kind) -> u32 {
        let amd = self.configuration.vendor() == Vendor::Amd;
        match kind {
            Kind::Select(n) => 0x1000 + n,
            Kind::Counter(n) => 0x2000 + n,
            Kind::FixedControl => 0x38D,
            Kind::Control => {
                if amd {
                    0xC000_0301
                } else {
                    0x38F
                }
            }
            Kind::Status => {
                if amd {
                    0xC000_0300
                } else {
                    0x38E
                }
            }
            Kind::Debug => 0x1D9,
            _ => unreachable!("not kept"),
        }
    }

    pub(crate) fn get(&self, kind: Kind) -> u64 {
        self.registers.get(&self.at(kind)).copied().unwrap_or(0)
    }

    pub(crate) fn put(&mut self, kind: Kind, value: u64) {
        self.registers.insert(self.at(kind), value);
    }

    /// SDM vol. 4 and APM vol. 2, the tables of registers.
    pub(crate) fn kind(&self, address: u32) -> Kind {
        let counter = |n: u32, kind: fn(u32) -> Kind| {
            if self.exists(n) { kind(n) } else { Kind::Absent }
        };
        let from = |version: u8, kind: Kind| {
            if self.version() >= version { kind } else { Kind::Absent }
        };
        match (self.configuration.vendor(), address) {
            (Vendor::Intel, 0xC1..0xC9) => counter(address - 0xC1, Kind::Counter),
            (Vendor::Intel, 0x4C1..0x4C9) => {
                if self.intel().is_some_and(|intel| intel.has(IntelFeature::FullWidthWrites)) {
                    counter(address - 0x4C1, Kind::Counter)
                } else {
                    Kind::Absent
                }
            }
            (Vendor::Intel, 0x186..0x18E) => counter(address - 0x186, Kind::Select),
            (Vendor::Intel, 0x1A0) => Kind::Misc,
            (Vendor::Intel, 0x1D9) => Kind::Debug,
            (Vendor::Intel, 0x309..0x311) => counter(address - 0x309 + 8, Kind::Counter),
            (Vendor::Intel, 0x345) => from(1, Kind::Capabilities),
            (Vendor::Intel, 0x38D) => from(2, Kind::FixedControl),
            (Vendor::Intel, 0x38E) => from(2, Kind::Status),
            (Vendor::Intel, 0x38F) => from(2, Kind::Control),
            (Vendor::Intel, 0x390) => from(2, Kind::Clear),
            (Vendor::Intel, 0x391) => from(4, Kind::Set),
            (Vendor::Intel, 0x392) => from(4, Kind::InUse),
            // Version 6: CTR, CFG_A, CFG_B and CFG_C of each general counter, then CTR, none, CFG_B and CFG_C
            // of each fixed one. CFG_B is for reloading and CFG_C for PEBS, of which there is neither.
            (Vendor::Intel, 0x1900..0x19C0) if self.version() >= 6 => {
                let (n, register) = ((address & 0x7F) / 4, address % 4);
                match (address, register) {
                    (0x1900..0x1920, 0) => counter(n, Kind::Counter),
                    (0x1900..0x1920, 1) => counter(n, Kind::Select),
                    (0x1980..0x19A0, 0) => counter(n + 8, Kind::Counter),
                    _ => Kind::Absent,
                }
            }
            // Off-core response, LBRs, PERF_METRICS, PEBS, the DS area, and version 6's registers.
            (
                Vendor::Intel,
                0x40..0x48
                | 0x60..0x68
                | 0x1A6..0x1A8
                | 0x1C8..0x1CA
                | 0x329
                | 0x3F1..0x3F8
                | 0x600
                | 0x680..0x6A0
                | 0x6C0..0x6E0
                | 0xDC0..0xDE0
                | 0x1200..0x1220
                | 0x1309..0x1311
                | 0x14C1..0x14C9
                | 0x14CE..0x14D0
                | 0x1500..0x1520
                | 0x1600..0x1620
                | 0x1900..0x19C0,
            ) => Kind::Absent,
            (Vendor::Amd, 0xC001_0000..0xC001_0004) => counter(address - 0xC001_0000, Kind::Select),
            (Vendor::Amd, 0xC001_0004..0xC001_0008) => {
                counter(address - 0xC001_0004, Kind::Counter)
            }
            (Vendor::Amd, 0xC001_0200..0xC001_0210) => {
                let n = (address - 0xC001_0200) / 2;
                match self.amd() {
                    Some(AmdCounters::Legacy) => Kind::Absent,
                    _ if address & 1 == 0 => counter(n, Kind::Select),
                    _ => counter(n, Kind::Counter),
                }
            }
            (Vendor::Amd, 0xC000_0300..0xC000_0304) if !self.has_global() => Kind::Absent,
            (Vendor::Amd, 0xC000_0300) => Kind::Status,
            (Vendor::Amd, 0xC000_0301) => Kind::Control,
            (Vendor::Amd, 0xC000_0302) => Kind::Clear,
            (Vendor::Amd, 0xC000_0303) => Kind::Set,
            // Instructions retired, LBRs, the counters of caches and memory, sampled branches, IBS.
            (
                Vendor::Amd,
                0xC000_00E9
                | 0xC000_010E..0xC000_0110
                | 0xC001_0230..0xC001_0250
                | 0xC001_0300..0xC001_0320
                | 0xC001_0800..0xC001_0820
                | 0xC001_1030..0xC001_1040,
            ) => Kind::Absent,
            _ => Kind::Foreign,
        }
    }

    /// Registers that read 0 and drop writes without a PMU: AMD's legacy ones, and on KVM P6's four.
    pub(crate) fn hides_as_zero(&self, address: u32) -> bool {
        self.hidden().is_some_and(|hidden| match hidden.vendor {
            Vendor::Amd => (0xC001_0000..0xC001_0008).contains(&address),
            Vendor::Intel => {
                hidden.registers == HiddenRegisters::Kvm
                    && [0xC1, 0xC2, 0x186, 0x187].contains(&address)
            }
        })
    }

    pub(crate) fn read(&self, address: u32) -> Read {
        if self.hides_as_zero(address) {
            return Read::Value(0);
        }
        let misc = 1 << 7 | 1 << 11 | 1 << 12;
        match self.kind(address) {
            Kind::Absent => Read::GeneralProtection,
            Kind::Foreign => Read::Unhandled,
            Kind::Clear | Kind::Set => Read::Value(0),
            Kind::Capabilities => Read::Value(
                u64::from(self.intel().unwrap().has(IntelFeature::FullWidthWrites)) << 13,
            ),
            Kind::Misc if self.version() == 0 => {
                Read::Shared { value: misc & !(1 << 7), mask: misc }
            }
            Kind::Misc => Read::Shared { value: misc, mask: misc },
            Kind::Debug => Read::Shared { value: self.get(Kind::Debug), mask: 0x7FC1 },
            Kind::InUse => {
                let mut value = 0;
                for n in 0..8 {
                    let select = self.get(Kind::Select(n));
                    let nibble = self.get(Kind::FixedControl) >> (4 * n) & 15;
                    value |= u64::from(select & 0xFF != 0) << n;
                    value |= u64::from(nibble & 3 != 0) << (32 + n);
                    value |= u64::from(select >> 20 & 1 != 0 || nibble & 8 != 0) << 63;
                }
                Read::Value(value)
            }
            kind => Read::Value(self.get(kind)),
        }
    }

    /// The bits that every counter has in the global registers.
    pub(crate) fn counters(&self) -> u64 {
        (0..16).filter(|n| self.exists(*n)).map(|n| 1 << if n < 8 { n } else { n + 24 }).sum()
    }

    /// The answer, and the illegal bits.
    pub(crate) fn write(&mut self, address: u32, value: u64) -> (Write, u64) {
        let amd = self.configuration.vendor() == Vendor::Amd;
        if self.hides_as_zero(address) {
            return (Write::Done, u64::MAX);
        }
        let kind = self.kind(address);
        // Bits that RESET and SET have from version 4 on beside the counters', whether or not the processor has the
        // feature: Intel PT, LBRs, freezing, SGX, uncore, DS.
        let features: u64 = match self.version() {
            4.. => [55, 58, 59, 60, 61, 62].into_iter().map(|bit| 1u64 << bit).sum(),
            _ => 0,
        };
        let (legal, droppable) = match kind {
            Kind::Foreign => return (Write::Unhandled, 0),
            Kind::Status if amd => return (Write::Done, u64::MAX),
            Kind::Absent | Kind::Status | Kind::InUse | Kind::Capabilities => {
                return (Write::GeneralProtection, u64::MAX);
            }
            Kind::Misc => {
                let Read::Shared { value: old, mask } = self.read(address) else { unreachable!() };
                let changed = (old ^ value) & mask;
                let faults = changed & !(1 << 7) != 0;
                let shared = Write::Shared { mask };
                return (if faults { Write::GeneralProtection } else { shared }, changed);
            }
            Kind::Debug => {
                let legal = if self.version() >= 2 { 1 << 12 } else { 0 };
                let illegal = value & 0x7FC1 & !legal;
                if illegal > 1 {
                    return (Write::GeneralProtection, illegal);
                }
                self.put(Kind::Debug, value & legal);
                return (Write::Shared { mask: 0x7FC1 }, illegal);
            }
            Kind::Counter(n) if !amd && address < 0x100 => {
                let extended = value as u32 as i32 as i64 as u64;
                let stored = extended & bits(self.width(n));
                self.put(kind, stored);
                let sensible = [0, extended >> 32, stored >> 32].contains(&(value >> 32));
                let lost = (value ^ extended) >> 32 << 32;
                return (Write::Done, if sensible { 0 } else { lost });
            }
            // Bits above the width: those of fixed counters are dropped, at both addresses.
            Kind::Counter(n) => (bits(self.width(n)), n >= 8 || amd),
            Kind::Select(_) if amd => {
                let Configuration::Amd(amd) = self.configuration else { unreachable!() };
                (if amd.guest_host { 0x30F_FFD7_FFFF } else { 0xF_FFD7_FFFF }, true)
            }
            Kind::Select(n) => {
                let intel = self.intel().unwrap();
                // IN_TXCP: IA32_PERFEVTSEL2 alone.
                let fields = SELECT_FIELDS.into_iter().filter(|(feature, name)| {
                    intel.has(*feature) && (n == 2 || *name != "IN_TXCP")
                });
                let more: u64 = fields.map(|(_, name)| field("IA32_PERFEVTSELx", name)).sum();
                (0xFFDF_FFFF | more, false)
            }
            Kind::FixedControl => {
                let intel = self.intel().unwrap();
                let fields = FIXED_FIELDS.into_iter().filter(|(feature, _)| intel.has(*feature));
                let more: u64 = fields.map(|(_, name)| field("IA32_FIXED_CTR_CTRL", name)).sum();
                let counters = (0..8).filter(|n| self.exists(8 + n));
                (counters.map(|n| (0b1011 | more) << (4 * n)).sum(), false)
            }
            Kind::Control => (self.counters(), amd),
            Kind::Clear if amd => (self.counters(), true),
            Kind::Clear => {
                let legal = self.counters() | features | 1 << 63;
                (legal, value & !legal & !(1 << 62) == 0)
            }
            Kind::Set => (self.counters() | features, amd),
        };
        let illegal = value & !legal;
        if illegal != 0 && !droppable {
            return (Write::GeneralProtection, illegal);
        }
        let status = self.get(Kind::Status);
        match kind {
            Kind::Clear => self.put(Kind::Status, status & !value),
            Kind::Set => self.put(Kind::Status, status | value & legal),
            _ => self.put(kind, value & legal),
        }
        (Write::Done, illegal)
    }

    pub(crate) fn read_counter(&self, ecx: u32, mode: Mode) -> Read {
        // Outside protected mode there are no privilege levels.
        let user = mode.protected && mode.cpl != 0;
        if let Some(hidden) = self.hidden() {
            let zero = hidden.rdpmc == HiddenRdpmc::Zero && ecx < 4 && (!user || mode.pce);
            return if zero { Read::Value(0) } else { Read::GeneralProtection };
        }
        let counter = match (self.configuration.vendor(), ecx) {
            (_, 0..8) => Some(ecx),
            (Vendor::Intel, 0x4000_0000..0x4000_0008) => Some(ecx - 0x4000_0000 + 8),
            _ => None,
        };
        match counter.filter(|n| self.exists(*n)) {
            Some(n) if !user || mode.pce => {
                let hidden = match n.checked_sub(8) {
                    None => self.get(Kind::Select(n)) >> 37 & 1 == 1,
                    Some(n) => self.get(Kind::FixedControl) >> (33 + 4 * n) & 1 == 1,
                };
                Read::Value(if hidden && user { 0 } else { self.get(Kind::Counter(n)) })
            }
            _ => Read::GeneralProtection,
        }
    }
}
