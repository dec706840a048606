//! The outcome of a sampled branch.

/// The outcome of a branch instruction that was sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct BranchOutcome {
    /// The branch was taken.
    pub taken: bool,
    /// The processor predicted another outcome or another target.
    pub mispredicted: bool,
    /// The branch is a return from a subroutine.
    pub is_return: bool,
    /// Linear address of the target, if the branch was taken and the processor records targets.
    pub target: Option<u64>,
}
