//! Kinds of branches, and sets of them.

use core::fmt;
use core::ops::{BitAnd, BitOr, Not};

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
