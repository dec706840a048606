//! The groups of a source: one of all processes, and those of single processes.

use crate::index::intervals::Part;

/// The tag of no source. It is 0, as is all of a new index, so that lists in a static take no room in an image.
pub(super) const UNUSED: u32 = 0;

/// Returns the tag of a source's number: of `ProfileMaximum`, which is no source, it would be [`UNUSED`].
#[inline(always)]
pub(super) const fn tag(source: u32) -> u32 {
    source ^ pmu_core::KProfileSource::MAXIMUM
}

/// A part of a table.
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

/// The entries of one key.
#[derive(Clone, Copy)]
pub(crate) struct Group {
    /// Its callback objects; its ranges come next.
    pub(super) callbacks: Span,
    pub(super) ranges: Part,
}

impl Group {
    /// Nothing looks for the ranges of a group that is not there.
    pub(super) const EMPTY: Self = Self { callbacks: Span::EMPTY, ranges: Part::UNUSED };
}

/// The groups of one source.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Source<const N: usize> {
    /// Its tag, if it has nothing but ranges of the group of all processes and all bits of a number
    /// count.
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

    /// Makes the place unused.
    pub(super) fn clear(&mut self) {
        (self.only_ranges_of, self.tag) = (UNUSED, UNUSED);
        (self.has_global, self.processes) = (false, Span::EMPTY);
    }

    /// The group of all processes.
    pub(crate) fn global(&self) -> Option<&Group> {
        self.has_global.then_some(&self.global)
    }
}

/// The groups of single processes, ascending within a source.
pub(super) struct Processes<const N: usize> {
    pub(super) ids: [u64; N],
    pub(super) groups: [Group; N],
    pub(super) length: usize,
}
