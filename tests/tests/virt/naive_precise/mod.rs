//! A naive model of precise records and the branch trace store, and random programs with the same result on both. It
//! keeps whole registers in a map by their addresses, puts each field of a record at the offset that the manual's table
//! has, and stores and loads memory byte by byte: SDM vol. 3B, "Processor Event Based Sampling (PEBS)", "Architectural
//! PEBS" and "Branch Trace Store (BTS)".
//!
//! Shared with the fuzz target, which feeds the same programs from its input.

mod layout;

use pmu_virt::{
    Configuration, FedBranch, FedBranchKind, FedEvents, FedRecord, FedRegisters, FedVectors,
    GuestFacility, GuestFault, GuestMemory, IntelConfiguration, PreciseConfiguration, Privilege,
    Read, Recorded, VirtualPmu, VirtualPrecise, Write,
};
use std::collections::HashMap;

/// One step of a program: four words, any of which are valid.
pub(crate) type Step = (u8, u8, u32, u64);

/// The kinds of records. The processor has four general and three fixed counters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    None,
    Store { format: u8, baseline: bool, general: u64, fixed: u64, features: bool },
    Architectural { groups: u64, general: u64, fixed: u64, fragments: bool },
}

pub(crate) struct Naive {
    pub(crate) kind: Kind,
    trace: bool,
    version: u8,
    registers: HashMap<u32, u64>,
    pub(crate) ram: Ram,
    due: u64,
    pmi: bool,
}

/// Memory that is at the same linear and physical addresses.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ram(pub(crate) Vec<u8>);

/// Address and length of the memory.
pub(crate) const RAM: u64 = 0x1_0000;
const LENGTH: usize = 0x3000;

impl Ram {
    pub(crate) fn new() -> Self {
        Self(vec![0; LENGTH])
    }

    fn byte(&mut self, address: u64) -> Result<&mut u8, GuestFault> {
        let place = address.checked_sub(RAM).and_then(|place| usize::try_from(place).ok());
        place.and_then(|place| self.0.get_mut(place)).ok_or(GuestFault { address })
    }

    fn store(&mut self, address: u64, bytes: &[u8]) -> Result<(), GuestFault> {
        (address..).zip(bytes).try_for_each(|(at, byte)| Ok(*self.byte(at)? = *byte))
    }

    pub(crate) fn put(&mut self, address: u64, word: u64) {
        self.store(address, &word.to_le_bytes()).unwrap();
    }

    pub(crate) fn word(&mut self, address: u64) -> Result<u64, GuestFault> {
        let mut word = 0;
        for byte in 0..8 {
            // No access beyond the last address.
            let at = address.checked_add(byte).ok_or(GuestFault { address })?;
            word |= u64::from(*self.byte(at)?) << (8 * byte);
        }
        Ok(word)
    }
}

impl GuestMemory for Ram {
    fn read(&mut self, linear: u64, bytes: &mut [u8]) -> Result<(), GuestFault> {
        (linear..).zip(bytes).try_for_each(|(at, byte)| Ok(*byte = *self.byte(at)?))
    }

    fn write(&mut self, linear: u64, bytes: &[u8]) -> Result<(), GuestFault> {
        self.store(linear, bytes)
    }

    fn write_physical(&mut self, physical: u64, bytes: &[u8]) -> Result<(), GuestFault> {
        self.store(physical, bytes)
    }
}

const FREEZE: u64 = 1 << 12;
const FROZEN: u64 = 1 << 59;
const BUFFER: u64 = 1 << 62;
const THRESHOLD: u64 = 1 << 54;
/// The counters: four general, three fixed.
const COUNTERS: u64 = 0x7_0000_000F;

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
            });
            let groups = groups << 32;
            let fragments = flags & 8 != 0;
            (configuration, intel(6), Kind::Architectural { groups, general, fixed, fragments })
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
        Self { kind, trace, version, registers, ram: Ram::new(), due: 0, pmi: false }
    }

    fn get(&self, address: u32) -> u64 {
        self.registers.get(&address).copied().unwrap_or(0)
    }

    fn has_store(&self) -> bool {
        self.trace || matches!(self.kind, Kind::Store { .. })
    }

    fn is_architectural(&self) -> bool {
        matches!(self.kind, Kind::Architectural { .. })
    }

    fn baseline(&self) -> bool {
        matches!(self.kind, Kind::Store { baseline: true, .. })
    }

    /// Returns general and fixed counters that can write records.
    fn can(&self) -> (u64, u64) {
        match self.kind {
            Kind::None => (0, 0),
            Kind::Store { general, fixed, .. } | Kind::Architectural { general, fixed, .. } => {
                (general & 0xF, fixed & 7)
            }
        }
    }

    /// Returns the status bits of the records.
    fn own_status(&self) -> u64 {
        let store = if self.has_store() { BUFFER } else { 0 };
        store | if self.is_architectural() { THRESHOLD } else { 0 }
    }

    /// Returns the first address of the registers with this counter's select and counter.
    fn unaliased(&self, address: u32) -> u32 {
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
    fn legal(&self, address: u32) -> Option<u64> {
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
            (0x3F6, Kind::Store { features: true, .. }) => Some(0xFFFF),
            (0x3F7, Kind::Store { features: true, .. }) => Some(0x7F_FFFF),
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
    fn driver(&self, area: u64, word: u64, shape: u8) -> Vec<(u32, u64)> {
        let adaptive = |n: u32| if self.baseline() { (word >> n & 1) << 34 } else { 0 };
        let (general, fixed) = self.can();
        let mut writes: Vec<(u32, u64)> = vec![(0x600, area), (0x390, FROZEN), (0x38F, COUNTERS)];
        writes.extend((0..4).filter(|n| general >> n & 1 == 1).map(|n| {
            // The event, privileges and the enable bit.
            (0x186 + n, 0x43_00C4 | adaptive(n))
        }));
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
        let threshold = u64::from(shape) << 36;
        writes.extend([(0x3F4, RAM + 0x1000), (0x3F5, 1 << 32 | threshold)]);
        writes.push((0x1D9, if shape & 7 == 7 { FREEZE } else { 0 }));
        writes
    }

    fn control(&self, bit: u32) -> u64 {
        self.get(if bit < 32 { 0x1903 + 4 * bit } else { 0x1983 + 4 * (bit - 32) })
    }

    fn enabled(&self) -> u64 {
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

    fn runs(&self, bit: u32) -> bool {
        let frozen = self.version >= 4 && self.get(0x38E) & FROZEN != 0;
        let enabled = if bit < 32 {
            let select = self.get(0x186 + bit);
            select >> 22 & 1 == 1 && select >> 16 & 3 != 0
        } else {
            self.get(0x38D) >> (4 * (bit - 32)) & 3 != 0
        };
        !frozen && enabled && self.get(0x38F) >> bit & 1 == 1
    }

    fn overflowed(&mut self, counters: u64) {
        self.due |= counters & self.enabled();
    }

    fn counter_address(bit: u32) -> u32 {
        if bit < 32 { 0x4C1 + bit } else { 0x309 + (bit - 32) }
    }

    fn counter(&self, bit: u32) -> u64 {
        self.get(Self::counter_address(bit))
    }

    fn load(&mut self, bit: u32, value: u64) {
        self.registers.insert(Self::counter_address(bit), value & ((1 << 48) - 1));
    }

    fn interrupt(&mut self, status: u64) {
        self.registers.insert(0x38E, self.get(0x38E) | status);
        self.pmi = true;
        if self.get(0x1D9) & FREEZE != 0 {
            if self.version >= 4 {
                self.registers.insert(0x38E, self.get(0x38E) | FROZEN);
            } else {
                self.registers.insert(0x38F, 0);
            }
        }
    }

    fn record(&mut self, counters: u64, collided: bool, fed: &FedRecord<'_>) -> Recorded {
        let mut recorded = Recorded::default();
        let ready = self.due & counters & self.enabled();
        let ready: Vec<u32> = bits(ready).filter(|bit| self.runs(*bit)).collect();
        let each: Vec<Vec<u32>> = match collided {
            true if ready.is_empty() => vec![],
            true => vec![ready],
            false => ready.into_iter().map(|bit| vec![bit]).collect(),
        };
        for counters in each {
            self.due &= !counters.iter().map(|bit| 1u64 << bit).sum::<u64>();
            let outcome = match self.kind {
                Kind::Architectural { .. } => self.physical(&counters, fed, &mut recorded),
                _ => self.linear(&counters, fed, &mut recorded),
            };
            match outcome {
                Ok(true) => {
                    let architectural = self.is_architectural();
                    self.interrupt(if architectural { THRESHOLD } else { BUFFER });
                    recorded.pmi = true;
                }
                Ok(false) => {}
                Err(fault) => {
                    recorded.fault = Some(fault);
                    break;
                }
            }
        }
        recorded
    }

    /// Writes a record to the Debug Store.
    fn linear(
        &mut self,
        counters: &[u32],
        fed: &FedRecord<'_>,
        recorded: &mut Recorded,
    ) -> Result<bool, GuestFault> {
        let Kind::Store { format, .. } = self.kind else { unreachable!() };
        let area = self.get(0x600);
        let mut word = |offset: u64| self.ram.word(area.wrapping_add(offset));
        let (base, index) = (word(0x20)?, word(0x28)?);
        let (maximum, threshold) = (word(0x30)?, word(0x38)?);
        let bytes = self.record_bytes(counters, fed);
        let end = u128::from(index) + bytes.len() as u128;
        let mut outcome = Ok(());
        let mut now = index;
        if index < base || end > u128::from(maximum) {
            recorded.lost += 1;
        } else {
            outcome = self.ram.store(index, &bytes);
            if outcome.is_ok() {
                outcome = self.ram.store(area.wrapping_add(0x28), &(end as u64).to_le_bytes());
            }
            if outcome.is_ok() {
                recorded.written += 1;
                now = end as u64;
            }
        }
        for bit in counters {
            let slot = match (bit, format) {
                (..32, _) => *bit,
                (_, 5 | 6) => *bit,
                _ => 8 + bit - 32,
            };
            match self.ram.word(area.wrapping_add(0x40 + 8 * u64::from(slot))) {
                Ok(reset) => self.load(*bit, reset),
                Err(fault) => outcome = outcome.and(Err(fault)),
            }
        }
        outcome.map(|()| now >= threshold)
    }

    /// Writes a record of architectural PEBS.
    fn physical(
        &mut self,
        counters: &[u32],
        fed: &FedRecord<'_>,
        recorded: &mut Recorded,
    ) -> Result<bool, GuestFault> {
        let base = self.get(0x3F4);
        let index = self.get(0x3F5);
        let bytes = self.record_bytes(counters, fed);
        let size = 4096u64 << (base & 0x1F);
        let offset = index & 0x7FF_FFF0;
        let end = offset + bytes.len() as u64;
        let fits = index >> 31 & 1 == 0 && end <= size && end <= 0x7FF_FFF0;
        let stored = if fits { self.ram.store((base & !0xFFF) + offset, &bytes) } else { Ok(()) };
        for bit in counters {
            let reload = self.control(*bit) & 0xFFFF_FFFF;
            if reload != 0 {
                self.load(*bit, reload + 0xFFFF_FFFF_0000_0000);
            }
        }
        stored?;
        let index = if fits { index - offset + end } else { index | 1 << 31 };
        self.registers.insert(0x3F5, index);
        *if fits { &mut recorded.written } else { &mut recorded.lost } += 1;
        Ok(!fits || end >= (index >> 36) * 16)
    }

    fn branch(&mut self, branch: &FedBranch) -> Recorded {
        let mut recorded = Recorded::default();
        let debug = self.get(0x1D9);
        let off = if branch.privilege == Privilege::Kernel { 1 << 9 } else { 1 << 10 };
        if debug & 0xC0 != 0xC0 || debug & off != 0 {
            return recorded;
        }
        match self.trace_branch(debug >> 8 & 1 == 1, branch, &mut recorded) {
            Ok(true) => {
                self.interrupt(BUFFER);
                recorded.pmi = true;
            }
            Ok(false) => {}
            Err(fault) => recorded.fault = Some(fault),
        }
        recorded
    }

    fn trace_branch(
        &mut self,
        interrupts: bool,
        branch: &FedBranch,
        recorded: &mut Recorded,
    ) -> Result<bool, GuestFault> {
        let area = self.get(0x600);
        let mut word = |offset: u64| self.ram.word(area.wrapping_add(offset));
        let (base, mut index) = (word(0)?, word(8)?);
        let (maximum, threshold) = (word(0x10)?, word(0x18)?);
        let fits = |index: u64| u128::from(index) + 24 <= u128::from(maximum);
        if !fits(index) && !interrupts && index >= base {
            index = base;
        }
        if index < base || !fits(index) {
            recorded.lost += 1;
            return Ok(interrupts && index >= threshold);
        }
        for (word, value) in
            [branch.from, branch.to, u64::from(!branch.mispredicted) << 4].into_iter().enumerate()
        {
            self.ram.store(index + 8 * word as u64, &value.to_le_bytes())?;
        }
        self.ram.store(area.wrapping_add(8), &(index + 24).to_le_bytes())?;
        recorded.written += 1;
        Ok(interrupts && index + 24 >= threshold)
    }
}

/// Returns the numbers of the bits that are 1.
pub(crate) fn bits(mask: u64) -> impl Iterator<Item = u32> {
    (0..64).filter(move |bit| mask >> bit & 1 == 1)
}

fn address(choice: u32) -> u32 {
    const BASES: [(u32, u32); 17] = [
        (0x3F1, 1),
        (0x3F2, 1),
        (0x3F4, 2),
        (0x3F1, 7),
        (0x600, 1),
        (0x600, 1),
        (0x186, 4),
        (0x38D, 1),
        (0x38F, 1),
        (0x38E, 4),
        (0x1D9, 1),
        (0x345, 1),
        (0x1A0, 1),
        (0x309, 3),
        (0x4C1, 4),
        (0x1900, 16),
        (0x1980, 13),
    ];
    let (base, count) = BASES[choice as usize % BASES.len()];
    let found = base + (choice >> 8) % count;
    // Not of these: the PMU answers it, but for nothing that the records need.
    if found == 0x392 { 0x38F } else { found }
}

fn value(address: u32, shape: u8, word: u64) -> u64 {
    match (shape % 8, address) {
        (0, _) => word,
        (1, _) => 1 << (word & 63),
        // The area: in the memory, rarely at its end.
        (_, 0x600) => RAM + (word & 0xF8) + if word >> 60 == 0 { 0x2F00 } else { 0 },
        (_, 0x3F4) => RAM + 0x1000 + (word & 1),
        (_, 0x3F5) => (word & 0x1F) << 4 | 1 << 32 | (word >> 8 & 0x7F) << 36,
        (_, 0x186..0x18A) => word & 0x57_FFFF | 0x43_0000 | (word >> 63) << 34,
        (_, 0x38D) => word & 0xBBB | (word >> 32 & 0x111) << 32,
        (_, 0x38F | 0x3F1) => word & COUNTERS | word >> 56 & 1,
        (_, 0x3F2) => word & 0x0007_000F_1F00_003F,
        (2..=4, 0x1900..0x1990) => word & 0x60E6_0378_FFFF_FFFF | 1 << 63,
        (_, 0x1D9) => word & 0x17C0 | 0xC0 & word >> 32,
        (_, 0x390 | 0x391) => word & (COUNTERS | FROZEN | BUFFER | THRESHOLD),
        (_, 0x1A0) => word & 0x80 | 0x80 | (shape as u64 & 0x18) << 8,
        _ => word & 0xFFFF,
    }
}

/// Returns a word for the guest's memory: an address in it, or anything.
fn scribble(shape: u8, word: u64) -> u64 {
    match shape % 4 {
        0 => word,
        1 => RAM + word % 0x3000,
        2 => RAM + 0x1000 + (word & 0x7F8),
        _ => RAM + 0x2000,
    }
}

/// Runs a program on both models, and compares answers, memory, and after each step the state. With `saved`, the
/// records are saved and restored between any two steps.
pub(crate) fn run(words: [u8; 4], program: &[Step], saved: bool) {
    let (configuration, own, kind, trace) = processor(words);
    let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE).unwrap();
    let mut precise = VirtualPrecise::new(&configuration, own).unwrap();
    let mut ram = Ram::new();
    let mut naive = Naive::new(kind, trace, configuration);
    let vectors = layout::vectors();
    for (number, (choice, shape, place, word)) in program.iter().enumerate() {
        let told = || format!("{words:?} step {number}: {:?}", program[number]);
        match choice % 8 {
            0..=2 => {
                let address = address(*place);
                let value = value(address, *shape, *word);
                let written = pmu.write_beside(&mut precise, address, value);
                assert_eq!(written.answer, naive.write(address, value), "{} {address:#X}", told());
            }
            3 => {
                // The guest's memory: the area's words most of the time.
                let area = naive.get(0x600).clamp(RAM, RAM + 0x2F00);
                let at = area + 8 * u64::from(*place % 28);
                let value = scribble(*shape, *word);
                naive.ram.put(at, value);
                ram.put(at, value);
            }
            4 => {
                // What a driver does: area, buffer, and counters that are recorded.
                let area = RAM + (word & 0x78);
                let base = RAM + 0x1000 + (word >> 8 & 0x70);
                let words = [base, base, base + 0x1800, base + (word >> 32 & 0xFFF)];
                for (offset, word) in [0x20, 0x28, 0x30, 0x38].into_iter().zip(words) {
                    for at in [area + offset, area + offset - 0x20] {
                        naive.ram.put(at, word);
                        ram.put(at, word);
                    }
                }
                for (address, value) in naive.driver(area, *word, *shape) {
                    let written = pmu.write_beside(&mut precise, address, value);
                    assert_eq!(written.answer, naive.write(address, value), "{}", told());
                }
            }
            5 | 6 => {
                let counters = word & COUNTERS | u64::from(*shape & 0xF);
                precise.overflowed(counters);
                naive.overflowed(counters);
                let vectors = (place & 1 == 1).then_some(&vectors);
                let fed = layout::fed(*word, vectors);
                let counters = if shape >> 6 == 0 { COUNTERS } else { counters };
                let collided = shape >> 5 & 1 == 1;
                let recorded = if collided {
                    precise.record_collided(&mut pmu, counters, &fed, &mut ram)
                } else {
                    precise.record(&mut pmu, counters, &fed, &mut ram)
                };
                assert_eq!(recorded, naive.record(counters, collided, &fed), "{}", told());
            }
            _ => {
                let privilege = if shape & 1 == 0 { Privilege::Kernel } else { Privilege::User };
                let branch = FedBranch {
                    mispredicted: shape & 2 != 0,
                    ..FedBranch::new(*word, !*word, FedBranchKind::Far, privilege)
                };
                let recorded = precise.branch(&mut pmu, &branch, &mut ram);
                assert_eq!(recorded, naive.branch(&branch), "{}", told());
            }
        }
        assert_eq!(precise.due(), naive.due, "{}", told());
        assert_eq!(pmu.pmi_pending(), naive.pmi, "{}", told());
        assert!(ram == naive.ram, "{}", told());
        let all = [0x186..0x18A, 0x309..0x30C, 0x38D..0x392, 0x3F1..0x3F8, 0x4C1..0x4C5];
        let further = [0x600..0x601, 0x1D9..0x1DA, 0x1A0..0x1A1, 0x345..0x346, 0x1900..0x1910];
        for address in all.into_iter().chain(further).chain([0x1980..0x198D]).flatten() {
            let expected = naive.read(address);
            assert_eq!(pmu.read_beside(&precise, address), expected, "{} {address:#X}", told());
        }
        if saved {
            precise = through_bytes_and_registers(&configuration, own, &mut pmu, &precise);
        }
    }
}

/// Returns the records after they were saved as bytes and restored, and as registers and restored: both are the same.
fn through_bytes_and_registers(
    configuration: &Configuration,
    own: PreciseConfiguration,
    pmu: &mut VirtualPmu,
    precise: &VirtualPrecise,
) -> VirtualPrecise {
    let mut by_bytes = VirtualPrecise::new(configuration, own).unwrap();
    by_bytes.restore(&precise.to_bytes()).unwrap();
    assert_eq!(by_bytes, *precise);
    let mut by_registers = VirtualPrecise::new(configuration, own).unwrap();
    let mut there = VirtualPmu::new(*configuration, FedEvents::NONE).unwrap();
    let listed = configuration.registers().chain(precise.registers()).filter(|one| one.is_state);
    for register in listed {
        if let Read::Value(value) | Read::Shared { value, .. } =
            pmu.read_beside(precise, register.address)
        {
            let written = there.host_write_beside(&mut by_registers, register.address, value);
            assert_ne!(written.answer, Write::GeneralProtection, "{:#X}", register.address);
        }
    }
    there.set_pmi_pending(pmu.pmi_pending());
    // No register holds which records are due.
    by_registers.overflowed(precise.due());
    assert_eq!(by_registers, *precise);
    assert_eq!(there.state(), pmu.state());
    *pmu = there;
    by_bytes
}

/// Registers that differ from each other.
pub(crate) fn registers(seed: u64) -> FedRegisters {
    FedRegisters {
        flags: seed ^ 0xF1A6,
        ip: seed ^ 0x1111,
        general: core::array::from_fn(|number| seed.rotate_left(number as u32) ^ number as u64),
        ssp: seed ^ 0x5511,
    }
}

/// Vector registers that differ from each other.
pub(crate) fn vector_registers() -> FedVectors {
    let wide = |register: usize, part: usize| {
        u128::from(register as u64 + 1) << 64 | u128::from(part as u64 + 1)
    };
    FedVectors {
        xmm: core::array::from_fn(|register| wide(register, 0x10)),
        ymm_high: core::array::from_fn(|register| wide(register, 0x20)),
        opmask: core::array::from_fn(|register| register as u64 + 0x30),
        zmm_high: core::array::from_fn(|register| [0x40, 0x41].map(|part| wide(register, part))),
        zmm_16_to_31: core::array::from_fn(|register| {
            [0x50, 0x51, 0x52, 0x53].map(|part| wide(register, part))
        }),
    }
}
