//! The records of a trace buffer.

use core::sync::atomic::AtomicU64;

use pmu_core::branches::Branch;

use crate::precise::decode::shown::Shown;
use crate::precise::decode::words::Words;

/// Words of a record: FROM, TO, flags. (Bit 4 of the flags tells a right prediction on Pentium 4 only.)
pub(crate) const RECORD: usize = 3;

/// Iterator over the branches in a trace buffer, the oldest first.
///
/// The iterator does not check the branches' addresses: an address may have any value. The iterator does not return an
/// incomplete record at the end of the buffer.
///
/// ```
/// use pmu_intel::branch_trace::TracedBranches;
/// let words: [u64; 3] = [0x40_1000, 0x40_2000, 0];
/// let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
/// let branch = TracedBranches::from_bytes(&bytes).next().unwrap();
/// assert_eq!((branch.from, branch.to), (0x40_1000, 0x40_2000));
/// ```
#[derive(Clone, Debug)]
pub struct TracedBranches<'a> {
    rest: Words<'a>,
    shown: Shown,
    hidden: u32,
}

impl<'a> TracedBranches<'a> {
    /// Returns the branches in a copy of a trace buffer. `bytes` starts at the first byte of the buffer.
    pub const fn from_bytes(bytes: &'a [u8]) -> Self {
        Self::new(Words::Bytes(bytes))
    }

    /// Returns the branches in a trace buffer to which a processor writes.
    pub const fn from_words(words: &'a [AtomicU64]) -> Self {
        Self::new(Words::Shared(words))
    }

    const fn new(rest: Words<'a>) -> Self {
        Self { rest, shown: Shown::ALL, hidden: 0 }
    }

    /// Restricts the iterator to some privilege levels. If `user` is `false`, the iterator leaves out each branch from
    /// or to user mode. If `kernel` is `false`, the iterator leaves out each branch from or to the kernel. A branch
    /// between the kernel and user mode is returned only if both arguments are `true`, because the branch reveals an
    /// address of the kernel.
    ///
    /// ```
    /// use pmu_intel::branch_trace::TracedBranches;
    /// // A branch within user mode, and a system call.
    /// let words = [0x40_1000, 0x40_2000, 0, 0x40_2010, 0xFFFF_FFFF_8100_0000_u64, 0];
    /// let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    /// let mut branches = TracedBranches::from_bytes(&bytes).limited_to(true, false);
    /// assert_eq!(branches.by_ref().count(), 1);
    /// assert_eq!(branches.hidden(), 1);
    /// ```
    #[must_use]
    pub const fn limited_to(self, user: bool, kernel: bool) -> Self {
        let shown = Shown { user: user && self.shown.user, kernel: kernel && self.shown.kernel };
        Self { shown, ..self }
    }

    /// Returns the number of branches that this iterator has left out so far because of their privilege levels.
    pub const fn hidden(&self) -> u32 {
        self.hidden
    }
}

impl Iterator for TracedBranches<'_> {
    type Item = Branch;

    fn next(&mut self) -> Option<Branch> {
        loop {
            let record = self.rest.range(0, RECORD)?;
            self.rest = self.rest.after(RECORD);
            let (from, to) = (record.get(0)?, record.get(1)?);
            if self.shown.shows(from) && self.shown.shows(to) {
                return Some(Branch { from, to, ..Branch::default() });
            }
            self.hidden = self.hidden.saturating_add(1);
        }
    }
}
