//! A recorded branch.

use crate::branches::kind::BranchKind;

/// One recorded branch. What the processor's format of records does not tell is `None`.
///
/// ```
/// use pmu_core::{Branch, BranchKind};
/// /// The part of mispredicted branches among those of which the format tells.
/// fn mispredicted(branches: impl Iterator<Item = Branch>) -> (u32, u32) {
///     branches.filter_map(|branch| branch.mispredicted).fold((0, 0), |(missed, all), is_missed| {
///         (missed + u32::from(is_missed), all + 1)
///     })
/// }
/// let branch = |missed| Branch { from: 0x1000, to: 0x2000, mispredicted: missed, ..Branch::default() };
/// assert_eq!(mispredicted([branch(Some(true)), branch(Some(false)), branch(None)].into_iter()), (1, 2));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Branch {
    /// Address of the branch instruction. Where the processor fuses a compare with the branch, it may be the address of
    /// the compare. After an interrupt or exception, it is the address at which the execution was interrupted.
    ///
    /// Some early processors record offsets in the code segment instead of linear addresses.
    pub from: u64,
    /// Address of the target.
    pub to: u64,
    /// Whether the branch was mispredicted.
    pub mispredicted: Option<bool>,
    /// Core cycles since the previous recorded branch, or `u16::MAX` and more.
    pub cycles: Option<u16>,
    /// The kind of the branch.
    pub kind: Option<BranchKind>,
    /// Whether the branch retired.
    pub path: Option<BranchPath>,
    /// The branch's part in a transaction (TSX).
    pub transaction: Option<BranchTransaction>,
    /// Events since the previous recorded branch on general counters 0 to 3, at most 3 of each counter: 3 means 3 or
    /// more. Only events whose select asks for it are counted.
    pub events: Option<[u8; 4]>,
}

/// Whether a recorded branch was on the path that the program took. (APM vol. 2, "Last Branch Stack Registers": the
/// valid and speculative bits of a record.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum BranchPath {
    /// The branch was on the right path, and was not executed speculatively.
    Correct,
    /// The branch was executed speculatively, and was on the right path.
    Speculative,
    /// The branch was executed speculatively, on a path that the program did not take.
    Wrong,
}

/// Part of a recorded branch in a transaction. (SDM vol. 3B, "LBR Stack and TSX".)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct BranchTransaction {
    /// The branch was in a transaction.
    pub inside: bool,
    /// The branch is the abort of a transaction.
    pub aborted: bool,
}

/// A recorded branch as the processor's registers hold it. [`BranchUnit::decode`](crate::BranchUnit::decode) turns the
/// words into a [`Branch`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RawBranch {
    /// Word of the register with the branch's address.
    pub from: u64,
    /// Word of the register with the target's address. 0 if the format has no such register.
    pub to: u64,
    /// Word of the register with further information. 0 if the format has no such register.
    pub info: u64,
}
