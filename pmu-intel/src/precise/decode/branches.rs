//! The last branches in a record.

use pmu_core::branches::{Branch, BranchUnit, RawBranch};

use crate::precise::decode::shown::Shown;
use crate::precise::decode::words::Words;

/// The branches in a precise record: the last branches before the sampled instruction, the newest first.
///
/// Each branch is stored in the format of the processor's branch records. [`decoded`](Self::decoded) decodes the
/// branches with the processor's [`BranchUnit`].
#[derive(Clone, Copy, Debug)]
pub struct RecordBranches<'a> {
    words: Words<'a>,
    shown: Shown,
}

impl<'a> RecordBranches<'a> {
    pub(crate) const fn new(words: Words<'a>, shown: Shown) -> Self {
        Self { words, shown }
    }

    /// Returns the undecoded words of each branch, the newest branch first, up to the first empty branch record. If the
    /// sampled event does not count at a privilege level, the iterator leaves out each branch that starts or ends at
    /// this level.
    pub fn raw(self) -> impl Iterator<Item = RawBranch> + 'a {
        let Self { words, shown } = self;
        let branch = move |number: usize| {
            let [from, to, info] = [0, 1, 2].map(|word| words.get(3 * number + word));
            Some(RawBranch { from: from?, to: to?, info: info? })
        };
        let all = (0..words.len() / 3).map_while(branch);
        let filled = all.take_while(|branch| branch.from != 0);
        filled.filter(move |branch| shown.shows(branch.from) && shown.shows(branch.to))
    }

    /// Decodes the branches in the precise record. `unit` describes the processor's branch records.
    ///
    /// ```
    /// use pmu_core::branches::BranchUnit;
    /// use pmu_intel::precise::PreciseRecord;
    /// /// Returns the number of branches before the sampled instruction that were mispredicted.
    /// fn mispredicted(unit: &BranchUnit, record: &PreciseRecord<'_>) -> Option<usize> {
    ///     let branches = record.branches()?.decoded(unit);
    ///     Some(branches.filter(|branch| branch.mispredicted == Some(true)).count())
    /// }
    /// # let _ = mispredicted;
    /// ```
    pub fn decoded(self, unit: &'a BranchUnit) -> impl Iterator<Item = Branch> + 'a {
        self.raw().filter_map(|branch| unit.decode(branch))
    }
}
