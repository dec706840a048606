//! The outcome of a sampled branch.

/// The outcome of a sampled branch instruction.
///
/// ```
/// use pmu_core::precise::{BranchOutcome, PreciseSample};
/// /// Adds a sample to the numbers of branches and of mispredicted branches.
/// fn count(sample: &PreciseSample, [branches, mispredicted]: &mut [u64; 2]) {
///     if let Some(branch) = sample.branch {
///         *branches += 1;
///         *mispredicted += u64::from(branch.mispredicted);
///     }
/// }
/// let mut numbers = [0; 2];
/// let branch = BranchOutcome { taken: true, mispredicted: true, ..BranchOutcome::default() };
/// count(&PreciseSample { branch: Some(branch), ..PreciseSample::default() }, &mut numbers);
/// assert_eq!(numbers, [1, 1]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct BranchOutcome {
    /// The branch was taken.
    pub taken: bool,
    /// The processor mispredicted whether the branch is taken, or mispredicted the target of the branch.
    pub mispredicted: bool,
    /// The branch is a return from a subroutine.
    pub is_return: bool,
    /// Linear address of the target, if the branch was taken and the processor records targets.
    pub target: Option<u64>,
}
