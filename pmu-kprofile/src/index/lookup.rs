//! The index: finds the group of a source and a process, and the objects whose ranges contain an address.
//!
//! The addresses where a range begins or ends divide the address space into elementary intervals; all addresses of an
//! interval are in the same ranges. A binary search finds the elementary interval of an address, which leads to the
//! head of the interval's hit list: the list of these ranges. (Elementary intervals and stabbing queries: de Berg and
//! others, "Computational Geometry", 3rd edition, §10.3.)

use crate::index::intervals::{ElementaryIntervals, Found, HitLists, Part};
use crate::object::bucket::Basic;
use crate::object::profile_object::{Key, ObjectPtr, ProfileObject};

/// The index of at most `N` objects.
#[repr(C)] // The sources first: an interrupt has their address then.
pub(crate) struct Index<const N: usize> {
    /// Hashed by the number modulo `N`, with linear probing.
    pub(super) sources: [Source<N>; N],
    pub(super) entries: [Entry; N],
    pub(super) length: usize,
    /// The slots of `sources` from this number on are unused.
    pub(super) slots: usize,
    /// The bits of a source's number that do not tell sources apart. Set before the index is filled.
    pub(crate) ignored_bits: u32,
    /// The entries in order of their ranges' last addresses, within their groups.
    pub(super) by_last: [u32; N],
    pub(super) processes: Processes<N>,
    pub(super) intervals: ElementaryIntervals<N>,
    pub(super) hit_lists: HitLists<N>,
}

impl<const N: usize> Index<N> {
    /// Creates an empty index.
    pub(crate) const fn new() -> Self {
        const { assert!(N > 0 && N < NONE as usize / 3, "places are 32-bit numbers") };
        Self {
            length: 0,
            ignored_bits: 0,
            entries: [Entry::UNUSED; N],
            by_last: [0; N],
            sources: [Source::UNUSED; N],
            slots: 0,
            processes: Processes { ids: [0; N], groups: [Group::EMPTY; N], length: 0 },
            intervals: ElementaryIntervals::new(),
            hit_lists: HitLists::new(),
        }
    }

    /// Returns the number of objects.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Returns the entries of the objects, ordered by key.
    #[inline(never)] // 144 bytes of the glue.
    pub(super) fn started(&self) -> &[Entry] {
        self.entries.get(..self.length).unwrap_or(&[])
    }

    /// Returns the objects, ordered by key.
    pub(crate) fn objects(&self) -> impl Iterator<Item = ObjectPtr<ProfileObject<'static>>> {
        self.started().iter().map(|entry| entry.object)
    }

    /// Returns the group of all processes of a source, if the source has no other group and no callback object, and is
    /// in the slot of its hash: the common case. [`source`](Self::source) finds any other.
    #[inline]
    pub(crate) fn only_ranges(&self, source: u32) -> Option<&Group> {
        // The first place alone. A source that a collision has displaced is found the longer way.
        let there = self.sources.get(source as usize % N)?;
        (there.only_ranges_of == tag(source)).then_some(&there.global)
    }

    /// Returns the groups of a source; `None` if the source has none.
    pub(crate) fn source(&self, number: u32) -> Option<&Source<N>> {
        let number = number & !self.ignored_bits;
        let tag = tag(number);
        self.sources.get(self.place_of(number, tag)?).filter(|source| source.tag == tag)
    }

    /// Returns the slot of a source, or the slot that it would take; `None` if there is no room for it.
    pub(super) fn place_of(&self, number: u32, tag: u32) -> Option<usize> {
        let first = number as usize % N;
        (first..N).chain(0..first).find(|place| {
            let there = self.sources.get(*place).map_or(UNUSED, |source| source.tag);
            there == tag || there == UNUSED
        })
    }

    /// Returns the group of a process.
    pub(crate) fn process(&self, source: &Source<N>, process: u64) -> Option<&Group> {
        let Span { from, to } = source.processes;
        let ids = self.processes.ids.get(from as usize..to as usize)?;
        let place = ids.binary_search(&process).ok()?;
        self.processes.groups.get(from as usize + place)
    }

    /// Returns a group's callback objects, in the order in which they were started.
    #[inline]
    pub(crate) fn callbacks(
        &self,
        group: &Group,
    ) -> impl Iterator<Item = ObjectPtr<ProfileObject<'static>>> {
        (group.callbacks.from..group.callbacks.to).map_while(|n| self.entry(n)).map(|e| e.object)
    }

    /// Calls `hit` with the counting part of each of a group's basic objects whose range has `pc`: a stabbing query.
    #[inline(always)]
    pub(crate) fn ranges(
        &self,
        group: &Group,
        pc: u64,
        mut hit: impl FnMut(ObjectPtr<Basic<'static>>),
    ) {
        match self.intervals.find(group.ranges, pc) {
            Found::Only(only) => {
                let entry = self.entries.get(only as usize);
                if let Some(entry) = entry.filter(|e| e.base <= pc && pc <= e.last) {
                    hit(entry.basic);
                }
            }
            Found::HitList(mut node) => {
                while let Some((basic, next)) = self.hit_lists.follow(node, pc) {
                    hit(basic);
                    node = next;
                }
            }
        }
    }

    #[inline]
    pub(super) fn entry(&self, place: u32) -> Option<&Entry> {
        self.entries.get(place as usize)
    }
}

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

/// No place of a table.
pub(super) const NONE: u32 = u32::MAX;

/// An object in an index, with the range of a basic object.
#[derive(Clone, Copy)]
#[repr(align(64))] // A cache line each, and the address follows from the place by a shift.
pub(crate) struct Entry {
    pub(super) object: ObjectPtr<ProfileObject<'static>>,
    /// The counting part of a basic object.
    pub(super) basic: ObjectPtr<Basic<'static>>,
    pub(super) base: u64,
    /// Last address of the range; below the base if the range is empty.
    pub(super) last: u64,
    /// Set for a basic object. Callback objects have no range, and come first in a group.
    pub(super) has_range: bool,
    pub(super) key: Key,
}

impl Entry {
    pub(super) const UNUSED: Self =
        Self::of_callback(ObjectPtr::NULL, Key { source: 0, process: 0 });

    /// Creates the entry of a callback object.
    pub(crate) const fn of_callback(object: ObjectPtr<ProfileObject<'static>>, key: Key) -> Self {
        Self { object, basic: ObjectPtr::NULL, base: 0, last: 0, has_range: false, key }
    }

    /// Returns the entry of a basic object: with its counting part, and its first and its last address.
    pub(crate) const fn with_range(
        self,
        basic: ObjectPtr<Basic<'static>>,
        (base, last): (u64, u64),
    ) -> Self {
        Self { basic, base, last, has_range: true, ..self }
    }

    /// Returns the sort key of the entry.
    pub(super) fn order(&self) -> (Key, bool, u64) {
        (self.key, self.has_range, self.base)
    }
}
