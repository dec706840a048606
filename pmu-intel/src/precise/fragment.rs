//! The layout of one fragment of an architectural record.

use bitfield_struct::bitfield;

use crate::precise::layout::{Group, counters_words};
use crate::precise::record::Words;

/// First word of a fragment's header (Intel's Architecture Instruction Set Extensions reference, "Architectural PEBS";
/// the places are those of CFG_C's upper half). The second word is reserved.
#[bitfield(u64)]
pub(crate) struct FragmentHeader {
    /// Size of the fragment in bytes, with the header.
    size: u16,
    #[bits(14)]
    __: u16,
    long_mode: bool,
    continued: bool,
    #[bits(3)]
    __: u8,
    /// Counters, general and fixed, and metrics: 0 if the fragment has no such group.
    #[bits(5)]
    counters: u8,
    /// 1: 8 branch records; 2: 16; 3: as the group's own header says.
    #[bits(2)]
    branches: u8,
    #[bits(7)]
    unknown_low: u8,
    xmm: bool,
    ymm_high: bool,
    #[bits(2)]
    unknown_middle: u8,
    opmask: bool,
    zmm_high: bool,
    high_zmm: bool,
    #[bits(5)]
    unknown_high: u8,
    registers: bool,
    memory: bool,
    basic: bool,
}

/// The sizes of the groups in words.
const HEADER: usize = 2;
const BASIC: usize = 6;
const MEMORY: usize = 8;
const REGISTERS: usize = 20;
const BRANCHES_HEADER: usize = 6;
const BRANCH: usize = 3;

/// The word of the branches' header that tells their number: the value of `IA32_LBR_DEPTH`.
const DEPTH: usize = 2;

/// The words of the vector registers' header.
const VECTORS_HEADER: usize = 2;

/// A fragment's groups in their order.
const ORDER: [Group; 6] = [
    Group::Basic,
    Group::Memory,
    Group::Registers,
    Group::Vectors,
    Group::Branches,
    Group::Counters,
];

/// The sizes in words of XMM, the upper halves of YMM, the opmasks, the upper halves of ZMM0–15, and ZMM16–31.
pub(crate) const VECTORS: [usize; 5] = [32, 32, 8, 64, 128];

impl FragmentHeader {
    /// Returns whether there is no fragment: the record before was the last.
    pub(crate) fn is_end(self) -> bool {
        self.size() == 0
    }

    /// Returns the size of the fragment in words, or `None` if no fragment can have its size.
    pub(crate) fn words(self) -> Option<usize> {
        let size = usize::from(self.size());
        (size.is_multiple_of(8) && size >= 8 * HEADER).then_some(size / 8)
    }

    /// Returns whether the next fragment belongs to the same record. A fragment without any group is continued, too.
    pub(crate) fn is_continued(self) -> bool {
        self.continued() || self.into_bits() >> 16 == 0
    }

    /// Returns whether the fragment begins a record: only the first fragment of a record has the basic group.
    pub(crate) fn begins(self) -> bool {
        self.basic()
    }

    /// Returns whether the groups of a fragment are known, and fill the fragment up to a multiple of 16 bytes.
    pub(crate) fn is_consistent(self, fragment: Words<'_>) -> bool {
        let unknown = self.unknown_low() | self.unknown_middle() | self.unknown_high();
        let mut after = HEADER;
        for group in ORDER {
            match self.size_of(group, fragment.after(after)) {
                Some(words) => after = after.saturating_add(words),
                None => return false,
            }
        }
        let padding = fragment.len().checked_sub(after);
        unknown == 0 && padding.is_some_and(|words| words <= 1)
    }

    /// Returns the words of a group: `None` if the fragment has no such group.
    pub(crate) fn find<'a>(self, fragment: Words<'a>, wanted: Group) -> Option<Words<'a>> {
        let mut first = HEADER;
        for group in ORDER {
            let words = self.size_of(group, fragment.after(first))?;
            if group == wanted {
                return (words != 0).then(|| fragment.range(first, words))?;
            }
            first = first.saturating_add(words);
        }
        None
    }

    /// Returns the vector registers of which a fragment has values, in the order of [`VECTORS`].
    pub(crate) fn vectors(self) -> [bool; 5] {
        [self.xmm(), self.ymm_high(), self.opmask(), self.zmm_high(), self.high_zmm()]
    }

    /// Returns the size of a group in words, 0 if the fragment does not have it; `None` if the group's own header is
    /// not plausible. `group` begins with the group.
    fn size_of(self, kind: Group, group: Words<'_>) -> Option<usize> {
        let of = |exists: bool, words| if exists { words } else { 0 };
        Some(match kind {
            Group::Basic => of(self.basic(), BASIC),
            Group::Memory => of(self.memory(), MEMORY),
            Group::Registers => of(self.registers(), REGISTERS),
            Group::Vectors => {
                let has = self.vectors();
                let all: usize = has.iter().zip(VECTORS).map(|(has, words)| of(*has, words)).sum();
                of(all != 0, VECTORS_HEADER) + all
            }
            Group::Branches => match self.branches() {
                0 => 0,
                1 => BRANCHES_HEADER + 8 * BRANCH,
                2 => BRANCHES_HEADER + 16 * BRANCH,
                _ => {
                    let depth = usize::try_from(group.get(DEPTH)?).ok()?;
                    depth.checked_mul(BRANCH)?.checked_add(BRANCHES_HEADER)?
                }
            },
            Group::Counters if self.counters() == 0 => 0,
            Group::Counters => counters_words(group)?,
        })
    }
}

/// Returns the branch records of a branches' group, without its header.
pub(crate) fn without_branches_header(group: Words<'_>) -> Words<'_> {
    group.after(BRANCHES_HEADER)
}

/// Returns the vector registers' values of their group, without its header.
pub(crate) fn without_vectors_header(group: Words<'_>) -> Words<'_> {
    group.after(VECTORS_HEADER)
}
