//! A branch, as the embedder feeds it.

use crate::events::key::Privilege;

/// Kind of a branch. The vendors' branch filters distinguish these kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum FedBranchKind {
    /// Conditional jump that was taken.
    Conditional,
    /// Near relative jump.
    RelativeJump,
    /// Near indirect jump.
    IndirectJump,
    /// Near relative call.
    RelativeCall,
    /// Near indirect call.
    IndirectCall,
    /// Near return.
    Return,
    /// Far branch, interrupt, exception, system call, or return from one of these.
    Far,
}

/// Tells whether a branch was speculative, and whether the branch retired. Only AMD's branch records contain this
/// information.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum FedPath {
    /// The branch retired, and was not speculative.
    Retired,
    /// The branch was executed speculatively, and retired.
    Speculative,
    /// The branch was executed speculatively, and did not retire. Only AMD's branch records contain such a branch.
    Wrong,
}

/// Relation of a branch to a transaction (TSX). Only Intel's branch records contain this information.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum FedTransaction {
    /// Outside a transaction.
    Outside,
    /// Within a transaction.
    Inside,
    /// The branch is the abort of a transaction.
    Abort,
}

/// Taken branch of the guest. The embedder passes the branch to
/// [`VirtualBranches::record`](crate::branches::VirtualBranches::record).
///
/// ```
/// use pmu_virt::branches::{FedBranch, FedBranchKind};
/// use pmu_virt::Privilege;
/// let branch = FedBranch { mispredicted: true, cycles: Some(12), ..FedBranch::new(
///     0x40_1010, 0x40_1000, FedBranchKind::Conditional, Privilege::User,
/// ) };
/// assert_eq!(branch.counts, [0; 4]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FedBranch {
    /// Linear address of the branch.
    pub from: u64,
    /// Linear address of the target.
    pub to: u64,
    /// Kind of the branch.
    pub kind: FedBranchKind,
    /// Privilege level at which the target of the branch executes. The guest's filter by privilege uses this value.
    pub privilege: Privilege,
    /// The branch was mispredicted.
    pub mispredicted: bool,
    /// Cycles since the previous recorded branch; `None` if unknown.
    pub cycles: Option<u16>,
    /// Tells whether the branch was speculative, and whether the branch retired.
    pub path: FedPath,
    /// Relation of the branch to a transaction.
    pub transaction: FedTransaction,
    /// Number of events since the previous recorded branch, for each of counters 0–3. A branch record stores at most 3
    /// events per counter.
    pub counts: [u8; 4],
}

impl FedBranch {
    /// Describes a correctly predicted branch that retired outside a transaction. The number of cycles since the
    /// previous branch is unknown.
    pub const fn new(from: u64, to: u64, kind: FedBranchKind, privilege: Privilege) -> Self {
        Self {
            from,
            to,
            kind,
            privilege,
            mispredicted: false,
            cycles: None,
            path: FedPath::Retired,
            transaction: FedTransaction::Outside,
            counts: [0; 4],
        }
    }
}
