//! The formats of legacy branch records, by their numbers in `IA32_PERF_CAPABILITIES`.

use pmu_core::branches::{Branch, BranchFormat, BranchOffers, BranchTransaction, RawBranch};

use crate::registers::LbrInfo;

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

    /// Decodes a branch record of this format. Returns `None` for an empty record. `offers.transaction` tells whether
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
