//! A naive model of branch records, and random programs with the same result on both. It keeps whole registers in a map
//! by their addresses, with the PMU's bits of those that are shared, and takes the manuals' tables as written: SDM
//! vol. 3B, "Last Branch Records" and "Last Branch, Interrupt, and Exception Recording"; APM vol. 2, "Last Branch Stack
//! Registers".
//!
//! Shared with the fuzz target, which feeds the same programs from its input.

use pmu_virt::branches::{
    BranchConfiguration, FedBranch, FedBranchKind, FedPath, FedTransaction, VirtualBranches,
};
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration, IntelFeature};
use pmu_virt::{FedEvents, GuestFacility, Privilege, Read, VirtualPmu, Write};
use std::collections::HashMap;

pub(crate) mod program;

pub(crate) use program::run;

/// One step of a program: four words, any of which are valid.
pub(crate) type Step = (u8, u8, u32, u64);

/// The kinds of records.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Depths, and whether each feature is there.
    Architectural {
        depths: u8,
        filters: bool,
        features: bool,
        call_stack: bool,
    },
    Legacy(u8),
    Amd {
        depth: u8,
        freeze: bool,
    },
}

pub(crate) struct Naive {
    kind: Kind,
    version: u8,
    tsx: bool,
    registers: HashMap<u32, u64>,
    /// Records, the newest first: FROM, TO, INFO. Legacy stacks have theirs in `registers`.
    records: Vec<[u64; 3]>,
}

const FREEZE_LBRS: u64 = 1 << 11;
const FREEZE_COUNTERS: u64 = 1 << 12;
const LBR_FROZEN: u64 = 1 << 58;
/// IA32_DEBUGCTL: bits of the PMU, LBR, TR, BTS and what belongs to them.
const DEBUGCTL_OF_PMU: u64 = 0x7FC1;
/// The status of version 4, with 4 general and 3 fixed counters.
const STATUS: u64 = 0x7C80_0007_0000_000F;

/// The registers that programs reach, and that are compared: the first address, the number, and whether they are AMD's;
/// `None`: any processor's.
const REGISTERS: [(u32, u32, Option<bool>); 16] = [
    (0x14CE, 2, Some(false)),
    (0x1C8, 2, Some(false)),
    (0x1D9, 1, None),
    (0xC000_010E, 2, Some(true)),
    (0xC000_0300, 4, Some(true)),
    (0x390, 2, Some(false)),
    (0x38E, 1, Some(false)),
    (0x345, 1, Some(false)),
    (0x186, 4, Some(false)),
    (0x1500, 32, Some(false)),
    (0x1600, 32, Some(false)),
    (0x1200, 32, Some(false)),
    (0xC001_0300, 32, Some(true)),
    (0x680, 32, Some(false)),
    (0x6C0, 32, Some(false)),
    (0xDC0, 32, Some(false)),
];

impl Naive {
    pub(crate) fn new(kind: Kind, pmu: Configuration) -> Self {
        let (version, tsx) = match pmu {
            Configuration::Intel(intel) => (intel.version, intel.has(IntelFeature::Transactional)),
            _ => (0, false),
        };
        let mut naive = Self { kind, version, tsx, registers: HashMap::new(), records: Vec::new() };
        match kind {
            Kind::Architectural { depths, .. } => {
                let deepest = (0..4).rev().find(|bit| depths >> bit & 1 == 1).unwrap();
                naive.registers.insert(0x14CF, 8 * (deepest + 1));
                naive.records = vec![[0; 3]; 8 * (deepest as usize + 1)];
            }
            Kind::Amd { depth, .. } => {
                naive.records = vec![[0; 3]; depth.into()];
                // RESET enables the counters.
                naive.registers.insert(0xC000_0301, 0x3F);
            }
            Kind::Legacy(_) => {}
        }
        naive
    }

    fn get(&self, address: u32) -> u64 {
        self.registers.get(&address).copied().unwrap_or(0)
    }

    fn legacy_depth(&self) -> u32 {
        if matches!(self.kind, Kind::Legacy(3 | 4)) { 16 } else { 32 }
    }

    /// Returns the record and word (FROM, TO, INFO) at an address, if the processor has such an address.
    fn word(&self, address: u32) -> Option<(u32, usize)> {
        let found = |bases: [u32; 3], count: u32| {
            bases
                .iter()
                .position(|base| *base != 0 && (*base..base + count).contains(&address))
                .map(|word| (address - bases[word], word))
        };
        match self.kind {
            Kind::Architectural { depths, .. } => {
                let deepest = 8 - depths.leading_zeros();
                found([0x1500, 0x1600, 0x1200], 8 * deepest)
            }
            Kind::Legacy(5 | 7) => found([0x680, 0x6C0, 0xDC0], self.legacy_depth()),
            Kind::Legacy(_) => found([0x680, 0x6C0, 0], self.legacy_depth()),
            Kind::Amd { depth, .. } => {
                let place = address.checked_sub(0xC001_0300)?;
                (place < 2 * u32::from(depth)).then_some((place / 2, place as usize % 2))
            }
        }
    }

    /// Returns the bits from 57 to `end` that do not repeat the sign of an address of five levels of paging.
    fn wrong_sign(value: u64, end: u32) -> u64 {
        let sign = value >> 56 & 1;
        (57..end).filter(|bit| value >> bit & 1 != sign).map(|bit| 1u64 << bit).sum()
    }

    fn illegal_in_word(&self, word: usize, value: u64) -> u64 {
        match (self.kind, word) {
            (Kind::Amd { .. }, 1) => value & 1 << 61,
            (Kind::Amd { .. }, _) => 0,
            (Kind::Legacy(3 | 6), 0) => Self::wrong_sign(value, 63),
            (Kind::Legacy(4), 0) => Self::wrong_sign(value, if self.tsx { 61 } else { 63 }),
            (Kind::Legacy(6), 1) => 0,
            (_, 0 | 1) => Self::wrong_sign(value, 64),
            (Kind::Legacy(5), _) => value & 0x1FFF_FFFF_FFFF_0000,
            (Kind::Legacy(_), _) => value & 0x7FFF_FFFF_FFFF_0000,
            (Kind::Architectural { features: true, .. }, _) => value & 0x00FF_FF00_FFFF_0000,
            (Kind::Architectural { .. }, _) => value & 0x9FFF_FFFF_FFFF_FFFF,
        }
    }

    /// Returns whether the address is compared: the records' registers, and those that they share.
    fn is_known(&self, address: u32) -> bool {
        let is_amd = matches!(self.kind, Kind::Amd { .. });
        let listed = REGISTERS.iter().any(|(first, registers, of)| {
            *of != Some(!is_amd) && (*first..first + registers).contains(&address)
        });
        listed || self.word(address).is_some()
    }

    pub(crate) fn read(&self, address: u32) -> Read {
        if let Some((record, word)) = self.word(address) {
            return match (self.kind, self.records.get(record as usize)) {
                (Kind::Legacy(_), _) => Read::Value(self.get(address)),
                (_, Some(words)) => Read::Value(words[word]),
                (_, None) => Read::GeneralProtection,
            };
        }
        let value = Read::Value(self.get(address));
        match (self.kind, address) {
            (Kind::Architectural { .. }, 0x14CE | 0x14CF) => value,
            (Kind::Legacy(_), 0x1C8 | 0x1C9) => value,
            (Kind::Amd { .. }, 0xC000_010E | 0xC000_010F | 0xC000_0300 | 0xC000_0301) => value,
            (Kind::Amd { .. }, 0xC000_0302 | 0xC000_0303) => Read::Value(0),
            (Kind::Amd { .. }, 0x1D9) => Read::Shared { value: self.get(address), mask: 0x1800 },
            (Kind::Amd { .. }, _) => Read::GeneralProtection,
            (_, 0x1D9) => Read::Shared { value: self.get(address), mask: DEBUGCTL_OF_PMU },
            // FW_WRITE, and the format.
            (Kind::Architectural { .. }, 0x345) => Read::Value(1 << 13 | 0x3F),
            (Kind::Legacy(format), 0x345) => Read::Value(1 << 13 | u64::from(format)),
            (_, 0x38E) if self.version >= 2 => value,
            (_, 0x390) if self.version >= 2 => Read::Value(0),
            (_, 0x391) if self.version >= 4 => Read::Value(0),
            (_, 0x186..=0x189) => value,
            _ => Read::GeneralProtection,
        }
    }

    /// Returns whether a call stack would run that freezes, with these values of the control and DEBUGCTL.
    fn freezing_call_stack(&self, control: u64, debug: u64) -> bool {
        let freezes = debug & FREEZE_LBRS != 0;
        match self.kind {
            Kind::Architectural { .. } => freezes && control & 0b1001 == 0b1001,
            Kind::Legacy(_) => freezes && control >> 9 & 1 == 1 && debug & 1 == 1,
            Kind::Amd { .. } => false,
        }
    }

    pub(crate) fn write(&mut self, address: u32, value: u64) -> (Write, u64) {
        let fault = (Write::GeneralProtection, u64::MAX);
        if let Some((record, word)) = self.word(address) {
            let illegal = self.illegal_in_word(word, value);
            let amd = matches!(self.kind, Kind::Amd { .. });
            let known =
                matches!(self.kind, Kind::Legacy(_)) || (record as usize) < self.records.len();
            if !known {
                return fault;
            }
            if illegal != 0 && !amd {
                return (Write::GeneralProtection, illegal);
            }
            match self.records.get_mut(record as usize) {
                Some(words) => words[word] = value & !illegal,
                None => drop(self.registers.insert(address, value)),
            }
            return (Write::Done, illegal);
        }
        let legal = match (self.kind, address) {
            (Kind::Architectural { filters, call_stack, .. }, 0x14CE) => {
                1 | if filters { 0x7F_0006 } else { 0 } | if call_stack { 8 } else { 0 }
            }
            (Kind::Architectural { depths, .. }, 0x14CF) => {
                let supported = (0..4).any(|bit| depths >> bit & 1 == 1 && value == 8 * (bit + 1));
                if !supported {
                    return fault;
                }
                self.records = vec![[0; 3]; value as usize];
                u64::MAX
            }
            (Kind::Legacy(4 | 5 | 7), 0x1C8) => 0x3FF,
            (Kind::Legacy(_), 0x1C8) | (Kind::Amd { .. }, 0xC000_010E) => 0x1FF,
            (Kind::Legacy(_), 0x1C9) => u64::from(self.legacy_depth()) - 1,
            (Kind::Amd { .. }, 0xC000_010F) => 1 << 6,
            (Kind::Amd { freeze, .. }, 0x1D9) => {
                let illegal = value & if freeze { FREEZE_COUNTERS } else { 0x1800 };
                if illegal != 0 && !freeze {
                    return (Write::GeneralProtection, illegal);
                }
                self.registers.insert(address, value & FREEZE_LBRS);
                return (Write::Shared { mask: 0x1800 }, illegal);
            }
            (Kind::Amd { freeze, .. }, 0xC000_0302 | 0xC000_0303) => {
                let legal = 0x3F | if freeze { LBR_FROZEN } else { 0 };
                let held = self.get(0xC000_0300);
                let changed = if address & 1 == 0 { held & !value } else { held | value & legal };
                self.registers.insert(0xC000_0300, changed);
                return (Write::Done, value & !legal);
            }
            (Kind::Amd { .. }, 0xC000_0300) => return (Write::Done, u64::MAX),
            (Kind::Amd { .. }, 0xC000_0301) => 0x3F,
            (Kind::Amd { .. }, _) => return fault,
            (_, 0x1D9) => {
                let mut legal = if self.version >= 2 { FREEZE_LBRS | FREEZE_COUNTERS } else { 0 };
                if matches!(self.kind, Kind::Legacy(_)) {
                    legal |= 1;
                } else if self.version < 2 {
                    unreachable!();
                }
                let mut illegal = value & DEBUGCTL_OF_PMU & !legal;
                if illegal & !1 != 0 {
                    if self.freezing_call_stack(self.control(), value) {
                        illegal |= value & FREEZE_LBRS;
                    }
                    return (Write::GeneralProtection, illegal);
                }
                if self.freezing_call_stack(self.control(), value) {
                    illegal |= FREEZE_LBRS;
                }
                self.registers.insert(address, value & legal);
                return (Write::Shared { mask: DEBUGCTL_OF_PMU }, illegal);
            }
            (_, 0x390 | 0x391) if self.version >= if address == 0x390 { 2 } else { 4 } => {
                let mut legal = if self.version >= 4 { STATUS } else { 0x7_0000_000F };
                if self.version == 1 {
                    legal = 0;
                }
                // CondChgd; OvfBuf is dropped without a Debug Store.
                let (also, dropped) = if address == 0x390 { (1 << 63, 1u64 << 62) } else { (0, 0) };
                let illegal = value & !(legal | also);
                if illegal & !dropped != 0 {
                    return (Write::GeneralProtection, illegal);
                }
                let held = self.get(0x38E);
                let changed = if address == 0x390 { held & !value } else { held | value & legal };
                self.registers.insert(0x38E, changed);
                return (Write::Done, illegal);
            }
            (_, 0x186..=0x189) => {
                let mut legal = 0xFFDF_FFFF;
                if self.tsx {
                    legal |= 1 << 32 | if address == 0x188 { 1 << 33 } else { 0 };
                }
                if matches!(self.kind, Kind::Architectural { features: true, .. }) {
                    legal |= 1 << 35;
                }
                legal
            }
            _ => return fault,
        };
        let mut illegal = value & !legal;
        let amd = matches!(self.kind, Kind::Amd { .. });
        let refused = illegal != 0 && !amd;
        if matches!(address, 0x14CE | 0x1C8) && self.freezing_call_stack(value, self.get(0x1D9)) {
            illegal |= value & if address == 0x14CE { 1 << 3 } else { 1 << 9 };
        }
        if refused {
            // A select with a bit that its PMU refuses keeps bit 35, too; the PMU's answer tells its own bits.
            return (Write::GeneralProtection, illegal);
        }
        self.registers.insert(address, value & legal);
        if address == 0x14CF {
            self.registers.insert(address, value);
        }
        (Write::Done, illegal)
    }

    fn control(&self) -> u64 {
        match self.kind {
            Kind::Architectural { .. } => self.get(0x14CE),
            Kind::Legacy(_) => self.get(0x1C8),
            Kind::Amd { .. } => self.get(0xC000_010E),
        }
    }

    fn status(&self) -> u32 {
        if matches!(self.kind, Kind::Amd { .. }) { 0xC000_0300 } else { 0x38E }
    }

    pub(crate) fn interrupt(&mut self) {
        if self.get(0x1D9) & FREEZE_LBRS == 0 {
            return;
        }
        if self.version >= 4 || matches!(self.kind, Kind::Amd { freeze: true, .. }) {
            let status = self.status();
            self.registers.insert(status, self.get(status) | LBR_FROZEN);
        } else {
            self.registers.insert(0x1D9, self.get(0x1D9) & !1);
        }
    }

    pub(crate) fn branch(&mut self, branch: &FedBranch) {
        let frozen =
            self.get(self.status()) & LBR_FROZEN != 0 && (self.version >= 4 || self.version == 0);
        let enabled = match self.kind {
            Kind::Architectural { .. } => self.get(0x14CE) & 1 != 0,
            Kind::Legacy(_) => self.get(0x1D9) & 1 != 0,
            Kind::Amd { .. } => self.get(0xC000_010F) & 1 << 6 != 0,
        };
        if frozen || !enabled || !self.passes(branch) {
            return;
        }
        let call_stack = match self.kind {
            Kind::Architectural { .. } => self.control() & 1 << 3 != 0,
            Kind::Legacy(_) => self.control() & 1 << 9 != 0,
            Kind::Amd { .. } => false,
        };
        let calls =
            matches!(branch.kind, FedBranchKind::RelativeCall | FedBranchKind::IndirectCall);
        match (call_stack, calls, branch.kind == FedBranchKind::Return) {
            (false, ..) | (true, true, _) => self.push(self.words(branch)),
            (true, false, true) => self.pop(),
            _ => {}
        }
    }

    /// The filter: the architectural control's bits enable, those of the others suppress.
    fn passes(&self, branch: &FedBranch) -> bool {
        let (kernel, control) = (branch.privilege == Privilege::Kernel, self.control());
        if let Kind::Architectural { filters, .. } = self.kind {
            let kind = match branch.kind {
                FedBranchKind::Conditional => 1 << 16,
                FedBranchKind::RelativeJump => 1 << 17,
                FedBranchKind::IndirectJump => 1 << 18,
                FedBranchKind::RelativeCall => 1 << 19,
                FedBranchKind::IndirectCall => 1 << 20,
                FedBranchKind::Return => 1 << 21,
                FedBranchKind::Far => 1 << 22,
            };
            let taken = control & kind != 0 && control & if kernel { 2 } else { 4 } != 0;
            return (taken || !filters) && branch.path != FedPath::Wrong;
        }
        let kind = match branch.kind {
            FedBranchKind::Conditional => 1 << 2,
            FedBranchKind::RelativeCall => 1 << 3,
            FedBranchKind::IndirectCall => 1 << 4,
            FedBranchKind::Return => 1 << 5,
            FedBranchKind::IndirectJump => 1 << 6,
            FedBranchKind::RelativeJump => 1 << 7,
            FedBranchKind::Far => 1 << 8,
        };
        let suppressed = control & kind != 0 || control & if kernel { 1 } else { 2 } != 0;
        let amd = matches!(self.kind, Kind::Amd { .. });
        !suppressed && (amd || branch.path != FedPath::Wrong)
    }

    fn words(&self, branch: &FedBranch) -> [u64; 3] {
        let bit = |place: u32, set: bool| u64::from(set) << place;
        let low = |value: u64, bits: u32| value % (1 << bits);
        let missed = branch.mispredicted;
        let inside = self.tsx && branch.transaction == FedTransaction::Inside;
        let abort = self.tsx && branch.transaction == FedTransaction::Abort;
        let (from, to, cycles) = (branch.from, branch.to, branch.cycles);
        match self.kind {
            Kind::Architectural { features, .. } => {
                let mut info = bit(62, inside) + bit(61, abort);
                if features {
                    info += bit(63, missed);
                    info += cycles.map_or(0, |cycles| (1 << 60) + u64::from(cycles));
                    info += (match branch.kind {
                        FedBranchKind::Conditional => 0,
                        FedBranchKind::IndirectJump => 1,
                        FedBranchKind::RelativeJump => 2,
                        FedBranchKind::IndirectCall => 3,
                        FedBranchKind::RelativeCall => 4,
                        FedBranchKind::Return => 5,
                        FedBranchKind::Far => 8,
                    }) << 56;
                    for counter in 0..4 {
                        // Each select asks for its own, in bit 35.
                        if self.get(0x186 + counter) >> 35 & 1 == 1 {
                            let count = u64::from(branch.counts[counter as usize]);
                            info += count.min(3) << (32 + 2 * counter);
                        }
                    }
                }
                [from, to, info]
            }
            Kind::Legacy(3) => [low(from, 63) + bit(63, missed), to, 0],
            Kind::Legacy(4) => {
                [low(from, 61) + bit(63, missed) + bit(62, inside) + bit(61, abort), to, 0]
            }
            Kind::Legacy(5) => {
                let cycles = u64::from(cycles.unwrap_or(0));
                [from, to, cycles + bit(63, missed) + bit(62, inside) + bit(61, abort)]
            }
            Kind::Legacy(6) => {
                let cycles = u64::from(cycles.unwrap_or(0));
                [low(from, 63) + bit(63, missed), low(to, 48) + (cycles << 48), 0]
            }
            Kind::Legacy(_) => [from, to, u64::from(cycles.unwrap_or(0)) + bit(63, missed)],
            Kind::Amd { .. } => {
                let (valid, speculative) = match branch.path {
                    FedPath::Retired => (true, false),
                    FedPath::Speculative => (true, true),
                    FedPath::Wrong => (false, true),
                };
                [
                    low(from, 63) + bit(63, missed),
                    low(to, 61) + bit(63, valid) + bit(62, speculative),
                    0,
                ]
            }
        }
    }

    fn push(&mut self, words: [u64; 3]) {
        if let Kind::Legacy(_) = self.kind {
            let top = (self.get(0x1C9) as u32 + 1) % self.legacy_depth();
            self.registers.insert(0x1C9, top.into());
            self.put(top, words);
        } else {
            self.records.insert(0, words);
            self.records.pop();
        }
    }

    fn pop(&mut self) {
        if let Kind::Legacy(_) = self.kind {
            let top = self.get(0x1C9) as u32;
            self.put(top, [0; 3]);
            let before = if top == 0 { self.legacy_depth() - 1 } else { top - 1 };
            self.registers.insert(0x1C9, before.into());
        } else {
            self.records.remove(0);
            self.records.push([0; 3]);
        }
    }

    fn put(&mut self, place: u32, words: [u64; 3]) {
        let info = matches!(self.kind, Kind::Legacy(5 | 7));
        for (base, word) in [0x680, 0x6C0, 0xDC0].into_iter().zip(words) {
            if base != 0xDC0 || info {
                self.registers.insert(base + place, word);
            }
        }
    }
}

#[test]
fn the_model_knows_every_register() {
    for kind in 0..3 {
        let (configuration, branches, kind) = program::processor([kind, 4, 0, 7]);
        let naive = Naive::new(kind, configuration);
        let records = VirtualBranches::new(&configuration, branches).unwrap();
        for register in records.registers() {
            assert!(naive.is_known(register.address), "{kind:?} {:#X}", register.address);
        }
    }
}
