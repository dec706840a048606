//! The registers, by their addresses.

use super::memory::{RAM, Ram};
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::precise::PreciseConfiguration;
use pmu_virt::{Read, Write};
use std::collections::HashMap;

/// The kinds of records. The processor has four general and three fixed counters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    None,
    Store { format: u8, baseline: bool, general: u64, fixed: u64, features: bool },
    Architectural { groups: u64, general: u64, fixed: u64, fragments: bool, features: bool },
}

pub(crate) struct Naive {
    pub(crate) kind: Kind,
    pub(super) trace: bool,
    version: u8,
    registers: HashMap<u32, u64>,
    pub(crate) ram: Ram,
    pub(super) due: u64,
    /// Counters whose records came due at the event that froze them, and how many such records were written later.
    pub(super) frozen: u64,
    pub(super) late: u32,
    pub(super) pmi: bool,
}
pub(super) const FREEZE: u64 = 1 << 12;
pub(super) const FROZEN: u64 = 1 << 59;
pub(super) const BUFFER: u64 = 1 << 62;
pub(super) const THRESHOLD: u64 = 1 << 54;
/// The counters: four general, three fixed.
pub(super) const COUNTERS: u64 = 0x7_0000_000F;
/// Returns a valid processor from any words.
pub(crate) fn processor(words: [u8; 4]) -> (Configuration, PreciseConfiguration, Kind, bool) {
    let [kind, version, shape, flags] = words;
    let intel = |version| Configuration::Intel(IntelConfiguration::new(version, 4, 3));
    let features = flags & 1 != 0;
    let trace = flags & 2 != 0;
    let (mut configuration, pmu, kind) = match kind % 8 {
        0 => (PreciseConfiguration::BRANCH_TRACE, intel(2 + version % 5), Kind::None),
        1 | 2 => {
            let general = u64::from(shape & 0xF);
            let fixed = u64::from(shape >> 4 & 7);
            // The groups' places in CFG_C.
            let groups = u64::from(u32::from_le_bytes([flags, shape, version, flags]))
                & 0x60E6_0378
                & if flags & 4 != 0 { u64::MAX } else { 0x6000_0000 };
            let configuration = PreciseConfiguration::ARCHITECTURAL.with_architectural(|records| {
                records.groups = groups as u32;
                (records.general, records.fixed) = (general as u8, fixed as u8);
                records.fragments = flags & 8 != 0;
                (records.load_latency, records.frontend) = (features, features);
            });
            let groups = groups << 32;
            let fragments = flags & 8 != 0;
            (
                configuration,
                intel(6),
                Kind::Architectural { groups, general, fixed, fragments, features },
            )
        }
        _ => {
            let format = shape % 7;
            let baseline = format >= 4 && flags & 4 != 0;
            let general = u64::from(flags >> 4 | 1);
            let fixed = if baseline { u64::from(shape >> 4 & 7) } else { 0 };
            let configuration =
                PreciseConfiguration::debug_store(format).with_debug_store(|records| {
                    records.baseline = baseline;
                    (records.general, records.fixed) = (general as u8, fixed as u8);
                    (records.load_latency, records.frontend) = (features, features);
                    records.timing = features;
                    records.metrics = features && baseline && format == 6;
                });
            let kind = Kind::Store { format, baseline, general, fixed, features };
            (configuration, intel(2 + version % 5), kind)
        }
    };
    configuration.branch_trace |= trace;
    (pmu, configuration, kind, trace || kind == Kind::None)
}
impl Naive {
    pub(crate) fn new(kind: Kind, trace: bool, pmu: Configuration) -> Self {
        let Configuration::Intel(intel) = pmu else { unreachable!() };
        // RESET enables the general counters.
        let registers = HashMap::from([(0x38F, 0xF)]);
        let version = intel.version;
        let ram = Ram::new();
        Self { kind, trace, version, registers, ram, due: 0, frozen: 0, late: 0, pmi: false }
    }

    pub(super) fn get(&self, address: u32) -> u64 {
        self.registers.get(&address).copied().unwrap_or(0)
    }

    pub(super) fn has_store(&self) -> bool {
        self.trace || matches!(self.kind, Kind::Store { .. })
    }

    pub(super) fn is_architectural(&self) -> bool {
        matches!(self.kind, Kind::Architectural { .. })
    }

    pub(super) fn baseline(&self) -> bool {
        matches!(self.kind, Kind::Store { baseline: true, .. })
    }

    /// Returns general and fixed counters that can write records.
    pub(super) fn can(&self) -> (u64, u64) {
        match self.kind {
            Kind::None => (0, 0),
            Kind::Store { general, fixed, .. } | Kind::Architectural { general, fixed, .. } => {
                (general & 0xF, fixed & 7)
            }
        }
    }

    /// Returns the status bits of the records.
    pub(super) fn own_status(&self) -> u64 {
        let store = if self.has_store() { BUFFER } else { 0 };
        store | if self.is_architectural() { THRESHOLD } else { 0 }
    }

    /// Returns the first address of the registers with this counter's select and counter.
    pub(super) fn unaliased(&self, address: u32) -> u32 {
        let counter = address >> 2 & 0xF;
        match address {
            0x1900..0x1910 if self.version == 6 => match address & 3 {
                0 => 0x4C1 + counter,
                1 => 0x186 + counter,
                _ => address,
            },
            0x1980..0x198C if self.version == 6 && address & 3 == 0 => 0x309 + counter,
            _ => address,
        }
    }

    pub(crate) fn read(&self, address: u32) -> Read {
        let address = self.unaliased(address);
        let value = Read::Value(self.get(address));
        match address {
            0x186..0x18A | 0x309..0x30C | 0x4C1..0x4C5 | 0x38D | 0x38E | 0x38F => value,
            0x390 => Read::Value(0),
            0x391 if self.version >= 4 => Read::Value(0),
            0x1D9 => Read::Shared { value: self.get(address), mask: 0x7FC1 },
            0x1A0 => {
                let no_trace = u64::from(!self.trace) << 11;
                let no_records = u64::from(!matches!(self.kind, Kind::Store { .. })) << 12;
                Read::Shared { value: 0x80 | no_trace | no_records, mask: 0x1880 }
            }
            0x345 => {
                let own = match self.kind {
                    Kind::Store { format, baseline, features, .. } => {
                        // PEBS_TRAP, PEBS_ARCH_REG, the format, PEBS_BASELINE, PEBS_TIMING_INFO.
                        let features = u64::from(baseline) << 14 | u64::from(features) << 17;
                        0xC0 | u64::from(format) << 8 | features
                    }
                    _ => 0,
                };
                Read::Value(1 << 13 | own)
            }
            _ if self.legal(address).is_some() => value,
            _ => Read::GeneralProtection,
        }
    }

    /// Returns the legal bits of a register that is the records' alone.
    pub(super) fn legal(&self, address: u32) -> Option<u64> {
        let (general, fixed) = self.can();
        match (address, self.kind) {
            (0x600, _) if self.has_store() => Some(u64::MAX),
            (0x3F1, Kind::Store { baseline, features, .. }) => {
                let loads = if features && !baseline { general << 32 } else { 0 };
                Some(general | fixed << 32 | loads)
            }
            (0x3F2, Kind::Store { format, baseline: true, features, .. }) => {
                // Memory, registers, XMM, branches and their number; from format 6 on counters, metrics.
                let counters = if format == 6 { 1 << 4 | general << 32 | fixed << 48 } else { 0 };
                let metrics = if format == 6 && features { 1 << 5 } else { 0 };
                Some(0x1F00_000F | counters | metrics)
            }
            (
                0x3F6,
                Kind::Store { features: true, .. } | Kind::Architectural { features: true, .. },
            ) => Some(0xFFFF),
            (
                0x3F7,
                Kind::Store { features: true, .. } | Kind::Architectural { features: true, .. },
            ) => Some(0x7F_FFFF),
            (0x3F4, Kind::Architectural { .. }) => Some(0x000F_FFFF_FFFF_F01F),
            (0x3F5, Kind::Architectural { .. }) => Some(0x07FF_FFF1_87FF_FFF0),
            (0x1903..0x1910, Kind::Architectural { groups, .. })
                if address & 3 == 3 && general >> (address >> 2 & 3) & 1 == 1 =>
            {
                Some(1 << 63 | groups | 0xFFFF_FFFF)
            }
            (0x1983..0x1990, Kind::Architectural { groups, .. })
                if address & 3 == 3 && fixed >> (address >> 2 & 3) & 1 == 1 =>
            {
                Some(1 << 63 | groups | 0xFFFF_FFFF)
            }
            _ => None,
        }
    }

    pub(crate) fn write(&mut self, address: u32, value: u64) -> Write {
        const FAULT: Write = Write::GeneralProtection;
        let address = self.unaliased(address);
        let (general, fixed) = self.can();
        let legal = match address {
            0x186..0x18A => {
                let adaptive = self.baseline() && general >> (address - 0x186) & 1 == 1;
                0xFFDF_FFFF | u64::from(adaptive) << 34
            }
            0x38D => {
                let adaptive = (0..3).filter(|n| self.baseline() && fixed >> n & 1 == 1);
                adaptive.fold(0xBBB, |legal, n| legal | 1 << (32 + 4 * n))
            }
            0x38F => COUNTERS,
            0x4C1..0x4C5 => (1 << 48) - 1,
            0x309..0x30C => {
                self.registers.insert(address, value & ((1 << 48) - 1));
                return Write::Done;
            }
            0x390 | 0x391 if self.version >= 4 || address == 0x390 => {
                let legal = if self.version >= 4 { 0x7C80_0000_0000_0000 } else { 0 };
                let legal = legal | COUNTERS | self.own_status();
                let also = if address == 0x390 { 1 << 63 | BUFFER } else { 0 };
                if value & !(legal | also) != 0 {
                    return FAULT;
                }
                let held = self.get(0x38E);
                let new = if address == 0x390 { held & !value } else { held | value & legal };
                self.registers.insert(0x38E, new);
                return Write::Done;
            }
            0x1D9 => {
                let legal = FREEZE | if self.trace { 0x7C0 } else { 0 };
                // LBR is dropped.
                if value & 0x7FC1 & !(legal | 1) != 0 {
                    return FAULT;
                }
                self.registers.insert(address, value & legal);
                return Write::Shared { mask: 0x7FC1 };
            }
            0x1A0 => {
                let Read::Shared { value: held, .. } = self.read(address) else { unreachable!() };
                let refused = (value ^ held) & 0x1800 != 0;
                return if refused { FAULT } else { Write::Shared { mask: 0x1880 } };
            }
            _ => match self.legal(address) {
                Some(legal) => legal,
                None => return FAULT,
            },
        };
        // A linear address of 57 bits repeats its sign.
        let sign = value >> 56;
        let is_linear = sign == 0 || sign == 0xFF;
        if value & !legal != 0 || address == 0x600 && !is_linear {
            return FAULT;
        }
        self.registers.insert(address, value);
        self.due &= self.enabled();
        Write::Done
    }

    /// Returns the writes by which a driver starts counters that are recorded.
    pub(super) fn driver(&self, area: u64, word: u64, shape: u8) -> Vec<(u32, u64)> {
        let adaptive = |n: u32| if self.baseline() { (word >> n & 1) << 34 } else { 0 };
        let (general, fixed) = self.can();
        let mut writes: Vec<(u32, u64)> = vec![(0x600, area), (0x390, FROZEN), (0x38F, COUNTERS)];
        let recorded = match self.kind {
            Kind::Architectural { .. } => general,
            _ => general & !(word >> 60),
        };
        writes.extend((0..4).map(|n| {
            // The event, privileges and the enable bit; the other counters interrupt.
            let event = if shape >> n & 1 == 0 { 0xC4 } else { 0xC0 };
            match recorded >> n & 1 {
                1 => (0x186 + n, 0x43_0000 | event | adaptive(n)),
                _ => (0x186 + n, 0x53_0000 | event),
            }
        }));
        // A few events before their overflow.
        let before = |n: u32| (1 << 48) - 1 - (word >> (2 * n) & 3);
        writes.extend((0..4).map(|n| (0x4C1 + n, before(n))));
        writes.extend((0..3).map(|n| (0x309 + n, before(4 + n))));
        let all = (0..3).filter(|n| self.baseline() && fixed >> n & 1 == 1);
        let asked: u64 = all.map(|n| (word >> (4 + n) & 1) << (32 + 4 * n)).sum();
        writes.extend([(0x38D, 0x333 | asked), (0x3F1, (general | fixed << 32) & !(word >> 60))]);
        let data = word.rotate_left(17) & 0x0006_0005_0300_003F;
        writes.push((0x3F2, data & self.legal(0x3F2).unwrap_or(0)));
        let groups = word.rotate_left(29);
        for address in (0x1903..0x1910).chain(0x1983..0x1990).step_by(4) {
            let legal = self.legal(address).unwrap_or(0);
            writes.push((address, groups.rotate_left(address) & legal | 1 << 63));
        }
        // Also beyond the buffer, of which each page has 256 units.
        let threshold = (2 * u64::from(shape)) << 36;
        writes.extend([(0x3F4, RAM + 0x1000), (0x3F5, 1 << 32 | threshold)]);
        writes.push((0x1D9, if shape & 7 == 7 { FREEZE } else { 0 }));
        writes
    }

    pub(super) fn control(&self, bit: u32) -> u64 {
        self.get(if bit < 32 { 0x1903 + 4 * bit } else { 0x1983 + 4 * (bit - 32) })
    }

    pub(super) fn enabled(&self) -> u64 {
        let (general, fixed) = self.can();
        match self.kind {
            Kind::None => 0,
            Kind::Store { .. } => self.get(0x3F1) & (general | fixed << 32),
            Kind::Architectural { .. } if self.get(0x3F5) >> 32 & 1 == 0 => 0,
            Kind::Architectural { .. } => {
                bits(COUNTERS).filter(|bit| self.control(*bit) >> 63 == 1).map(|bit| 1 << bit).sum()
            }
        }
    }

    pub(super) fn runs(&self, bit: u32) -> bool {
        let frozen = self.version >= 4 && self.get(0x38E) & FROZEN != 0;
        let enabled = if bit < 32 {
            let select = self.get(0x186 + bit);
            select >> 22 & 1 == 1 && select >> 16 & 3 != 0
        } else {
            self.get(0x38D) >> (4 * (bit - 32)) & 3 != 0
        };
        !frozen && enabled && self.get(0x38F) >> bit & 1 == 1
    }

    pub(super) fn overflowed(&mut self, counters: u64) {
        self.due |= counters & self.enabled();
    }

    pub(super) fn counter_address(bit: u32) -> u32 {
        if bit < 32 { 0x4C1 + bit } else { 0x309 + (bit - 32) }
    }

    pub(super) fn counter(&self, bit: u32) -> u64 {
        self.get(Self::counter_address(bit))
    }

    pub(super) fn load(&mut self, bit: u32, value: u64) {
        self.registers.insert(Self::counter_address(bit), value & ((1 << 48) - 1));
    }

    pub(super) fn set_index(&mut self, index: u64) {
        self.registers.insert(0x3F5, index);
    }

    pub(super) fn set_status(&mut self, status: u64) {
        self.registers.insert(0x38E, self.get(0x38E) | status);
    }

    pub(super) fn interrupt(&mut self, status: u64) {
        self.set_status(status);
        self.pmi = true;
        if self.get(0x1D9) & FREEZE != 0 {
            if self.version >= 4 {
                self.registers.insert(0x38E, self.get(0x38E) | FROZEN);
            } else {
                self.registers.insert(0x38F, 0);
            }
        }
    }
}

/// Returns the numbers of the bits that are 1.
pub(crate) fn bits(mask: u64) -> impl Iterator<Item = u32> {
    (0..64).filter(move |bit| mask >> bit & 1 == 1)
}
