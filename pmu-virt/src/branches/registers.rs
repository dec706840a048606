//! The registers of branch records: addresses, names, and legal bits.

use crate::branches::configuration::{BranchConfiguration, MAX_RECORDS};
use crate::branches::format::{RESERVED, info_bits};
use crate::branches::virtual_branches::{DEBUG_FREEZE, DEBUG_LBR, VirtualBranches};
use crate::pmu::facility::Writer;

/// A register of branch records, or one that they share with the PMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    /// `IA32_LBR_CTL`, `LBR_SELECT`.
    Control,
    /// `IA32_LBR_DEPTH`.
    Depth,
    /// `MSR_LASTBRANCH_TOS`.
    Top,
    /// `DBG_EXTN_CFG`.
    Extension,
    /// `IA32_DEBUGCTL`, `DebugCtl`: some bits.
    Debug,
    /// The status, and the registers that clear and set its bits.
    Status,
    StatusClear,
    StatusSet,
    /// `IA32_PERF_CAPABILITIES`: bits 5:0.
    Capabilities,
    /// An event select of counter 0–3: bit 35.
    EventSelect(usize),
    From(usize),
    To(usize),
    Info(usize),
}

/// Addresses of the words of records, of one kind of records.
struct Words {
    from: u32,
    to: u32,
    /// 0: there is no such word.
    info: u32,
    /// Distance between the records.
    stride: u32,
}

const INTEL_EVENT_SELECT: u32 = 0x186;
const INTEL_CFG_A: u32 = 0x1901;

impl VirtualBranches {
    /// Returns the register at an address, if the processor has it for its records.
    pub(crate) fn locate(&self, address: u32) -> Option<Register> {
        use Register as R;
        let register = match (self.configuration, address) {
            (BranchConfiguration::Architectural(_), 0x14CE) => R::Control,
            (BranchConfiguration::Architectural(_), 0x14CF) => R::Depth,
            (BranchConfiguration::Legacy { .. }, 0x1C8) => R::Control,
            (BranchConfiguration::Legacy { .. }, 0x1C9) => R::Top,
            (BranchConfiguration::Amd(_), 0xC000_010E) => R::Control,
            (BranchConfiguration::Amd(_), 0xC000_010F) => R::Extension,
            (_, 0x1D9) => R::Debug,
            (BranchConfiguration::Amd(branches), 0xC000_0300 | 0xC000_0302 | 0xC000_0303)
                if branches.freeze =>
            {
                match address & 3 {
                    0 => R::Status,
                    2 => R::StatusClear,
                    _ => R::StatusSet,
                }
            }
            (BranchConfiguration::Amd(_), _) => return self.word(address),
            (_, 0x345) => R::Capabilities,
            (_, 0x38E) if self.version >= 4 => R::Status,
            (_, 0x390) if self.version >= 4 => R::StatusClear,
            (_, 0x391) if self.version >= 4 => R::StatusSet,
            (BranchConfiguration::Architectural(branches), _) => {
                let select = match address {
                    INTEL_EVENT_SELECT.. if address < INTEL_EVENT_SELECT + 4 => {
                        address - INTEL_EVENT_SELECT
                    }
                    0x1901 | 0x1905 | 0x1909 | 0x190D if self.version >= 6 => {
                        (address - INTEL_CFG_A) / 4
                    }
                    _ => return self.word(address),
                };
                if branches.counters >> select & 1 == 0 {
                    return None;
                }
                R::EventSelect(select as usize)
            }
            _ => return self.word(address),
        };
        Some(register)
    }

    const fn words(&self) -> Words {
        match self.configuration {
            BranchConfiguration::Architectural(_) => {
                Words { from: 0x1500, to: 0x1600, info: 0x1200, stride: 1 }
            }
            BranchConfiguration::Legacy { format: 5 | 7 } => {
                Words { from: 0x680, to: 0x6C0, info: 0xDC0, stride: 1 }
            }
            BranchConfiguration::Legacy { .. } => {
                Words { from: 0x680, to: 0x6C0, info: 0, stride: 1 }
            }
            BranchConfiguration::Amd(_) => {
                Words { from: 0xC001_0300, to: 0xC001_0301, info: 0, stride: 2 }
            }
        }
    }

    /// Returns whether a record has a word INFO.
    pub(crate) const fn has_info(&self) -> bool {
        self.words().info != 0
    }

    /// Returns the word of a record at an address.
    fn word(&self, address: u32) -> Option<Register> {
        let Words { from, to, info, stride } = self.words();
        let records = u32::from(self.configuration.max_depth());
        let number = |base: u32| {
            let distance = address.checked_sub(base)?;
            let number = distance / stride;
            (base != 0 && number < records && distance % stride == 0).then_some(number as usize)
        };
        number(from)
            .map(Register::From)
            .or_else(|| number(to).map(Register::To))
            .or_else(|| number(info).map(Register::Info))
    }

    /// Returns the registers that the records do not share with the PMU's table, in the order in which they are
    /// restored: a write of the depth clears the records.
    pub(crate) fn own(&self) -> impl Iterator<Item = (Register, u32, &'static str)> + use<> {
        let first = match self.configuration {
            BranchConfiguration::Architectural(_) => [
                Some((Register::Depth, 0x14CF, "IA32_LBR_DEPTH")),
                Some((Register::Control, 0x14CE, "IA32_LBR_CTL")),
                None,
            ],
            BranchConfiguration::Legacy { .. } => [
                Some((Register::Control, 0x1C8, "MSR_LBR_SELECT")),
                Some((Register::Top, 0x1C9, "MSR_LASTBRANCH_TOS")),
                None,
            ],
            BranchConfiguration::Amd(_) => [
                Some((Register::Debug, 0x1D9, "DebugCtl")),
                Some((Register::Control, 0xC000_010E, "LBR_SELECT")),
                Some((Register::Extension, 0xC000_010F, "DBG_EXTN_CFG")),
            ],
        };
        let names = match self.configuration {
            BranchConfiguration::Architectural(_) => {
                ["IA32_LBR_x_FROM_IP", "IA32_LBR_x_TO_IP", "IA32_LBR_x_INFO"]
            }
            BranchConfiguration::Legacy { .. } => {
                ["MSR_LASTBRANCH_x_FROM_IP", "MSR_LASTBRANCH_x_TO_IP", "MSR_LBR_INFO_x"]
            }
            BranchConfiguration::Amd(_) => ["LastBranchStackFromIp", "LastBranchStackToIp", ""],
        };
        let words = self.words();
        let records = (0..usize::from(self.configuration.max_depth())).flat_map(move |number| {
            let Words { from, to, info, stride } = words;
            let [from_name, to_name, info_name] = names;
            let offset = number as u32 * stride;
            [
                Some((Register::From(number), from + offset, from_name)),
                Some((Register::To(number), to + offset, to_name)),
                (info != 0).then_some((Register::Info(number), info + offset, info_name)),
            ]
        });
        first.into_iter().chain(records).flatten()
    }

    /// Returns the section of the manual that describes the registers.
    pub(crate) const fn manual(&self) -> &'static str {
        match self.configuration {
            BranchConfiguration::Architectural(_) => "SDM vol. 3B, Last Branch Records",
            BranchConfiguration::Legacy { .. } => {
                "SDM vol. 3B, Last Branch, Interrupt, and Exception Recording"
            }
            BranchConfiguration::Amd(_) => "APM vol. 2, Last Branch Stack Registers",
        }
    }

    /// Returns the bits of a register that belong to the records; all bits unless the register is shared.
    pub(crate) const fn owned(&self, register: Register) -> u64 {
        match (register, self.configuration) {
            // Bits 11 and 12 exist together.
            (Register::Debug, BranchConfiguration::Amd(_)) => DEBUG_FREEZE | 1 << 12,
            (Register::Debug, BranchConfiguration::Architectural(_)) => DEBUG_FREEZE,
            (Register::Debug, BranchConfiguration::Legacy { .. }) => DEBUG_FREEZE | DEBUG_LBR,
            (Register::Status | Register::StatusClear | Register::StatusSet, _) => 1 << 58,
            (Register::Capabilities, _) => 0x3F,
            (Register::EventSelect(_), _) => 1 << 35,
            _ => u64::MAX,
        }
    }

    /// Returns the bits that a write may set. Words of records with an address have a rule of their own.
    pub(crate) const fn legal(&self, register: Register) -> u64 {
        match (register, self.configuration) {
            (Register::Debug, BranchConfiguration::Amd(branches)) => {
                if branches.freeze {
                    DEBUG_FREEZE
                } else {
                    0
                }
            }
            (Register::Debug, BranchConfiguration::Legacy { .. }) if self.version < 2 => DEBUG_LBR,
            (Register::Control, BranchConfiguration::Architectural(branches)) => {
                let mut legal = 1;
                if branches.privilege_filter {
                    legal |= 0b110;
                }
                if branches.call_stack {
                    legal |= 1 << 3;
                }
                if branches.kind_filter {
                    legal |= 0x7F << 16;
                }
                legal
            }
            // EN_CALLSTACK since Haswell. Goldmont has none before Goldmont Plus.
            (Register::Control, BranchConfiguration::Legacy { format: 4 | 5 | 7 }) => 0x3FF,
            (Register::Control, _) => 0x1FF,
            (Register::Extension, _) => 1 << 6,
            (Register::Depth, _) => 0x3F,
            (Register::Top, _) => self.depth as u64 - 1,
            (Register::Info(_), BranchConfiguration::Architectural(branches)) => {
                info_bits(&branches)
            }
            (Register::Info(_), BranchConfiguration::Legacy { format: 7 }) => 1 << 63 | 0xFFFF,
            (Register::Info(_), _) => 0b111 << 61 | 0xFFFF,
            (Register::To(_), BranchConfiguration::Amd(_)) => !RESERVED,
            _ => self.owned(register),
        }
    }

    /// Returns the bits by which an address in a word of a record is not canonical in 57 bits; 0 if it is, or the word
    /// has no address that a write checks. The host restores what the processor has recorded, which in format 4 a guest
    /// cannot write.
    pub(crate) const fn wrong_sign(&self, writer: Writer, register: Register, value: u64) -> u64 {
        // The lowest bit above the sign that is not part of the address.
        let end = match (register, self.configuration) {
            (Register::From(_), BranchConfiguration::Legacy { format: 3 | 6 }) => 63,
            (Register::From(_), BranchConfiguration::Legacy { format: 4 }) => match writer {
                Writer::Guest if !self.transactional => 63,
                _ => 61,
            },
            (Register::To(_), BranchConfiguration::Legacy { format: 6 }) => return 0,
            (Register::From(_) | Register::To(_), BranchConfiguration::Amd(_)) => return 0,
            (Register::From(_) | Register::To(_), _) => 64,
            _ => return 0,
        };
        let extended = ((value << 7) as i64 >> 7) as u64;
        (value ^ extended) & (u64::MAX >> (64 - end))
    }
}

const _: () = assert!(MAX_RECORDS == 32);
