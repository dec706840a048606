//! A naive model of the PMU, and random programs with the same result on both. It keeps the registers in a map,
//! decodes them at each use, caches nothing, and takes the manuals' tables as written.
//!
//! Shared with the fuzz target, which feeds the same programs from its input.

use std::collections::HashMap;

use pmu_virt::{
    AmdConfiguration, AmdCounters, Configuration, EventKey, FedEvents, Feed, HiddenConfiguration,
    HiddenRdpmc, HiddenRegisters, IntelConfiguration, Mode, Privilege, Read, Vendor, VirtualPmu,
    Write,
};

/// Returns the fed keys, each as an event select without the bits for privileges, enabling and reading, and as a key.
fn fed() -> [(u64, EventKey); 11] {
    [
        (0x003C, EventKey::general(0x3C, 0)),
        (0x00C0, EventKey::general(0xC0, 0)),
        (0xF_0000_41D0, EventKey::general(0xFD0, 0x41)),
        (0x0004_003C, EventKey::general(0x3C, 0).edge()),
        (0x0280_00C0, EventKey::general(0xC0, 0).counter_mask(2, true)),
        (0x0020_003C, EventKey::general(0x3C, 0).any_thread()),
        // Intel's IN_TX; on AMD, the high part of an event.
        (0x0001_0000_003C, EventKey::of_select(0x0001_0000_003C)),
        // Version 6: unit mask 2 (47:40), and EQ (36) with a counter mask, without one, and inverted.
        (0x0200_0000_01D1, EventKey::general(0xD1, 0x01).with_unit_mask_2(0x02)),
        (0x0010_0200_00C0, EventKey::general(0xC0, 0).equal(2, false)),
        (0x0010_0000_003C, EventKey::general(0x3C, 0).equal(0, false)),
        (0x0010_0080_003C, EventKey::general(0x3C, 0).equal(0, true)),
    ]
}
/// Beside those, some fixed counters with events of their own.
const FED_FIXED: [(u32, bool); 4] = [(2, false), (4, false), (6, false), (2, true)];
/// The general counters' events that fixed counters count as well: SDM vol. 3B, "Fixed-function Performance Counters".
const ALIASES: [(u32, u64); 3] = [(0, 0x00C0), (1, 0x003C), (3, 0x01A4)];

fn keys() -> Vec<EventKey> {
    let fixed = FED_FIXED.map(|(counter, any_thread)| {
        let key = EventKey::fixed(counter as u8).unwrap();
        if any_thread { key.any_thread() } else { key }
    });
    [&fed().map(|(_, key)| key)[..], &fixed].concat()
}

fn events() -> FedEvents {
    FedEvents::new(&keys()).unwrap()
}

/// Counts of the fed events: user, kernel.
type Happened = [[u64; 2]; 15];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Select(u32),
    /// General counters from 0, fixed ones from 8.
    Counter(u32),
    FixedControl,
    Control,
    Status,
    Clear,
    Set,
    InUse,
    Capabilities,
    Misc,
    Debug,
    Absent,
    Foreign,
}

/// The naive model.
pub(crate) struct Naive {
    configuration: Configuration,
    /// By the lowest address of the register.
    registers: HashMap<u32, u64>,
    pending: bool,
}

fn bits(width: u8) -> u64 {
    (0..width).map(|bit| 1u64 << bit).sum()
}

impl Naive {
    pub(crate) fn new(configuration: Configuration) -> Self {
        let mut naive = Self { configuration, registers: HashMap::new(), pending: false };
        naive.reset();
        naive
    }

    fn reset(&mut self) {
        self.registers.clear();
        self.pending = false;
        if self.has_global() {
            let all: u64 = (0..8).filter(|n| self.exists(*n)).map(|n| 1 << n).sum();
            self.registers.insert(self.at(Kind::Control), all);
        }
    }

    fn intel(&self) -> Option<IntelConfiguration> {
        match self.configuration {
            Configuration::Intel(intel) => Some(intel),
            _ => None,
        }
    }

    fn amd(&self) -> Option<AmdCounters> {
        match self.configuration {
            Configuration::Amd(amd) => Some(amd.counters),
            _ => None,
        }
    }

    fn hidden(&self) -> Option<HiddenConfiguration> {
        match self.configuration {
            Configuration::Hidden(hidden) => Some(hidden),
            _ => None,
        }
    }

    fn version(&self) -> u8 {
        self.intel().map_or(0, |intel| intel.version)
    }

    fn has_global(&self) -> bool {
        self.version() >= 2 || matches!(self.amd(), Some(AmdCounters::PerfMonV2 { .. }))
    }

    /// General counters from 0, fixed ones from 8.
    fn exists(&self, counter: u32) -> bool {
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

    fn width(&self, counter: u32) -> u8 {
        match self.intel() {
            Some(intel) if counter < 8 => intel.general_width,
            Some(intel) => intel.fixed_width,
            None => 48,
        }
    }

    /// Returns the address under which a register is kept.
    fn at(&self, kind: Kind) -> u32 {
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

    fn get(&self, kind: Kind) -> u64 {
        self.registers.get(&self.at(kind)).copied().unwrap_or(0)
    }

    fn put(&mut self, kind: Kind, value: u64) {
        self.registers.insert(self.at(kind), value);
    }

    /// SDM vol. 4 and APM vol. 2, the tables of registers.
    fn kind(&self, address: u32) -> Kind {
        let counter = |n: u32, kind: fn(u32) -> Kind| {
            if self.exists(n) { kind(n) } else { Kind::Absent }
        };
        let from = |version: u8, kind: Kind| {
            if self.version() >= version { kind } else { Kind::Absent }
        };
        match (self.configuration.vendor(), address) {
            (Vendor::Intel, 0xC1..0xC9) => counter(address - 0xC1, Kind::Counter),
            (Vendor::Intel, 0x4C1..0x4C9) => {
                if self.intel().is_some_and(|intel| intel.full_width_writes) {
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
                0x1A6..0x1A8
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
    fn hides_as_zero(&self, address: u32) -> bool {
        self.hidden().is_some_and(|hidden| match hidden.vendor {
            Vendor::Amd => (0xC001_0000..0xC001_0008).contains(&address),
            Vendor::Intel => {
                hidden.registers == HiddenRegisters::Kvm
                    && [0xC1, 0xC2, 0x186, 0x187].contains(&address)
            }
        })
    }

    fn read(&self, address: u32) -> Read {
        if self.hides_as_zero(address) {
            return Read::Value(0);
        }
        let misc = 1 << 7 | 1 << 11 | 1 << 12;
        match self.kind(address) {
            Kind::Absent => Read::GeneralProtection,
            Kind::Foreign => Read::Unhandled,
            Kind::Clear | Kind::Set => Read::Value(0),
            Kind::Capabilities => {
                Read::Value(u64::from(self.intel().unwrap().full_width_writes) << 13)
            }
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
    fn counters(&self) -> u64 {
        (0..16).filter(|n| self.exists(*n)).map(|n| 1 << if n < 8 { n } else { n + 24 }).sum()
    }

    /// The answer, and the illegal bits.
    fn write(&mut self, address: u32, value: u64) -> (Write, u64) {
        let amd = self.configuration.vendor() == Vendor::Amd;
        let any_thread = self.intel().is_some_and(|intel| intel.any_thread);
        let hides_from_user = self.intel().is_some_and(|intel| intel.rdpmc_user_disable);
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
                let mut legal = 0xFFDF_FFFF;
                let intel = self.intel().unwrap();
                for (exists, field) in [
                    (any_thread, 1 << 21),
                    (intel.transactional, 1 << 32),
                    // IN_TXCP: IA32_PERFEVTSEL2 alone.
                    (intel.transactional && n == 2, 1 << 33),
                    (intel.equal, 1 << 36),
                    (hides_from_user, 1 << 37),
                    (intel.unit_mask_2, 0xFF << 40),
                ] {
                    legal |= if exists { field } else { 0 };
                }
                (legal, false)
            }
            Kind::FixedControl => {
                let nibble = if any_thread { 15 } else { 11 };
                let counters = (0..8).filter(|n| self.exists(8 + n));
                let hiding = counters.clone().filter(|_| hides_from_user);
                let legal: u64 = counters.map(|n| nibble << (4 * n)).sum();
                (legal + hiding.map(|n| 1 << (33 + 4 * n)).sum::<u64>(), false)
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

    fn read_pmc(&self, ecx: u32, mode: Mode) -> Read {
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

    /// Returns whether a counter counts in user and kernel mode, its fed event, and whether it interrupts.
    fn counts(&self, n: u32) -> Option<([bool; 2], Option<usize>, bool)> {
        let global = if n < 8 { n } else { n + 24 };
        if !self.exists(n)
            || self.has_global() && self.get(Kind::Control) >> global & 1 == 0
            || self.get(Kind::Status) >> 59 & 1 == 1
        {
            return None;
        }
        if n < 8 {
            let select = self.get(Kind::Select(n));
            let enabled = select >> 22 & 1 == 1 && select >> 16 & 3 != 0;
            let mut event = select & !(1 << 16 | 1 << 17 | 1 << 19 | 1 << 20 | 1 << 22 | 1 << 37);
            let (invert, counter_mask, equal) = (1 << 23, 0xFF << 24, 1 << 36);
            if event & counter_mask == 0 && event & equal == 0 {
                event &= !invert;
            }
            let index = fed().iter().position(|(bits, _)| *bits == event);
            let modes = [select >> 16 & 1 == 1, select >> 17 & 1 == 1];
            enabled.then_some((modes, index, select >> 20 & 1 == 1))
        } else {
            let nibble = self.get(Kind::FixedControl) >> (4 * (n - 8)) & 15;
            let counter = (n - 8, nibble & 4 != 0);
            let alias = ALIASES.iter().find(|(fixed, _)| *fixed == n - 8).map(|(_, event)| event);
            let any_thread = u64::from(nibble & 4 != 0) << 21;
            let index = match alias {
                Some(event) => fed().iter().position(|(bits, _)| *bits == event | any_thread),
                None => FED_FIXED
                    .iter()
                    .position(|fed| *fed == counter)
                    .map(|index| index + fed().len()),
            };
            (nibble & 3 != 0).then_some((
                [nibble & 2 != 0, nibble & 1 != 0],
                index,
                nibble & 8 != 0,
            ))
        }
    }

    fn amount(&self, n: u32, happened: &Happened) -> Option<(u128, bool)> {
        let (modes, index, interrupts) = self.counts(n)?;
        let [user, kernel] = happened[index?];
        let amount = if modes[0] { u128::from(user) } else { 0 }
            + if modes[1] { u128::from(kernel) } else { 0 };
        Some((amount, interrupts))
    }

    /// Counts everything, without a stop. Returns the overflowed counters and the interrupt.
    fn count(&mut self, happened: &Happened) -> (u64, bool) {
        let (mut overflowed, mut pmi) = (0, false);
        let amounts: Vec<_> = (0..16).map(|n| self.amount(n, happened)).collect();
        for (n, amount) in (0..).zip(amounts) {
            let Some((amount, interrupts)) = amount else { continue };
            let end = 1u128 << self.width(n);
            let sum = u128::from(self.get(Kind::Counter(n))) + amount;
            self.put(Kind::Counter(n), (sum % end) as u64);
            if sum >= end {
                overflowed |= 1 << if n < 8 { n } else { n + 24 };
                pmi |= interrupts;
            }
        }
        if self.has_global() {
            self.put(Kind::Status, self.get(Kind::Status) | overflowed);
        }
        if pmi {
            self.pending = true;
            if self.get(Kind::Debug) >> 12 & 1 == 1 {
                if self.version() >= 4 {
                    self.put(Kind::Status, self.get(Kind::Status) | 1 << 59);
                } else {
                    self.put(Kind::Control, 0);
                }
            }
        }
        (overflowed, pmi)
    }

    /// Counts up to the first overflow that interrupts; the remainder stays in `happened`.
    fn advance(&mut self, happened: &mut Happened) -> (u64, bool) {
        let mut first: Option<(u128, u128, u32)> = None;
        for n in 0..16 {
            let Some((amount, true)) = self.amount(n, happened) else { continue };
            let missing = (1u128 << self.width(n)) - u128::from(self.get(Kind::Counter(n)));
            let sooner = first.is_none_or(|(part, whole, _)| missing * whole < part * amount);
            if amount >= missing && sooner {
                first = Some((missing, amount, n));
            }
        }
        let mut passed = *happened;
        if let Some((part, whole, n)) = first {
            for cells in &mut passed {
                *cells = cells.map(|cell| (u128::from(cell) * part / whole) as u64);
            }
            let Some(([true, true], Some(event), _)) = self.counts(n) else {
                return self.pass(happened, &passed);
            };
            passed[event][1] = part as u64 - passed[event][0];
        }
        self.pass(happened, &passed)
    }

    fn pass(&mut self, happened: &mut Happened, passed: &Happened) -> (u64, bool) {
        for (left, passed) in happened.iter_mut().flatten().zip(passed.iter().flatten()) {
            *left -= passed;
        }
        self.count(passed)
    }

    /// Compares all that can be seen of the registers.
    fn assert_same(&self, pmu: &VirtualPmu) {
        let state = pmu.state();
        let mut told = HashMap::new();
        for (address, value) in state.registers() {
            // The embedder of a hidden PMU shares one, which is 0.
            if let kind @ (Kind::Select(_) | Kind::Counter(_) | Kind::FixedControl) =
                self.kind(address)
            {
                told.insert(self.at(kind), value);
            } else {
                told.insert(address, value);
            }
        }
        for kind in (0..8).flat_map(|n| [Kind::Select(n), Kind::Counter(n), Kind::Counter(n + 8)]) {
            let (Kind::Select(n) | Kind::Counter(n)) = kind else { unreachable!() };
            assert_eq!(told.get(&self.at(kind)).copied(), self.exists(n).then(|| self.get(kind)));
        }
        for kind in [Kind::FixedControl, Kind::Control, Kind::Status, Kind::Debug] {
            assert_eq!(told.get(&self.at(kind)).copied().unwrap_or(0), self.get(kind));
        }
        assert_eq!(state.pmi_pending(), self.pending);
        if self.version() >= 4 {
            assert_eq!(pmu.read(0x392), self.read(0x392));
        }
        let running: Vec<u32> = (0..16).filter(|n| self.counts(*n).is_some()).collect();
        let told: Vec<u32> = pmu
            .running()
            .map(|e| u32::from(e.counter))
            .map(|c| if c < 8 { c } else { c - 24 })
            .collect();
        assert_eq!(told, running);
        for event in pmu.running() {
            let place = u32::from(event.counter);
            let place = if place < 8 { place } else { place - 24 };
            assert_eq!(event.fed, self.counts(place).unwrap().1.is_some());
        }
    }
}

/// One step of a program: four words, any of which are valid.
pub(crate) type Step = (u8, u8, u32, u64);

/// Returns a valid configuration from any words.
pub(crate) fn configuration(words: [u8; 4]) -> Configuration {
    let [kind, version, counters, flags] = words;
    let amd = |amd: AmdConfiguration| {
        let mut amd = amd;
        amd.guest_host = flags & 1 != 0;
        Configuration::Amd(amd)
    };
    match kind % 8 {
        0 => {
            let vendor = if flags & 1 == 0 { Vendor::Intel } else { Vendor::Amd };
            let mut hidden = HiddenConfiguration::new(vendor);
            if flags & 2 != 0 {
                hidden.registers = HiddenRegisters::Kvm;
            }
            if flags & 4 != 0 {
                hidden.rdpmc = HiddenRdpmc::Zero;
            }
            Configuration::Hidden(hidden)
        }
        1 => amd(AmdConfiguration::LEGACY),
        2 => amd(AmdConfiguration::CORE_EXTENSION),
        3 => amd(AmdConfiguration::perf_mon_v2(4 + counters % 5)),
        _ => {
            let (version, features) = (1 + version % 6, version >> 5);
            let fixed = if version == 1 { 0 } else { (counters >> 3) % 9 };
            let widths = [32, 40, 48, 63, 64];
            let mut intel =
                IntelConfiguration::new(version, 1 + counters % 8, fixed).with(|intel| {
                    intel.general_width = widths[usize::from(flags >> 2) % 5];
                    intel.fixed_width = widths[usize::from(flags >> 4) % 5];
                    intel.full_width_writes = flags & 1 == 1;
                    intel.any_thread = version >= 3 && flags & 2 == 2;
                });
            if version == 6 {
                intel.unit_mask_2 = features & 1 != 0;
                intel.equal = features & 2 != 0;
                intel.rdpmc_user_disable = features & 4 != 0;
            }
            intel.transactional = kind & 0x40 != 0;
            if version >= 5 && kind & 0x80 != 0 {
                intel.extended_leaf = true;
                intel.general = counters | 1;
                intel.fixed = flags;
            }
            Configuration::Intel(intel)
        }
    }
}

/// Returns the address of a register of either vendor.
fn address(choice: u32) -> u32 {
    const BASES: [(u32, u32); 12] = [
        (0x186, 8),
        (0xC1, 8),
        (0x4C1, 8),
        (0x309, 8),
        (0x38D, 6),
        (0xC001_0000, 8),
        (0xC001_0200, 16),
        (0xC000_0300, 4),
        (0x1A0, 1),
        (0x1D9, 1),
        // All four of each counter, and of one more.
        (0x1900, 36),
        (0x1980, 36),
    ];
    match BASES.get(choice as usize & 15) {
        Some((base, count)) => base + (choice >> 4) % count,
        None if choice & 15 == 15 => choice,
        None => [0x345, 0x38F, 0x38E, 0x38D][choice as usize >> 4 & 3],
    }
}

/// Returns a meaningful value for the register.
fn value(address: u32, shape: u8, word: u64) -> u64 {
    let select = [
        0x53_003C,
        0x43_00C0,
        0x51_003C,
        0x52_003C,
        0xF_0053_41D0,
        0x57_003C,
        0x02D3_00C0,
        // Inverted, without a counter mask.
        0x00D3_00C0,
        0x73_003C,
        // IN_TX, IN_TXCP, GuestOnly.
        0x0001_0053_003C,
        0x0002_0053_003C,
        0x0100_0053_003C,
        // Version 6: unit mask 2; EQ with a counter mask, without one, and inverted.
        0x0200_0053_01D1,
        0x0010_0253_00C0,
        0x0010_0053_003C,
        0x0010_00D3_003C,
    ];
    let plain = select[word as usize % select.len()];
    match shape % 8 {
        0 => word,
        // Close to an overflow, of whatever width.
        1 => (word & 0xFF).wrapping_neg(),
        // Close to the last overflow.
        2 if word & 1 == 0 => word >> 62,
        2 => (word & 0xFF).wrapping_neg(),
        3 => (word & 0xFF).wrapping_neg() & 0xFFFF_FFFF_FFFF,
        4 => 1 << (word & 63),
        5 if address == 0x38D && word & 1 << 32 != 0 => 0x2222_2222_BBBB_BBBB & word,
        5 if address == 0x38D => 0xBBBB_BBBB & word,
        5 if matches!(address, 0x390 | 0x391) => word & 0xFC80_000F_0000_00FF,
        5 => word & 0xFF | (word & 0xFF00) << 24,
        6 if address == 0x1D9 => 1 << 12,
        // RDPMC user disable.
        _ if word >> 62 == 0 => plain | 1 << 37,
        _ => plain,
    }
}

/// Runs a program on both models, comparing after each step. With `restored`, the model is saved and
/// restored before each step.
pub(crate) fn run(configuration: Configuration, program: &[Step], restored: bool) {
    let (events, keys) = (events(), keys());
    let mut pmu = VirtualPmu::new(configuration, events).unwrap();
    let mut naive = Naive::new(configuration);
    for &(operation, shape, choice, word) in program {
        if restored {
            pmu = VirtualPmu::restore(&pmu.state(), pmu.configuration(), events).unwrap();
        }
        let address = address(choice);
        match operation % 8 {
            0..=3 => {
                let value = value(address, shape, word);
                let written = pmu.write(address, value);
                let expected = naive.write(address, value);
                assert_eq!((written.answer, written.illegal), expected, "{address:#X} {value:#X}");
            }
            4 => {
                if naive.kind(address) != Kind::Foreign {
                    assert_eq!(pmu.read(address), naive.read(address), "{address:#X}");
                }
                let mode = Mode { cpl: shape & 3, pce: shape & 4 != 0, protected: shape & 8 == 0 };
                let user = Mode { cpl: 3, pce: true, protected: true };
                for ecx in [choice].into_iter().chain((0..8).flat_map(|n| [n, 1 << 30 | n])) {
                    for mode in [mode, user] {
                        assert_eq!(pmu.read_pmc(ecx, mode), naive.read_pmc(ecx, mode), "{ecx:#X}");
                    }
                }
            }
            5 | 6 => {
                let mut happened = Happened::default();
                for (n, cell) in happened.iter_mut().flatten().enumerate() {
                    let count = word.rotate_left(7 * n as u32);
                    *cell = match shape % 4 {
                        0 => count & 0x1F,
                        1 => count & 0xFFF,
                        2 if choice >> n & 1 == 1 => count >> 16,
                        3 if choice >> n & 1 == 1 => (count >> 8).min(Feed::MAXIMUM),
                        _ => 0,
                    };
                }
                let mut feed = Feed::new(&events);
                for (key, [user, kernel]) in keys.iter().zip(happened) {
                    let event = events.find(*key).unwrap();
                    feed.add(event, Privilege::User, user).unwrap();
                    feed.add(event, Privilege::Kernel, kernel).unwrap();
                }
                if operation % 8 == 5 {
                    let through = pmu.advance_through(&mut feed).unwrap();
                    let first = naive.advance(&mut happened);
                    let rest = naive.count(&happened);
                    assert_eq!(through.overflowed, first.0 | rest.0);
                    assert_eq!(through.pmi, first.1 | rest.1);
                    assert!(feed.is_empty());
                } else {
                    assert_headroom(&mut pmu, &naive, &keys);
                    let advanced = pmu.advance(&mut feed).unwrap();
                    assert_eq!((advanced.overflowed, advanced.pmi), naive.advance(&mut happened));
                    for (key, [user, kernel]) in keys.iter().zip(happened) {
                        let event = events.find(*key).unwrap();
                        assert_eq!(feed.count(event, Privilege::User), user);
                        assert_eq!(feed.count(event, Privilege::Kernel), kernel);
                    }
                }
            }
            _ if shape % 16 == 0 => {
                pmu.reset();
                naive.reset();
            }
            _ => {
                pmu.init();
                naive.pending = false;
            }
        }
        naive.assert_same(&pmu);
    }
}

/// Asserts that the next overflow is the least room of any interrupting counter, by event and privilege.
fn assert_headroom(pmu: &mut VirtualPmu, naive: &Naive, keys: &[EventKey]) {
    let headroom = pmu.next_overflow();
    for (index, key) in keys.iter().enumerate() {
        for (mode, privilege) in [Privilege::User, Privilege::Kernel].into_iter().enumerate() {
            let missing = (0..16)
                .filter_map(|n| match naive.counts(n)? {
                    (modes, Some(event), true) if event == index && modes[mode] => {
                        let end = 1u128 << naive.width(n);
                        Some(end - u128::from(naive.get(Kind::Counter(n))))
                    }
                    _ => None,
                })
                .min();
            let told = headroom.of(events().find(*key).unwrap(), privilege);
            assert_eq!(told, missing.and_then(|m| u64::try_from(m).ok()));
        }
    }
}
