//! A recorded branch.

use core::fmt;
use core::ops::{BitAnd, BitOr, Not};

/// One recorded branch. An optional field is `None` if the processor's record format lacks the field.
///
/// ```
/// use pmu_core::branches::{Branch, BranchKind};
/// /// Returns the number of mispredicted branches, and the number of branches whose records tell this.
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
    /// Address of the branch instruction. If the processor fused a compare instruction with the branch, `from` may be
    /// the address of the compare instruction. For an interrupt or exception, `from` is the address at which the
    /// execution was interrupted.
    ///
    /// Some early processors record offsets in the code segment instead of linear addresses.
    pub from: u64,
    /// Address of the target.
    pub to: u64,
    /// `true` if the branch was mispredicted.
    pub mispredicted: Option<bool>,
    /// Core cycles since the previous recorded branch. The value `u16::MAX` stands for `u16::MAX` or more cycles.
    pub cycles: Option<u16>,
    /// The kind of the branch.
    pub kind: Option<BranchKind>,
    /// Tells whether the branch was on the path that the program took.
    pub path: Option<BranchPath>,
    /// Tells whether the branch was in a transaction (TSX), or is the abort of a transaction.
    pub transaction: Option<BranchTransaction>,
    /// Events that the general counters 0 to 3 counted since the previous recorded branch, one element per counter. The
    /// value 3 stands for 3 or more events. An element is always 0 if bit 35 (LBR logging) of its counter's event
    /// select is clear.
    pub events: Option<[u8; 4]>,
}

/// Tells whether a recorded branch was on the path that the program took. Source: APM vol. 2, "Last Branch Stack
/// Registers", valid and speculative bits.
///
/// ```
/// use pmu_core::branches::{Branch, BranchPath};
/// /// The branches that the program took.
/// fn taken(branches: impl Iterator<Item = Branch>) -> impl Iterator<Item = Branch> {
///     branches.filter(|branch| branch.path != Some(BranchPath::Wrong))
/// }
/// # assert_eq!(taken([Branch::default()].into_iter()).count(), 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum BranchPath {
    /// The branch was on the path that the program took, and was not executed speculatively.
    Correct,
    /// The branch was on the path that the program took, and was executed speculatively.
    Speculative,
    /// The branch was on a path that the program did not take, and was executed speculatively.
    Wrong,
}

/// Tells whether a recorded branch was in a transaction, or is the abort of a transaction. Source: SDM vol. 3B, "LBR
/// Stack and TSX".
///
/// ```
/// use pmu_core::branches::Branch;
/// fn is_abort(branch: &Branch) -> bool {
///     branch.transaction.is_some_and(|transaction| transaction.aborted)
/// }
/// # assert!(!is_abort(&Branch::default()));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct BranchTransaction {
    /// The branch was in a transaction.
    pub inside: bool,
    /// The branch is the abort of a transaction.
    pub aborted: bool,
}

/// A recorded branch, as the values of the processor's registers.
/// [`BranchUnit::decode`](crate::branches::BranchUnit::decode) turns these values into a [`Branch`].
///
/// ```
/// use pmu_core::branches::{Branch, BranchUnit, RawBranch};
/// /// Decodes in a task what an interrupt kept of [`Branches::raw`](pmu_core::branches::Branches::raw).
/// fn decode(unit: &BranchUnit, kept: &[RawBranch]) -> impl Iterator<Item = Branch> {
///     kept.iter().filter_map(|record| unit.decode(*record))
/// }
/// # let _ = decode;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RawBranch {
    /// Value of the register that holds the branch instruction's address.
    pub from: u64,
    /// Value of the register that holds the target's address; 0 if the format has no such register.
    pub to: u64,
    /// Value of the register that holds further information on the branch, such as a misprediction; 0 if the format has
    /// no such register.
    pub info: u64,
}

/// Kind of a branch, in filters and in records of branches.
///
/// Sources: SDM vol. 3B, "Last Branch Records", table of the branch types; APM vol. 2, "Last Branch Stack Registers".
///
/// ```
/// use pmu_core::branches::{BranchKind, BranchKinds};
/// assert_eq!(BranchKinds::CALLS, BranchKind::DirectCall.only() | BranchKind::IndirectCall.only());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum BranchKind {
    /// A conditional jump: Jcc, JCXZ, LOOP.
    Conditional,
    /// A near jump to an address in the instruction.
    DirectJump,
    /// A near jump to an address in a register or in memory.
    IndirectJump,
    /// A near call to an address in the instruction.
    DirectCall,
    /// A near call to an address in a register or in memory.
    IndirectCall,
    /// A near return.
    Return,
    /// A far branch: SYSCALL, SYSRET, IRET, a far jump, call or return, an interrupt, an exception, or the abort of a
    /// transaction.
    Other,
}

impl BranchKind {
    /// All kinds, in the order of their declaration.
    pub const ALL: [Self; 7] = [
        Self::Conditional,
        Self::DirectJump,
        Self::IndirectJump,
        Self::DirectCall,
        Self::IndirectCall,
        Self::Return,
        Self::Other,
    ];

    /// Returns the set that contains only this kind.
    pub const fn only(self) -> BranchKinds {
        BranchKinds(1 << self as u8)
    }
}

/// A set of kinds of branches.
///
/// ```
/// use pmu_core::branches::{BranchKind, BranchKinds};
/// let kinds = BranchKinds::CALLS | BranchKind::Return.only();
/// assert!(kinds.contains(BranchKind::IndirectCall) && !kinds.contains(BranchKind::Conditional));
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct BranchKinds(u8);

impl BranchKinds {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// Every kind.
    pub const ALL: Self = Self((1 << BranchKind::ALL.len()) - 1);

    /// Near calls, direct and indirect.
    pub const CALLS: Self = BranchKind::DirectCall.only().union(BranchKind::IndirectCall.only());

    /// Near calls and near returns: the branches of a call stack.
    pub const CALLS_AND_RETURNS: Self = Self::CALLS.union(BranchKind::Return.only());

    /// Returns the union of the two sets. The operator `|` does the same.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    pub(crate) const fn of_bits(bits: u8) -> Self {
        Self(bits & Self::ALL.0)
    }

    /// Returns whether the set contains the kind.
    pub const fn contains(self, kind: BranchKind) -> bool {
        self.0 & kind.only().0 != 0
    }

    /// Returns whether the set contains every kind of `other`.
    ///
    /// ```
    /// use pmu_core::branches::BranchKinds;
    /// assert!(BranchKinds::CALLS_AND_RETURNS.contains_all(BranchKinds::CALLS));
    /// ```
    pub const fn contains_all(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    /// Returns whether the set contains no kind.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the kinds of the set, in the order of their declaration.
    ///
    /// ```
    /// use pmu_core::branches::{BranchKind, BranchKinds};
    /// assert!(BranchKinds::CALLS.iter().eq([BranchKind::DirectCall, BranchKind::IndirectCall]));
    /// ```
    pub fn iter(self) -> impl Iterator<Item = BranchKind> {
        BranchKind::ALL.into_iter().filter(move |kind| self.contains(*kind))
    }
}

impl BitOr for BranchKinds {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl BitAnd for BranchKinds {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl Not for BranchKinds {
    type Output = Self;

    fn not(self) -> Self {
        Self(Self::ALL.0 & !self.0)
    }
}

impl fmt::Debug for BranchKinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
