//! The legacy last-branch stacks.

use pmu_core::access::{RegisterAddress, RegisterBits};
use pmu_core::branches::{
    Branch, BranchEnable, BranchFilter, BranchFormat, BranchFreeze, BranchKind, BranchOffers,
    BranchOrder, BranchRegisters, BranchTransaction, BranchUnit, RawBranch,
};
use pmu_core::error::NoFacility;
use pmu_core::x86::Snapshot;

use crate::cpuid::ArchitecturalPerfmon;
use crate::cpuid::is_among;
use crate::registers::{
    DebugCtl, IA32_DEBUGCTL, IA32_PERF_GLOBAL_OVF_CTRL, LbrInfo, LbrSelect,
    MSR_LASTBRANCH_0_FROM_IP, MSR_LASTBRANCH_0_FROM_IP_CORE, MSR_LASTBRANCH_0_TO_IP,
    MSR_LASTBRANCH_0_TO_IP_CORE, MSR_LASTBRANCH_TOS, MSR_LBR_INFO_0, MSR_LBR_SELECT,
    STATUS_LBR_FRZ,
};

/// `IA32_DEBUGCTL.LBR`.
const LBR: u64 = DebugCtl::new().with_lbr(true).into_bits();

/// `IA32_DEBUGCTL.FREEZE_LBRS_ON_PMI`.
const FREEZE: u64 = DebugCtl::new().with_freeze_lbrs_on_pmi(true).into_bits();

/// Returns the legacy stack of a processor whose `IA32_PERF_CAPABILITIES` has this format.
pub(crate) fn unit(processor: &Snapshot, format: u8) -> Result<BranchUnit, NoFacility> {
    let (family, model) = (processor.family(), processor.model());
    // No known model has format 0: hypervisors hide the stack by it.
    let format = match LbrFormat::of_number(format) {
        None | Some(LbrFormat::Bits32) => return Err(NoFacility::NotDeclared),
        Some(LbrFormat::Linear) if family == 6 && is_among(model, &KNIGHTS) => LbrFormat::FromFlags,
        Some(format) => format,
    };
    let stack = Stack::of(processor).ok_or(NoFacility::UnknownModel { family, model })?;
    if never_freezes(processor) {
        return Err(NoFacility::Erratum);
    }
    let transactions = has_transactions(processor);
    let has_tsx_bits = matches!(format, LbrFormat::FromTsxFlags | LbrFormat::Info);
    let mispredicted = !matches!(format, LbrFormat::Linear | LbrFormat::Effective);
    let offers = BranchOffers {
        levels: stack.select != Select::None,
        kinds: stack.select == Select::SandyBridge,
        call_stack: stack.call_stack,
        mispredicted,
        cycles: format.has_info() || format == LbrFormat::ToCycles,
        kind: false,
        transaction: transactions && has_tsx_bits,
        events: 0,
        address_bits: 64,
    };
    let (from, to) = if stack.core_addresses {
        (MSR_LASTBRANCH_0_FROM_IP_CORE, MSR_LASTBRANCH_0_TO_IP_CORE)
    } else {
        (MSR_LASTBRANCH_0_FROM_IP, MSR_LASTBRANCH_0_TO_IP)
    };
    // SAFETY: (1) the bit records branches in registers; (2) a filter and an index.
    let (bits, filter, top) = unsafe {
        let bits = RegisterBits::new(IA32_DEBUGCTL, LBR);
        (bits, RegisterAddress::new(MSR_LBR_SELECT), RegisterAddress::new(MSR_LASTBRANCH_TOS))
    };
    let registers = BranchRegisters {
        enable: BranchEnable::Bits { bits, on: LBR, off: 0 },
        filter: (stack.select != Select::None).then_some(filter),
        select: stack.select.function(),
        depth: None,
        freeze: freeze(ArchitecturalPerfmon::from_snapshot(processor).version()),
        order: BranchOrder::Ring(top),
        from,
        to: Some(to),
        info: format.has_info().then_some(MSR_LBR_INFO_0),
        step: 1,
    };
    let is_haswell = family == 6 && is_among(model, &HASWELL);
    let functions = match format {
        LbrFormat::FromTsxFlags if !transactions => &WITHOUT_TSX,
        LbrFormat::FromTsxFlags if is_haswell => &WITH_DOUBLED_ABORTS,
        format => format.format(),
    };
    // SAFETY: records of branches, which the processor writes and never follows.
    let unit = unsafe { BranchUnit::new(registers, stack.depth, functions, offers) };
    unit.ok_or(NoFacility::ImplausibleDepth(stack.depth))
}

/// Returns how a version of architectural performance monitoring freezes the records. Versions 2 and 3 clear the enable
/// bit instead of setting a status (SDM vol. 3B, "Freezing LBR and Performance Counters on PMI").
pub(crate) fn freeze(version: u8) -> Option<BranchFreeze> {
    if version < 2 {
        return None;
    }
    // SAFETY: (1) the bit freezes the records, and no more; (2) the register clears bits of a status.
    let (bit, release) = unsafe {
        (RegisterBits::new(IA32_DEBUGCTL, FREEZE), RegisterAddress::new(IA32_PERF_GLOBAL_OVF_CTRL))
    };
    Some(BranchFreeze { bit, status: (version >= 4).then_some((STATUS_LBR_FRZ, release)) })
}

/// The filter of a legacy stack, by generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Select {
    /// There is no filter.
    None,
    /// Some kinds are recorded only together with others: Nehalem, Westmere, Silvermont.
    Nehalem,
    /// Each kind by itself: from Sandy Bridge on.
    SandyBridge,
}

impl Select {
    /// Returns the function that turns a selection of branches into the register's value.
    pub(crate) fn function(self) -> fn(&BranchOffers, BranchFilter) -> (u64, BranchFilter) {
        match self {
            Self::None => none,
            Self::Nehalem => nehalem,
            Self::SandyBridge => sandy_bridge,
        }
    }
}

/// Returns whether the processor has transactions: SDM vol. 2A, CPUID leaf 7, EBX bits 4 (HLE) and 11 (RTM).
pub(crate) fn has_transactions(processor: &Snapshot) -> bool {
    processor.leaf(7, 0).ebx & (1 << 4 | 1 << 11) != 0
}

/// Without a filter everything is recorded.
fn none(_: &BranchOffers, _: BranchFilter) -> (u64, BranchFilter) {
    (0, BranchFilter::ALL)
}

/// Nehalem's and Westmere's erratum: direct calls are recorded only together with near jumps of both kinds, indirect
/// calls with indirect jumps, and returns with near jumps and far branches.
fn nehalem(offers: &BranchOffers, filter: BranchFilter) -> (u64, BranchFilter) {
    let mut kinds = filter.kinds();
    let jumps = BranchKind::DirectJump.only() | BranchKind::IndirectJump.only();
    if filter.has(BranchKind::DirectCall) {
        kinds = kinds | jumps;
    }
    if filter.has(BranchKind::IndirectCall) {
        kinds = kinds | BranchKind::IndirectJump.only();
    }
    if filter.has(BranchKind::Return) {
        kinds = kinds | jumps | BranchKind::Other.only();
    }
    sandy_bridge(offers, filter.only(kinds))
}

/// Selects each kind by itself.
fn sandy_bridge(_: &BranchOffers, filter: BranchFilter) -> (u64, BranchFilter) {
    let suppressed = LbrSelect::from_bits(filter.excluded());
    (suppressed.with_en_callstack(filter.is_call_stack()).into_bits(), filter)
}

// Depth and registers of the legacy stacks, by processor model. No register or CPUID leaf declares the depth and the
// registers.

/// The legacy stack of some models of family 6.
pub(crate) struct Stack {
    pub(crate) models: &'static [u8],
    pub(crate) depth: u8,
    /// The records are at the addresses of Core 2, which later processors changed.
    pub(crate) core_addresses: bool,
    pub(crate) select: Select,
    pub(crate) call_stack: bool,
}

/// Haswell, which records an abort twice.
pub(crate) const HASWELL: [u8; 4] = [0x3C, 0x3F, 0x45, 0x46];

/// Knights Landing and Knights Mill, which report format 1 and have format 3.
pub(crate) const KNIGHTS: [u8; 2] = [0x57, 0x85];

/// Bonnell, whose records do not freeze before stepping 10.
const BONNELL: u8 = 0x1C;

/// The stacks from Core 2 on. (SDM vol. 4, the tables of the models' registers; the grouping is that of Linux perf.)
static STACKS: [Stack; 9] = [
    // Core 2.
    Stack {
        models: &[0x0F, 0x16, 0x17, 0x1D],
        depth: 4,
        core_addresses: true,
        select: Select::None,
        call_stack: false,
    },
    // Bonnell.
    Stack {
        models: &[BONNELL, 0x26, 0x27, 0x35, 0x36],
        depth: 8,
        core_addresses: true,
        select: Select::None,
        call_stack: false,
    },
    // Silvermont, Airmont.
    Stack {
        models: &[0x37, 0x4A, 0x4D, 0x5D, 0x4C, 0x5A, 0x75],
        depth: 8,
        core_addresses: true,
        select: Select::Nehalem,
        call_stack: false,
    },
    Stack {
        models: &KNIGHTS,
        depth: 8,
        core_addresses: false,
        select: Select::SandyBridge,
        call_stack: false,
    },
    // Nehalem, Westmere.
    Stack {
        models: &[0x1A, 0x1E, 0x1F, 0x2E, 0x25, 0x2C, 0x2F],
        depth: 16,
        core_addresses: false,
        select: Select::Nehalem,
        call_stack: false,
    },
    // Sandy Bridge, Ivy Bridge.
    Stack {
        models: &[0x2A, 0x2D, 0x3A, 0x3E],
        depth: 16,
        core_addresses: false,
        select: Select::SandyBridge,
        call_stack: false,
    },
    // Haswell, Broadwell.
    Stack {
        models: &[0x3C, 0x3F, 0x45, 0x46, 0x3D, 0x47, 0x4F, 0x56],
        depth: 16,
        core_addresses: false,
        select: Select::SandyBridge,
        call_stack: true,
    },
    // Skylake to Rocket Lake.
    Stack {
        models: &[
            0x4E, 0x5E, 0x55, 0x8E, 0x9E, 0xA5, 0xA6, 0x66, 0x7D, 0x7E, 0x6A, 0x6C, 0x9D, 0x8C,
            0x8D, 0xA7,
        ],
        depth: 32,
        core_addresses: false,
        select: Select::SandyBridge,
        call_stack: true,
    },
    // Goldmont, Goldmont Plus, Tremont, Lakefield.
    Stack {
        models: &[0x5C, 0x5F, 0x7A, 0x86, 0x96, 0x9C, 0x8A],
        depth: 32,
        core_addresses: false,
        select: Select::SandyBridge,
        call_stack: false,
    },
];

impl Stack {
    /// Returns the stack of a processor, if its model is known.
    pub(crate) fn of(processor: &Snapshot) -> Option<&'static Self> {
        let (family, model) = (processor.family(), processor.model());
        let has = |stack: &&Self| family == 6 && is_among(model, stack.models);
        STACKS.iter().find(has)
    }
}

/// Returns whether the processor's records do not freeze, though it says that they do: Bonnell before stepping 10.
pub(crate) fn never_freezes(processor: &Snapshot) -> bool {
    processor.family() == 6 && processor.model() == BONNELL && processor.stepping() < 10
}

/// Format of legacy branch records, as in bits 5:0 of `IA32_PERF_CAPABILITIES` (SDM vol. 3B, "LBR Stack and 64-bit
/// Addresses").
///
/// ```
/// use pmu_core::branches::{BranchOffers, RawBranch};
/// use pmu_intel::LbrFormat;
/// // Format 3: bit 63 says that the branch was mispredicted.
/// let record = RawBranch { from: 0xFFFF_FFFF_8100_1234, to: 0xFFFF_FFFF_8100_2000, info: 0 };
/// let branch = LbrFormat::FromFlags.decode(&BranchOffers::default(), record).unwrap();
/// assert_eq!((branch.from, branch.mispredicted), (0xFFFF_FFFF_8100_1234, Some(true)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum LbrFormat {
    /// Format 0: one register holds both addresses, which are 32 bits wide.
    Bits32,
    /// Format 1: linear addresses.
    Linear,
    /// Format 2: effective addresses.
    Effective,
    /// Format 3: bit 63 of FROM is the misprediction flag.
    FromFlags,
    /// Format 4: bit 63 of FROM is the misprediction flag, and bits 62:61 are the transaction flags.
    FromTsxFlags,
    /// Format 5: the INFO register has the misprediction flag, the transaction flags and the cycle count.
    Info,
    /// Format 6: bit 63 of FROM is the misprediction flag, and bits 63:48 of TO are the cycle count.
    ToCycles,
    /// Format 7: the INFO register has the misprediction flag and the cycle count.
    InfoWithoutTsx,
}

impl LbrFormat {
    /// All formats of legacy branch records, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Bits32,
        Self::Linear,
        Self::Effective,
        Self::FromFlags,
        Self::FromTsxFlags,
        Self::Info,
        Self::ToCycles,
        Self::InfoWithoutTsx,
    ];

    /// Returns the format with this number in `IA32_PERF_CAPABILITIES`, or `None` if this crate does not know the
    /// number.
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Returns whether branch records of this format have an INFO register.
    pub const fn has_info(self) -> bool {
        matches!(self, Self::Info | Self::InfoWithoutTsx)
    }

    /// Decodes a branch record of this format. Returns `None` for an empty record. `offers.transaction` says whether
    /// the processor supports transactions. If `offers.transaction` is `false`, the method ignores the record's
    /// transaction bits.
    pub fn decode(self, offers: &BranchOffers, record: RawBranch) -> Option<Branch> {
        (self.format().decode)(offers, record)
    }

    /// Returns the functions of the format.
    pub(crate) fn format(self) -> &'static BranchFormat {
        &FORMATS[self as usize]
    }
}

/// Format 4 on Haswell, which records the abort of a transaction twice.
pub(crate) static WITH_DOUBLED_ABORTS: BranchFormat =
    BranchFormat { doubles_aborts: true, ..of("LBR format 4, Haswell", from_tsx_flags) };

/// Format 4 without transactions.
pub(crate) static WITHOUT_TSX: BranchFormat =
    BranchFormat { writable: with_sign, ..of("LBR format 4, no TSX", from_tsx_flags) };

static FORMATS: [BranchFormat; LbrFormat::ALL.len()] = [
    of("LBR format 0", bits_32),
    of("LBR format 1", plain),
    of("LBR format 2", plain),
    of("LBR format 3", from_flags),
    of("LBR format 4", from_tsx_flags),
    of("LBR format 5", info),
    of("LBR format 6", to_cycles),
    of("LBR format 7", info_without_tsx),
];

type Decode = fn(&BranchOffers, RawBranch) -> Option<Branch>;

/// Returns a format of Intel's: an empty record ends the records, and records are written back as they were read.
pub(crate) const fn of(name: &'static str, decode: Decode) -> BranchFormat {
    let is_end = |record: RawBranch| record.from == 0;
    BranchFormat { name, decode, is_end, writable: |record| record, doubles_aborts: false }
}

fn bits_32(_: &BranchOffers, record: RawBranch) -> Option<Branch> {
    let (from, to) = (record.from & 0xFFFF_FFFF, record.from >> 32);
    (record.from != 0).then_some(Branch { from, to, ..Branch::default() })
}

fn plain(_: &BranchOffers, record: RawBranch) -> Option<Branch> {
    let RawBranch { from, to, .. } = record;
    (from != 0).then_some(Branch { from, to, ..Branch::default() })
}

fn from_flags(offers: &BranchOffers, record: RawBranch) -> Option<Branch> {
    let mispredicted = Some(record.from >> 63 != 0);
    plain(offers, record).map(|branch| Branch {
        from: extended(record.from, 63),
        mispredicted,
        ..branch
    })
}

fn from_tsx_flags(offers: &BranchOffers, record: RawBranch) -> Option<Branch> {
    let from = record.from;
    let transaction = transaction(offers, from >> 62 & 1 != 0, from >> 61 & 1 != 0);
    from_flags(offers, record).map(|branch| Branch {
        from: extended(from, 61),
        transaction,
        ..branch
    })
}

fn info(offers: &BranchOffers, record: RawBranch) -> Option<Branch> {
    let info = LbrInfo::from_bits(record.info);
    let transaction = transaction(offers, info.in_tsx(), info.tsx_abort());
    info_without_tsx(offers, record).map(|branch| Branch { transaction, ..branch })
}

fn info_without_tsx(offers: &BranchOffers, record: RawBranch) -> Option<Branch> {
    let info = LbrInfo::from_bits(record.info);
    let (mispredicted, cycles) = (Some(info.mispredicted()), Some(info.cycle_count()));
    plain(offers, record).map(|branch| Branch { mispredicted, cycles, ..branch })
}

fn to_cycles(offers: &BranchOffers, record: RawBranch) -> Option<Branch> {
    let (to, cycles) = (extended(record.to, 48), Some((record.to >> 48) as u16));
    from_flags(offers, record).map(|branch| Branch { to, cycles, ..branch })
}

/// Returns an address of so many bits, with the sign above them.
const fn extended(word: u64, bits: u32) -> u64 {
    ((word << (64 - bits)) as i64 >> (64 - bits)) as u64
}

/// Returns what a record tells of transactions, where the processor has them.
pub(crate) fn transaction(
    offers: &BranchOffers,
    inside: bool,
    aborted: bool,
) -> Option<BranchTransaction> {
    offers.transaction.then_some(BranchTransaction { inside, aborted })
}

/// Of format 4, without transactions: bits 62:61 read as 0, and are to be written as the sign, which bits 60:59 have.
fn with_sign(record: RawBranch) -> RawBranch {
    let from = record.from & !(0b11 << 61);
    RawBranch { from: from | (from & 0b11 << 59) << 2, ..record }
}
