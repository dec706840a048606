//! The registers of instruction-based sampling.

use crate::ibs::virtual_ibs::VirtualIbs;
use crate::pmu::facility::Writer;
use crate::pmu::rows::{FacilityRow, Register, Rows};
use crate::registers::list::RegisterKind;
use crate::registers::row::WriteAs::{Kept, Refused};
use crate::registers::row::when;

/// Number of registers.
pub(crate) const REGISTERS: usize = 16;

/// Places of registers, in the order of their addresses.
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

type Row = FacilityRow<VirtualIbs>;

const IBS: &str = "APM vol. 2, Instruction-Based Sampling";

impl Rows for VirtualIbs {
    const KIND: RegisterKind = RegisterKind::InstructionSampling;

    /// The bits that a sample sets are legal, so that a control register can be written back.
    #[rustfmt::skip]
    const ROWS: &'static [Row] = &[
        Row::new(0xC001_1030, FETCH_CTL, "IBS_FETCH_CTL", IBS).when(|ibs| ibs.has(1)).legal(Self::legal_fetch),
        Row::new(0xC001_1031, FETCH_LINADDR, "IBS_FETCH_LINADDR", IBS).when(|ibs| ibs.has(1)),
        Row::new(0xC001_1032, FETCH_PHYSADDR, "IBS_FETCH_PHYSADDR", IBS).when(|ibs| ibs.has(1)),
        Row::new(0xC001_1033, OP_CTL, "IBS_OP_CTL", IBS).when(|ibs| ibs.has(2)).legal(Self::legal_op),
        Row::new(0xC001_1034, OP_RIP, "IBS_OP_RIP", IBS).when(|ibs| ibs.has(2)),
        Row::new(0xC001_1035, OP_DATA, "IBS_OP_DATA", IBS).when(|ibs| ibs.has(2)),
        Row::new(0xC001_1036, OP_DATA2, "IBS_OP_DATA2", IBS).when(|ibs| ibs.has(2)),
        Row::new(0xC001_1037, OP_DATA3, "IBS_OP_DATA3", IBS).when(|ibs| ibs.has(2)),
        Row::new(0xC001_1038, DC_LINADDR, "IBS_DC_LINADDR", IBS).when(|ibs| ibs.has(2)),
        Row::new(0xC001_1039, DC_PHYSADDR, "IBS_DC_PHYSADDR", IBS).when(|ibs| ibs.has(2)),
        // Firmware's: a host restores the value that is there.
        Row::new(0xC001_103A, CTL, "IBS_CTL", IBS).legal(|_| 0).write(Refused, Kept),
        Row::new(0xC001_103B, TARGET, "BP_IBSTGT_RIP", IBS).when(|ibs| ibs.has(5)),
        Row::new(0xC001_103C, FETCH_EXTENDED, "IC_IBS_EXTD_CTL", IBS).when(|ibs| ibs.has(9)),
        Row::new(0xC001_103D, OP_DATA4, "IBS_OP_DATA4", IBS).when(|ibs| ibs.has(10)),
        Row::new(0xC001_103E, OP_CTL2, "IBS_OP_CTL2", IBS).when(|ibs| ibs.has(2) && ibs.has(13))
            .legal(|ibs| DISABLE | ibs.when(15, 0b110) | ibs.when(16, 1 << 3)),
        Row::new(0xC001_103F, FETCH_CTL2, "IBS_FETCH_CTL2", IBS).when(|ibs| ibs.has(1) && ibs.has(13))
            .legal(|ibs| DISABLE | ibs.when(14, 0b1_1110) | ibs.when(15, 0b110_0000)),
    ];

    fn held(&self, register: &Register<Self>) -> u64 {
        self.registers[register.row.value % REGISTERS]
    }

    /// A guest's write of a control register restarts the period.
    fn hold(&mut self, writer: Writer, register: &Register<Self>, value: u64) {
        let place = register.row.value % REGISTERS;
        let found = self.registers[place];
        self.registers[place] = value;
        if writer == Writer::Host {
            return;
        }
        let keeps = self.configuration.fetch_count_kept && found & value & FETCH_ENABLE != 0;
        match place {
            FETCH_CTL if keeps => {
                self.registers[place] = value & !FETCH_COUNT | found & FETCH_COUNT
            }
            FETCH_CTL => self.begin_fetches(),
            OP_CTL if !self.has(3) => self.registers[place] = value & !OP_COUNT,
            _ => {}
        }
    }

    fn breaks(&self, _: Writer, register: &Register<Self>, value: u64) -> u64 {
        if register.row.value == CTL && value != self.registers[CTL] { u64::MAX } else { 0 }
    }

    /// A guest's write that disables a unit that still has a period is reported where an erratum forbids this.
    fn reports(&self, writer: Writer, register: &Register<Self>, value: u64) -> u64 {
        let (enable, period, legal) = match register.row.value {
            FETCH_CTL => (FETCH_ENABLE, FETCH_PERIOD, self.legal_fetch()),
            OP_CTL => (OP_ENABLE, OP_PERIOD | OP_PERIOD_HIGH, self.legal_op()),
            _ => return 0,
        };
        let found = self.held(register);
        let stops = found & enable != 0 && value & enable == 0 && found & period != 0;
        let takes = writer == Writer::Guest && value & !legal == 0;
        when(takes && stops && self.configuration.period_before_stop, enable)
    }
}

impl VirtualIbs {
    pub(crate) const fn has(&self, capability: u32) -> bool {
        self.configuration.has(capability)
    }

    const fn when(&self, capability: u32, bits: u64) -> u64 {
        when(self.has(capability), bits)
    }

    pub(crate) const fn legal_fetch(&self) -> u64 {
        u64::MAX >> 5 | self.when(11, FETCH_L3_MISS_ONLY | 1 << 60 | FETCH_L3_MISS)
    }

    const fn legal_op(&self) -> u64 {
        OP_PERIOD
            | OP_ENABLE
            | OP_VALID
            | OP_COUNT
            | self.when(4, OP_COUNTS_OPS)
            | self.when(6, OP_PERIOD_HIGH)
            | self.when(11, OP_L3_MISS_ONLY)
            | self.when(12, OP_LATENCY | OP_LATENCY_FILTER)
    }
}
