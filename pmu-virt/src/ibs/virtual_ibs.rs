//! Instruction-based sampling of one virtual processor: creation, reset and interrupt.

use crate::configuration::cpuid::{CpuidLeaf, EAX, ECX};
use crate::pmu::facility::{GuestFacility, Writer};
use crate::pmu::rows::{FacilityRow, Register, Rows, answers_by_rows};
use crate::pmu::virtual_pmu::{PerformanceEntry, PmiOutcome};
use crate::registers::layout::RegisterKind;
use crate::registers::table::WriteAs::{Kept, Refused};
use crate::registers::table::when;

/// Instruction-based sampling (IBS) of one virtual AMD processor. The processor also has a
/// [`VirtualPmu`](crate::VirtualPmu). This type is a [`GuestFacility`](crate::GuestFacility), and answers RDMSR and
/// WRMSR of the IBS registers. The embedder passes fetches to [`fetch`](Self::fetch), and ops to
/// [`execute`](Self::execute). This type counts fetches and ops, and writes a sampled fetch or op to the IBS registers.
///
/// No method allocates or panics. A copy of the value is a snapshot of the complete state, and `==` compares two
/// states.
///
/// ```
/// use pmu_virt::ibs::{FedOp, IbsConfiguration, VirtualIbs};
/// use pmu_virt::{GuestFacility, Read, Writer};
/// let mut ibs = VirtualIbs::new(IbsConfiguration::ZEN_4);
/// // The guest enables op sampling: one op (bit 19) in 160.
/// let _ = ibs.write(Writer::Guest, 0xC001_1033, 1 << 19 | 1 << 17 | 160 >> 4);
/// for instruction in 1..=160 {
///     ibs.execute(&FedOp::new(4 * instruction));
/// }
/// // The last one was tagged. The interrupt comes through the extended entry of IBS_CTL.
/// assert_eq!(ibs.read(0xC001_1034), Read::Value(640));
/// assert!(ibs.interrupt_pending());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualIbs {
    pub(crate) configuration: IbsConfiguration,
    /// The registers, in the order of their addresses.
    pub(crate) registers: [u64; REGISTERS],
    /// The low four bits of the count of fetches, which no register shows.
    pub(crate) fetch_low: u64,
    /// State of the random bits.
    pub(crate) random: u32,
    pub(crate) pending: bool,
}

const _: () = assert!(size_of::<VirtualIbs>() <= 192);

// Any number but 0, which xorshift never leaves.
const SEED: u32 = 0x2545_F491;

impl VirtualIbs {
    /// Creates the state that a guest's instruction-based sampling has after reset.
    pub fn new(configuration: IbsConfiguration) -> Self {
        let mut registers = [0; REGISTERS];
        registers[CTL] = configuration.entry();
        Self { configuration, registers, fetch_low: 0, random: SEED, pending: false }
    }

    /// Returns the configuration of the instruction-based sampling that the guest sees.
    pub fn configuration(&self) -> IbsConfiguration {
        self.configuration
    }

    /// Returns whether the interrupt of a sample is pending. The interrupt stays pending until
    /// [`deliver`](Self::deliver) is called.
    pub fn interrupt_pending(&self) -> bool {
        self.pending
    }

    /// Sets whether the interrupt of a sample is pending. No register says whether the interrupt is pending. So an
    /// embedder that saves the registers one by one must also save [`interrupt_pending`](Self::interrupt_pending).
    pub fn set_interrupt_pending(&mut self, pending: bool) {
        self.pending = pending;
    }

    /// Delivers a pending interrupt through an extended LVT entry. `entry` gives access to the extended LVT entry with
    /// the number [`IbsConfiguration::lvt_entry`]. If this number is `None`, the interrupt is lost.
    ///
    /// If the interrupt controller has no extended entries, do not call this method. Instead, inject an NMI when
    /// [`interrupt_pending`](Self::interrupt_pending) returns `true`, and [clear](Self::set_interrupt_pending) the
    /// pending interrupt.
    ///
    /// ```
    /// use pmu_virt::ibs::{IbsConfiguration, VirtualIbs};
    /// use pmu_virt::{Delivery, PerformanceEntry, PmiOutcome};
    /// struct Entry { value: u32, nmi: bool }
    /// impl PerformanceEntry for Entry {
    ///     fn entry(&self) -> u32 { self.value }
    ///     fn set_entry(&mut self, value: u32) { self.value = value; }
    ///     fn raise(&mut self, delivery: Delivery) { self.nmi |= delivery == Delivery::NonMaskable; }
    /// }
    /// let mut ibs = VirtualIbs::new(IbsConfiguration::ZEN_4);
    /// ibs.set_interrupt_pending(true);
    /// let mut entry = Entry { value: 0x400, nmi: false };
    /// assert_eq!(ibs.deliver(&mut entry), PmiOutcome::Raised(Delivery::NonMaskable));
    /// assert!(entry.nmi && !ibs.interrupt_pending());
    /// ```
    pub fn deliver(&mut self, entry: &mut impl PerformanceEntry) -> PmiOutcome {
        if !core::mem::take(&mut self.pending) {
            return PmiOutcome::NotPending;
        }
        if self.configuration.lvt_entry.is_none() {
            return PmiOutcome::Masked;
        }
        PmiOutcome::through(entry)
    }

    /// Returns whether the guest has enabled fetch sampling or op sampling.
    pub fn is_enabled(&self) -> bool {
        let enabled = |control: usize, enable, second: usize| {
            self.registers[control] & enable != 0 && self.registers[second] & DISABLE == 0
        };
        enabled(FETCH_CTL, FETCH_ENABLE, FETCH_CTL2) || enabled(OP_CTL, OP_ENABLE, OP_CTL2)
    }

    /// Returns the next random bits.
    pub(crate) fn random(&mut self, mask: u64) -> u64 {
        // Marsaglia's xorshift, whose whole state is saved with the guest: a guest that was restored samples the ops
        // that it would have sampled here.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        u64::from(self.random >> 8) & mask
    }

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

/// Configuration of a guest's instruction-based sampling (IBS): CPUID leaf 0x8000001B, the extended LVT entry, and the
/// behavior of particular processor families.
///
/// ```
/// use pmu_virt::ibs::{IbsConfiguration, VirtualIbs};
/// // Zen 4, whose firmware assigned the second extended entry.
/// let ibs = VirtualIbs::new(IbsConfiguration { lvt_entry: Some(1), ..IbsConfiguration::ZEN_4 });
/// assert_eq!(ibs.configuration().capabilities, 0xBFF);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct IbsConfiguration {
    /// Leaf 0x8000001B, EAX. Bit 0 declares that the leaf is valid, bit 1 declares fetch sampling, and bit 2 declares
    /// op sampling.
    pub capabilities: u32,
    /// Number of the extended LVT entry that delivers the interrupt of a sample, 0–15. `None` means that firmware
    /// assigned no entry. The guest can read the number in `IBS_CTL`, but cannot change the number.
    pub lvt_entry: Option<u8>,
    /// A write of `IBS_FETCH_CTL` does not reset the count of fetches if fetch sampling is enabled before and after the
    /// write. Families 16h to 18h behave in this way.
    pub fetch_count_kept: bool,
    /// The guest has to set the period to 0 before the guest disables sampling (erratum 420 of family 10h).
    /// [`Written::illegal`](crate::Written::illegal) reports a write that disables sampling while the period is not 0.
    pub period_before_stop: bool,
}

impl IbsConfiguration {
    /// Instruction-based sampling of Zen 2 and Zen 3, without errata.
    pub const ZEN_3: Self = Self {
        capabilities: 0x3FF,
        lvt_entry: Some(0),
        fetch_count_kept: false,
        period_before_stop: false,
    };
    /// Instruction-based sampling of Zen 4.
    pub const ZEN_4: Self = Self { capabilities: 0xBFF, ..Self::ZEN_3 };
    /// Instruction-based sampling of Zen 5: the features of Zen 4, a filter by the latency of loads, and the size of
    /// the accessed page.
    pub const ZEN_5: Self = Self { capabilities: 0x8_1BFF, ..Self::ZEN_3 };
    /// Instruction-based sampling of Zen 6: the features of Zen 5, a second control register for fetch sampling, and a
    /// second control register for op sampling. The memory profiler (bit 18) is not modeled.
    pub const ZEN_6: Self = Self { capabilities: 0x9_FBFF, ..Self::ZEN_3 };
    /// Instruction-based sampling of family 10h.
    pub const FAMILY_10H: Self =
        Self { capabilities: 0b111, period_before_stop: true, ..Self::ZEN_3 };

    pub(crate) const fn has(&self, bit: u32) -> bool {
        self.capabilities >> bit & 1 != 0
    }

    /// Returns the value of `IBS_CTL`.
    pub(crate) fn entry(&self) -> u64 {
        self.lvt_entry.map_or(0, |entry| 1 << 8 | u64::from(entry & 0xF))
    }

    /// Returns the PMU's leaf with the bits that declare the sampling. The extended entries of the local vector table
    /// belong to the sampling, too.
    pub(crate) fn declared(&self, leaf: CpuidLeaf) -> CpuidLeaf {
        match leaf.leaf {
            0x8000_0000 => leaf.at_least(leaf.at_least.max(0x8000_001B)),
            // Without the extended entries (ExtApicSpace, bit 3), a driver would find no way to get the interrupt of
            // IBS (bit 10).
            0x8000_0001 => leaf.bits(ECX, 1 << 3 | 1 << 10, 1 << 3 | 1 << 10),
            0x8000_001B => leaf.bits(EAX, u32::MAX, self.capabilities),
            _ => leaf,
        }
    }
}

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
        // A guest that is restored continues in the midst of its period.
        if writer == Writer::Host {
            return;
        }
        let keeps = self.configuration.fetch_count_kept && found & value & FETCH_ENABLE != 0;
        match place {
            FETCH_CTL if keeps => {
                self.registers[place] = value & !FETCH_COUNT | found & FETCH_COUNT
            }
            FETCH_CTL => self.begin_fetches(),
            // Without the capability RdWrOpCnt, the count always begins at 0.
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

// A register that the configuration lacks is unhandled here. The PMU has it as one that it does not offer, and answers
// #GP.
impl GuestFacility for VirtualIbs {
    answers_by_rows!();

    fn cpuid(&self, leaf: CpuidLeaf) -> CpuidLeaf {
        self.configuration.declared(leaf)
    }

    fn reset(&mut self) {
        *self = Self::new(self.configuration);
    }
}

/// Result of [`VirtualIbs::next_sample`](crate::ibs::VirtualIbs::next_sample): numbers of events until the next sample.
/// For example, 1 means that the next event is sampled. A field is `None` if no sampling period of the guest is
/// measured in the field's events. After a sample, a field is also `None` until the guest clears the valid bit of the
/// sample in `IBS_OP_CTL` or `IBS_FETCH_CTL`.
///
/// An embedder that does not feed each op or fetch can use these numbers to set a timer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct NextSample {
    /// Number of ops until the next sample, if the period of op sampling counts ops.
    pub ops: Option<u64>,
    /// Number of cycles until the next sample, if the period of op sampling counts cycles.
    pub cycles: Option<u64>,
    /// Number of fetches until the next sample.
    pub fetches: Option<u64>,
}
