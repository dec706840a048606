//! The branch records of one virtual processor: creation, reset and freeze.

use crate::branches::configuration::{AmdBranches, BranchConfiguration, MAX_RECORDS};
use crate::branches::record::{RESERVED, Record, info_bits};
use crate::configuration::Configuration;
use crate::configuration::cpuid::CpuidLeaf;
use crate::configuration::error::ConfigurationError;
use crate::configuration::features::IntelFeature;
use crate::pmu::facility::{GuestFacility, Writer};
use crate::pmu::rows::{FacilityRow, Register, Rows, answers_by_rows};
use crate::registers::layout::RegisterKind;
use crate::registers::table::WriteAs::{Cleared, Kept, Refused, Set, Stored, StoredWhole};
use crate::registers::table::when;

/// State of the branch records of one virtual processor. The processor also has a [`VirtualPmu`](crate::VirtualPmu). As
/// a [`GuestFacility`](crate::GuestFacility), this type answers RDMSR and WRMSR of the registers of the branch records.
/// The embedder passes the guest's taken branches to [`record`](Self::record). The guest can make a counter's interrupt
/// freeze the records.
///
/// No method allocates or panics. A copy of the value is a snapshot of the complete state, and `==` compares two
/// states. [`to_bytes`](Self::to_bytes) saves the state.
///
/// ```
/// use pmu_virt::{FedEvents, GuestFacility, Privilege, Read, VirtualPmu};
/// use pmu_virt::branches::{BranchConfiguration, FedBranch, FedBranchKind, VirtualBranches};
/// use pmu_virt::configuration::{Configuration, IntelConfiguration};
/// let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
/// let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
/// let mut branches = VirtualBranches::new(&configuration, BranchConfiguration::ARCHITECTURAL)?;
/// // The guest: FREEZE_LBRS_ON_PMI; then LBREn, and everything in user mode.
/// let _ = pmu.write_beside(&mut branches, 0x1D9, 1 << 11);
/// let _ = pmu.write_beside(&mut branches, 0x14CE, 0x7F << 16 | 1 << 2 | 1);
///
/// let call = FedBranch::new(0x40_1010, 0x40_2000, FedBranchKind::RelativeCall, Privilege::User);
/// branches.record(&call);
/// branches.pmi_raised();
/// branches.record(&FedBranch { from: 0x40_2010, ..call }); // too late
/// assert_eq!(pmu.read_beside(&branches, 0x1500), Read::Value(0x40_1010));
/// assert_eq!(pmu.read_beside(&branches, 0x38E), Read::Value(1 << 58)); // LBR_FRZ
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct VirtualBranches {
    pub(crate) configuration: BranchConfiguration,
    /// Version of Intel's PMU; 0 on AMD.
    pub(crate) version: u8,
    /// The guest has TSX.
    pub(crate) transactional: bool,
    /// Number of records: fixed, or chosen by the guest.
    pub(crate) depth: u8,
    /// Values that the registers share or show, from [`DEBUG`] to [`TOP`].
    pub(crate) words: [u64; WORDS],
    /// The records: the newest first, but by their numbers in a legacy stack.
    pub(crate) records: [Record; MAX_RECORDS],
}

// The README promises this size: a guest pays for its 768 bytes of records, and little else.
const _: () = assert!(size_of::<VirtualBranches>() <= 832);

/// Number of words.
pub(crate) const WORDS: usize = 6;
/// Bits of `IA32_DEBUGCTL` or `DebugCtl`.
pub(crate) const DEBUG: usize = 0;
/// [`FROZEN`], or 0.
pub(crate) const STATUS: usize = 1;
/// Counters whose selects ask for event logging.
pub(crate) const LOGGED: usize = 2;
/// `IA32_LBR_CTL`, or `LBR_SELECT`.
pub(crate) const CONTROL: usize = 3;
/// AMD's `DBG_EXTN_CFG`.
pub(crate) const EXTENSION: usize = 4;
/// Place of the newest record of a legacy stack.
pub(crate) const TOP: usize = 5;

/// `IA32_DEBUGCTL`: LBR, which enables a legacy stack, and FREEZE_LBRS_ON_PMI, of both vendors.
pub(crate) const DEBUG_LBR: u64 = 1 << 0;
pub(crate) const DEBUG_FREEZE: u64 = 1 << 11;
/// LBR_FRZ of the status, of both vendors.
pub(crate) const FROZEN: u64 = 1 << 58;

impl VirtualBranches {
    /// Creates the state that a guest's branch records have after reset. `pmu` is the configuration of the guest's PMU.
    ///
    /// # Errors
    /// A PMU of this configuration cannot have these branch records.
    pub fn new(
        pmu: &Configuration,
        configuration: BranchConfiguration,
    ) -> Result<Self, ConfigurationError> {
        configuration.check(pmu)?;
        let (version, transactional) = match pmu {
            Configuration::Intel(intel) => (intel.version, intel.has(IntelFeature::Transactional)),
            _ => (0, false),
        };
        Ok(Self {
            configuration,
            version,
            transactional,
            depth: configuration.max_depth(),
            words: [0; WORDS],
            records: [Record::EMPTY; MAX_RECORDS],
        })
    }

    /// Returns the configuration of the branch records that the guest sees.
    pub fn configuration(&self) -> BranchConfiguration {
        self.configuration
    }

    /// Returns the number of the guest's branch records. A guest with architectural branch records chooses this number.
    pub fn depth(&self) -> u8 {
        self.depth
    }

    /// Freezes the records if the guest has asked for it. SDM vol. 3B, "Freezing LBR and Performance Counters on PMI":
    /// versions 2 and 3 clear the enable bit, version 4 on sets a bit of the status. AMD's records set the bit.
    pub(crate) fn freeze(&mut self) {
        if self.words[DEBUG] & DEBUG_FREEZE == 0 {
            return;
        }
        if self.has_frozen_bit() {
            self.words[STATUS] = FROZEN;
        } else {
            // No acknowledgement sets the bit again: software of these versions has to.
            self.words[DEBUG] &= !DEBUG_LBR;
        }
    }

    /// Returns whether the status has the bit of frozen records.
    pub(crate) fn has_frozen_bit(&self) -> bool {
        match self.configuration {
            BranchConfiguration::Amd(branches) => branches.freeze,
            _ => self.version >= 4,
        }
    }

    pub(crate) const fn after_reset(&self) -> Self {
        let depth = self.configuration.max_depth();
        Self { depth, words: [0; WORDS], records: [Record::EMPTY; MAX_RECORDS], ..*self }
    }

    const fn is_architectural(&self) -> bool {
        matches!(self.configuration, BranchConfiguration::Architectural(_))
    }

    const fn is_legacy(&self) -> bool {
        matches!(self.configuration, BranchConfiguration::Legacy { .. })
    }

    const fn is_amd(&self) -> bool {
        matches!(self.configuration, BranchConfiguration::Amd(_))
    }

    const fn is_freezing_amd(&self) -> bool {
        matches!(self.configuration, BranchConfiguration::Amd(AmdBranches { freeze: true, .. }))
    }

    const fn numbers(&self) -> u64 {
        (1 << self.configuration.max_depth()) - 1
    }

    fn logged_counters(&self) -> u64 {
        match self.configuration {
            BranchConfiguration::Architectural(branches) => branches.counters.into(),
            _ => 0,
        }
    }

    /// Returns the bits of `IA32_DEBUGCTL`.
    const fn debug_bits(&self) -> u64 {
        if self.is_legacy() { DEBUG_FREEZE | DEBUG_LBR } else { DEBUG_FREEZE }
    }

    fn legal_control(&self) -> u64 {
        match self.configuration {
            BranchConfiguration::Architectural(branches) => {
                1 | when(branches.privilege_filter, 0b110)
                    | when(branches.call_stack, 1 << 3)
                    | when(branches.kind_filter, 0x7F << 16)
            }
            // EN_CALLSTACK since Haswell. Goldmont has none before Goldmont Plus.
            BranchConfiguration::Legacy { format: 4 | 5 | 7 } => 0x3FF,
            _ => 0x1FF,
        }
    }

    fn legal_info(&self) -> u64 {
        match &self.configuration {
            BranchConfiguration::Architectural(branches) => info_bits(branches),
            BranchConfiguration::Legacy { format: 7 } => 1 << 63 | 0xFFFF,
            _ => 0b111 << 61 | 0xFFFF,
        }
    }

    pub(crate) fn has_depth(&self, depth: u64) -> bool {
        let BranchConfiguration::Architectural(branches) = self.configuration else { return false };
        depth.is_multiple_of(8)
            && (8..=32).contains(&depth)
            && branches.depths >> (depth / 8 - 1) & 1 != 0
    }

    /// Returns `IA32_PERF_CAPABILITIES[5:0]`. All bits are 1 of architectural records.
    fn format(&self) -> u64 {
        match self.configuration {
            BranchConfiguration::Legacy { format } => format.into(),
            BranchConfiguration::Architectural(_) => 0x3F,
            BranchConfiguration::Amd(_) => 0,
        }
    }
}

/// Values that are not words: of `IA32_LBR_DEPTH`, `IA32_PERF_CAPABILITIES`, the event selects, and the records.
const DEPTH: usize = WORDS;
const CAPABILITIES: usize = WORDS + 1;
const SELECTS: usize = WORDS + 2;
const FROM: usize = WORDS + 3;
const TO: usize = WORDS + 4;
const INFO: usize = WORDS + 5;

type Row = FacilityRow<VirtualBranches>;

const LBR: &str = "SDM vol. 3B, Last Branch Records";
const LEGACY: &str = "SDM vol. 3B, Last Branch, Interrupt, and Exception Recording";
const STACK: &str = "APM vol. 2, Last Branch Stack Registers";

impl Rows for VirtualBranches {
    const KIND: RegisterKind = RegisterKind::BranchRecords;

    /// A write of the depth clears the records.
    #[rustfmt::skip]
    const ROWS: &'static [Row] = &[
        Row::new(0x14CF, DEPTH, "IA32_LBR_DEPTH", LBR).when(Self::is_architectural).legal(|_| 0x3F),
        Row::new(0x14CE, CONTROL, "IA32_LBR_CTL", LBR).when(Self::is_architectural).legal(Self::legal_control),
        Row::new(0x1500, FROM, "IA32_LBR_x_FROM_IP", LBR).each(1, Self::numbers).when(Self::is_architectural),
        Row::new(0x1600, TO, "IA32_LBR_x_TO_IP", LBR).each(1, Self::numbers).when(Self::is_architectural),
        Row::new(0x1200, INFO, "IA32_LBR_x_INFO", LBR).each(1, Self::numbers).when(Self::is_architectural)
            .legal(Self::legal_info),
        Row::new(0x1C8, CONTROL, "MSR_LBR_SELECT", LEGACY).when(Self::is_legacy).legal(Self::legal_control),
        Row::new(0x1C9, TOP, "MSR_LASTBRANCH_TOS", LEGACY).when(Self::is_legacy).legal(|own| u64::from(own.depth) - 1),
        Row::new(0x680, FROM, "MSR_LASTBRANCH_x_FROM_IP", LEGACY).each(1, Self::numbers).when(Self::is_legacy),
        Row::new(0x6C0, TO, "MSR_LASTBRANCH_x_TO_IP", LEGACY).each(1, Self::numbers).when(Self::is_legacy),
        Row::new(0xDC0, INFO, "MSR_LBR_INFO_x", LEGACY).each(1, Self::numbers)
            .when(|own| matches!(own.configuration, BranchConfiguration::Legacy { format: 5 | 7 }))
            .legal(Self::legal_info),
        // Bits 11 and 12 exist together. AMD's reserved bits are dropped, but for those of a freeze that is absent.
        Row::new(0x1D9, DEBUG, "DebugCtl", STACK).when(Self::is_amd).owned(|_, _| DEBUG_FREEZE | 1 << 12)
            .legal(|own| if own.has_frozen_bit() { DEBUG_FREEZE } else { 0 })
            .faults(|own| if own.has_frozen_bit() { 0 } else { u64::MAX }),
        Row::new(0xC000_010E, CONTROL, "LBR_SELECT", STACK).when(Self::is_amd).legal(Self::legal_control).faults(|_| 0),
        Row::new(0xC000_010F, EXTENSION, "DBG_EXTN_CFG", STACK).when(Self::is_amd).legal(|_| 1 << 6).faults(|_| 0),
        Row::new(0xC001_0300, FROM, "LastBranchStackFromIp", STACK).each(2, Self::numbers).when(Self::is_amd),
        // A host restores a record of erratum 1452, too.
        Row::new(0xC001_0301, TO, "LastBranchStackToIp", STACK).each(2, Self::numbers).when(Self::is_amd)
            .legal(|_| !RESERVED).faults(|_| 0).write(Stored, StoredWhole),
        Row::shared(0x1D9, DEBUG, |own, _| own.debug_bits()).when(|own| !own.is_amd())
            .legal(|own| if own.version < 2 { !DEBUG_FREEZE } else { u64::MAX }),
        Row::shared(0x345, CAPABILITIES, |_, _| 0x3F).when(|own| !own.is_amd()).write(Refused, Kept),
        Row::shared(0x38E, STATUS, |_, _| FROZEN).when(|own| own.version >= 4).write(Refused, Stored),
        Row::shared(0x390, STATUS, |_, _| FROZEN).when(|own| own.version >= 4).write(Cleared, Cleared),
        Row::shared(0x391, STATUS, |_, _| FROZEN).when(|own| own.version >= 4).write(Set, Set),
        Row::shared(0x186, SELECTS, |_, _| SELECT_LOGGED).each(1, Self::logged_counters),
        Row::shared(0x1901, SELECTS, |_, _| SELECT_LOGGED).each(4, Self::logged_counters).when(|own| own.version >= 6),
        Row::shared(0xC000_0300, STATUS, |_, _| FROZEN).when(Self::is_freezing_amd).write(Refused, Stored),
        Row::shared(0xC000_0302, STATUS, |_, _| FROZEN).when(Self::is_freezing_amd).write(Cleared, Cleared),
        Row::shared(0xC000_0303, STATUS, |_, _| FROZEN).when(Self::is_freezing_amd).write(Set, Set),
    ];

    fn held(&self, register: &Register<Self>) -> u64 {
        let record = &self.records[register.number % MAX_RECORDS];
        match register.row.value {
            DEPTH => self.depth.into(),
            CAPABILITIES => self.format(),
            SELECTS => (self.words[LOGGED] >> register.number & 1) << 35,
            FROM => record.from,
            TO => record.to,
            INFO => record.info,
            word => self.words[word % WORDS],
        }
    }

    fn hold(&mut self, _: Writer, register: &Register<Self>, value: u64) {
        let record = &mut self.records[register.number % MAX_RECORDS];
        match register.row.value {
            // Every write clears the records, also of the depth that is there already (SDM vol. 3B, "Last Branch
            // Records").
            DEPTH => (self.depth, self.records) = (value as u8, [Record::EMPTY; MAX_RECORDS]),
            CAPABILITIES => {}
            SELECTS => {
                let others = self.words[LOGGED] & !(1 << register.number);
                self.words[LOGGED] = others | (value >> 35 & 1) << register.number;
            }
            FROM => record.from = value,
            TO => record.to = value,
            INFO => record.info = value,
            word => self.words[word % WORDS] = value,
        }
    }

    /// The words of records beyond the depth that the guest has chosen fault.
    fn is_beyond(&self, register: &Register<Self>) -> bool {
        matches!(register.row.value, FROM..=INFO) && register.number >= usize::from(self.depth)
    }

    /// A depth that the processor lacks is illegal, and the bits by which an address in a word of a record is not
    /// canonical in 57 bits. The host restores what the processor has recorded, which in format 4 a guest cannot write.
    fn breaks(&self, writer: Writer, register: &Register<Self>, value: u64) -> u64 {
        // Formats have flags in the highest bits of a word, which are no part of the address: `end` is the lowest of
        // them.
        let end = match (register.row.value, self.configuration) {
            (DEPTH, _) => return if self.has_depth(value) { 0 } else { u64::MAX },
            (FROM, BranchConfiguration::Legacy { format: 3 | 6 }) => 63,
            (FROM, BranchConfiguration::Legacy { format: 4 }) => match writer {
                Writer::Guest if !self.transactional => 63,
                _ => 61,
            },
            // Cycles are in the upper bits.
            (TO, BranchConfiguration::Legacy { format: 6 }) => return 0,
            (FROM | TO, BranchConfiguration::Amd(_)) => return 0,
            (FROM | TO, _) => 64,
            _ => return 0,
        };
        // 57 bits, of five levels of paging: the widest address that a guest can have.
        let extended = ((value << 7) as i64 >> 7) as u64;
        (value ^ extended) & (u64::MAX >> (64 - end))
    }

    /// The bit by which a write would let a call stack run that freezes is reported: an interrupt near a call or a
    /// return then moves the top of the stack once too often. Processors take the write.
    fn reports(&self, _: Writer, register: &Register<Self>, value: u64) -> u64 {
        let word = register.row.value;
        if !matches!(word, CONTROL | DEBUG) {
            return 0;
        }
        let mut after = *self;
        after.words[word] = value;
        let (enabled, call_stack) = match self.configuration {
            BranchConfiguration::Legacy { .. } => (after.words[DEBUG] & DEBUG_LBR != 0, 1 << 9),
            _ => (after.words[CONTROL] & 1 != 0, 1 << 3),
        };
        let freezes = after.words[DEBUG] & DEBUG_FREEZE != 0;
        match word {
            _ if !(enabled && freezes && after.is_call_stack()) => 0,
            DEBUG => DEBUG_FREEZE,
            _ => call_stack,
        }
    }
}

const _: () = assert!(MAX_RECORDS == 32);

/// An event select of counter 0–3: the counter's events are logged.
const SELECT_LOGGED: u64 = 1 << 35;

impl GuestFacility for VirtualBranches {
    answers_by_rows!();

    fn cpuid(&self, leaf: CpuidLeaf) -> CpuidLeaf {
        self.configuration.declared(leaf)
    }

    fn pmi_raised(&mut self) {
        self.freeze();
    }

    fn reset(&mut self) {
        *self = self.after_reset();
    }
}
