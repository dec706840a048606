//! The groups of a source: one of all processes, and those of single processes.

use crate::index::intervals::Part;

/// The tag of an unused slot: 0, as is all of a new index, so that lists in a static take no room in an image.
pub(super) const UNUSED: u32 = 0;

/// Returns the tag of a source's number. Only `ProfileMaximum`, which is no source, would have the tag [`UNUSED`].
#[inline(always)]
pub(super) const fn tag(source: u32) -> u32 {
    source ^ pmu_core::profile::KProfileSource::MAXIMUM
}

/// Consecutive places of a table.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) from: u32,
    pub(super) to: u32,
}

impl Span {
    pub(super) const EMPTY: Self = Self { from: 0, to: 0 };

    pub(super) const fn is_empty(self) -> bool {
        self.from == self.to
    }
}

/// The objects of one source and one process, or of one source and all processes.
#[derive(Clone, Copy)]
pub(crate) struct Group {
    /// The entries of its callback objects. Those of its basic objects follow.
    pub(super) callbacks: Span,
    pub(super) ranges: Part,
}

impl Group {
    /// A group that is not there. No query is made of it.
    pub(super) const EMPTY: Self = Self { callbacks: Span::EMPTY, ranges: Part::UNUSED };
}

/// The groups of one source.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Source<const N: usize> {
    /// The tag of the source, if the source has nothing but ranges of all processes, and all bits of its number count.
    pub(super) only_ranges_of: u32,
    pub(super) tag: u32,
    /// The group of all processes, if there is one.
    pub(super) global: Group,
    pub(super) has_global: bool,
    /// The groups of single processes.
    pub(super) processes: Span,
}

impl<const N: usize> Source<N> {
    pub(super) const UNUSED: Self = Self {
        only_ranges_of: UNUSED,
        tag: UNUSED,
        global: Group::EMPTY,
        has_global: false,
        processes: Span::EMPTY,
    };

    /// The group of all processes.
    pub(crate) fn global(&self) -> Option<&Group> {
        self.has_global.then_some(&self.global)
    }
}

/// The groups of single processes, in ascending order of the processes within a source.
pub(super) struct Processes<const N: usize> {
    pub(super) ids: [u64; N],
    pub(super) groups: [Group; N],
    pub(super) length: usize,
}
