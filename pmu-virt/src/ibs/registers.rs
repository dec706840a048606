//! The registers of instruction-based sampling: addresses, names, and legal bits.

use crate::ibs::configuration::IbsConfiguration;

/// Address of the first register, `IBS_FETCH_CTL`.
pub(crate) const FIRST: u32 = 0xC001_1030;

/// Number of addresses, of which one, 0xC001_1032 + 8, is `IBS_CTL`.
pub(crate) const REGISTERS: usize = 16;

/// Places of registers, as distances from [`FIRST`].
pub(crate) const FETCH_CTL: usize = 0x0;
pub(crate) const FETCH_LINADDR: usize = 0x1;
pub(crate) const FETCH_PHYSADDR: usize = 0x2;
pub(crate) const OP_CTL: usize = 0x3;
pub(crate) const OP_RIP: usize = 0x4;
pub(crate) const OP_DATA: usize = 0x5;
pub(crate) const OP_DATA2: usize = 0x6;
pub(crate) const OP_DATA3: usize = 0x7;
pub(crate) const DC_LINADDR: usize = 0x8;
pub(crate) const DC_PHYSADDR: usize = 0x9;
pub(crate) const CTL: usize = 0xA;
pub(crate) const TARGET: usize = 0xB;
pub(crate) const FETCH_EXTENDED: usize = 0xC;
pub(crate) const OP_DATA4: usize = 0xD;
pub(crate) const OP_CTL2: usize = 0xE;
pub(crate) const FETCH_CTL2: usize = 0xF;

/// Names of the registers, in the order of their addresses.
pub(crate) const NAMES: [&str; REGISTERS] = [
    "IBS_FETCH_CTL",
    "IBS_FETCH_LINADDR",
    "IBS_FETCH_PHYSADDR",
    "IBS_OP_CTL",
    "IBS_OP_RIP",
    "IBS_OP_DATA",
    "IBS_OP_DATA2",
    "IBS_OP_DATA3",
    "IBS_DC_LINADDR",
    "IBS_DC_PHYSADDR",
    "IBS_CTL",
    "BP_IBSTGT_RIP",
    "IC_IBS_EXTD_CTL",
    "IBS_OP_DATA4",
    "IBS_OP_CTL2",
    "IBS_FETCH_CTL2",
];

/// `IBS_FETCH_CTL`: period, count, enable, valid, random, and the bits that a sample sets.
pub(crate) const FETCH_PERIOD: u64 = 0xFFFF;
pub(crate) const FETCH_COUNT: u64 = 0xFFFF << 16;
pub(crate) const FETCH_ENABLE: u64 = 1 << 48;
pub(crate) const FETCH_VALID: u64 = 1 << 49;
pub(crate) const FETCH_RANDOM: u64 = 1 << 57;
pub(crate) const FETCH_L3_MISS_ONLY: u64 = 1 << 59;
pub(crate) const FETCH_L3_MISS: u64 = 1 << 61;

/// `IBS_OP_CTL`.
pub(crate) const OP_PERIOD: u64 = 0xFFFF;
pub(crate) const OP_PERIOD_HIGH: u64 = 0x7F << 20;
pub(crate) const OP_L3_MISS_ONLY: u64 = 1 << 16;
pub(crate) const OP_ENABLE: u64 = 1 << 17;
pub(crate) const OP_VALID: u64 = 1 << 18;
pub(crate) const OP_COUNTS_OPS: u64 = 1 << 19;
pub(crate) const OP_COUNT: u64 = 0x7FF_FFFF << 32;
pub(crate) const OP_LATENCY: u64 = 0xF << 59;
pub(crate) const OP_LATENCY_FILTER: u64 = 1 << 63;

/// `IBS_OP_DATA3`: the bits that are reserved if the register has the page size in bits 5:4 (capability 19).
pub(crate) const OP_DATA3_RESERVED: u64 = 1 << 6 | 1 << 19;

/// The disable bit of both second control registers.
pub(crate) const DISABLE: u64 = 1;

const fn when(set: bool, bits: u64) -> u64 {
    if set { bits } else { 0 }
}

impl IbsConfiguration {
    /// Returns the place of the register at an address, if the processor has it.
    pub(crate) const fn locate(&self, address: u32) -> Option<usize> {
        let place = address.wrapping_sub(FIRST) as usize;
        let exists = match place {
            FETCH_CTL..=FETCH_PHYSADDR => self.has(1),
            OP_CTL..=DC_PHYSADDR => self.has(2),
            CTL => true,
            TARGET => self.has(5),
            FETCH_EXTENDED => self.has(9),
            OP_DATA4 => self.has(10),
            OP_CTL2 => self.has(2) && self.has(13),
            FETCH_CTL2 => self.has(1) && self.has(13),
            _ => false,
        };
        if exists { Some(place) } else { None }
    }

    /// Returns the bits that the processor's register has. The bits that a sample sets are among them: a write of
    /// them is legal, so that a control register can be written back.
    pub(crate) const fn legal(&self, place: usize) -> u64 {
        match place {
            FETCH_CTL => {
                let recent = FETCH_L3_MISS_ONLY | 1 << 60 | FETCH_L3_MISS;
                u64::MAX >> 5 | when(self.has(11), recent)
            }
            OP_CTL => {
                OP_PERIOD
                    | OP_ENABLE
                    | OP_VALID
                    | OP_COUNT
                    | when(self.has(4), OP_COUNTS_OPS)
                    | when(self.has(6), OP_PERIOD_HIGH)
                    | when(self.has(11), OP_L3_MISS_ONLY)
                    | when(self.has(12), OP_LATENCY | OP_LATENCY_FILTER)
            }
            CTL => 0,
            OP_CTL2 => DISABLE | when(self.has(15), 0b110) | when(self.has(16), 1 << 3),
            FETCH_CTL2 => DISABLE | when(self.has(14), 0b1_1110) | when(self.has(15), 0b110_0000),
            _ => u64::MAX,
        }
    }

    /// Returns the value of `IBS_CTL`.
    pub(crate) fn entry(&self) -> u64 {
        self.lvt_entry.map_or(0, |entry| 1 << 8 | u64::from(entry & 0xF))
    }
}
