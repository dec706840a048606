//! The records of a thread that does not run.

use crate::branches::record::RawBranch;
use crate::branches::unit::BranchFormat;

/// A thread's call stack, saved while the thread does not run. When the thread runs again, the processor continues to
/// record this call stack.
///
/// [`BranchRecorder::switch_out`](crate::branch_recording::BranchRecorder::switch_out) saves the records.
/// [`switch_in`](crate::branch_recording::BranchRecorder::switch_in) restores the records on any processor with the
/// same record format and the same number of records. The kernel commonly stores the value with the thread's registers.
///
/// ```
/// use pmu_core::branches::SavedBranches;
/// struct Thread {
///     call_stack: SavedBranches<32>,
/// }
/// let thread = Thread { call_stack: SavedBranches::new() };
/// # let _ = thread.call_stack;
/// ```
#[derive(Clone, Debug)]
pub struct SavedBranches<const N: usize> {
    pub(crate) records: [RawBranch; N],
    pub(crate) len: u8,
    pub(crate) newest: u8,
    pub(crate) format: Option<&'static BranchFormat>,
}

impl<const N: usize> SavedBranches<N> {
    /// Creates an empty saved call stack.
    pub const fn new() -> Self {
        let empty = RawBranch { from: 0, to: 0, info: 0 };
        Self { records: [empty; N], len: 0, newest: 0, format: None }
    }

    /// Discards the saved records, for example when the thread begins a new program.
    pub fn clear(&mut self) {
        *self = Self::new();
    }

    /// Returns the records, the newest first.
    pub(crate) fn records(&self) -> &[RawBranch] {
        self.records.get(..self.len.into()).unwrap_or_default()
    }
}

impl<const N: usize> Default for SavedBranches<N> {
    fn default() -> Self {
        Self::new()
    }
}
