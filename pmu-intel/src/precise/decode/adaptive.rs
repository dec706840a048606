//! The layout of an adaptive record.

use bitfield_struct::bitfield;

use crate::precise::decode::group::{Group, counters_words};
use crate::precise::decode::words::Words;

/// First word of an adaptive record's basic group (SDM vol. 3B, "Adaptive PEBS", table "Basic Info Group"). The groups
/// are at the places that they have in `MSR_PEBS_DATA_CFG`.
#[bitfield(u64)]
pub(crate) struct AdaptiveHeader {
    memory: bool,
    registers: bool,
    vectors: bool,
    branches: bool,
    counters: bool,
    metrics: bool,
    #[bits(18)]
    unknown: u32,
    /// Number of branch records, minus 1.
    branch_count: u8,
    pub(crate) retire_latency: u16,
    /// Size of the record in bytes.
    size: u16,
}

/// The sizes of the groups in words.
const BASIC: usize = 4;
const MEMORY: usize = 4;
const REGISTERS: usize = 18;
const VECTORS: usize = 32;
const BRANCH: usize = 3;

impl AdaptiveHeader {
    /// Returns the size of the record in words, or `None` if no record can have its size.
    pub(crate) fn words(self) -> Option<usize> {
        let size = usize::from(self.size());
        (size.is_multiple_of(8) && size >= 8 * BASIC).then_some(size / 8)
    }

    /// Returns whether the groups of a record are known, and fill the record exactly.
    pub(crate) fn is_consistent(self, record: Words<'_>) -> bool {
        let counters = self.find(record, Group::Counters);
        let after = match counters {
            Some(Some(counters)) => self.first_of_counters() + counters.len(),
            Some(None) => self.first_of_counters(),
            None => return false,
        };
        self.unknown() == 0 && after == record.len()
    }

    /// Returns the words of a group: `Some(None)` if the record has no such group, and `None` if the group does not fit
    /// in the record.
    pub(crate) fn find<'a>(self, record: Words<'a>, wanted: Group) -> Option<Option<Words<'a>>> {
        let mut first = 0;
        for (group, words) in self.groups() {
            if group == wanted {
                let found = record.range(first, words)?;
                return Some((words != 0).then_some(found));
            }
            first += words;
        }
        if wanted != Group::Counters || !self.counters() && !self.metrics() {
            return Some(None);
        }
        let rest = record.after(first);
        Some(Some(rest.range(0, counters_words(rest)?)?))
    }

    fn first_of_counters(self) -> usize {
        self.groups().iter().map(|(_, words)| words).sum()
    }

    /// Returns the groups in front of the counters in their order, with their sizes in words.
    fn groups(self) -> [(Group, usize); 5] {
        let of = |exists: bool, words| if exists { words } else { 0 };
        let branches = BRANCH * (usize::from(self.branch_count()) + 1);
        [
            (Group::Basic, BASIC),
            (Group::Memory, of(self.memory(), MEMORY)),
            (Group::Registers, of(self.registers(), REGISTERS)),
            (Group::Vectors, of(self.vectors(), VECTORS)),
            (Group::Branches, of(self.branches(), branches)),
        ]
    }
}
